// The coordinator's record of one draft worker: its Hello, its number of sequences, its back-off, its speed,
// and the forms in which it can send q. Independent of requests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/choices/drafter_choice.h"
#include "coordinator/costs/answer_time.h"

namespace outrider {

// Probe drafts that a worker was asked for at once, with the arrived part.
struct ProbeDraftPhase {
  Clock::time_point sent_at{};
  int32_t longest = 0, unread = 0;  // tokens
  int64_t prefill_ns = 0, drafting_ns = 0;
};

class PoolWorker {
 public:
  PoolWorker(Hello hello, DrafterKind kind) : hello_(std::move(hello)), kind_(kind) {}

  DrafterKind kind() const { return kind_; }
  Generation generation() const { return hello_.generation; }
  int32_t max_context() const { return hello_.model.max_context; }
  uint64_t process() const { return hello_.process; }
  bool reads_successors() const { return hello_.successors; }
  bool finds_text() const { return hello_.finds_text; }
  int32_t max_prefill() const { return hello_.max_prefill; }                  // 0: all tokens of a text
  bool is_without_model() const { return hello_.model.vocab_size == 0; }      // it uses texts only
  bool needs_hidden_states() const { return hello_.hidden_state_head != 0; }  // HiddenStateRows

  // ---- sequences
  int32_t held() const { return held_; }
  bool has_room() const { return held_ < hello_.max_sequences; }
  void give() { ++held_; }
  void take_back() { --held_; }
  // A Close that its queue had no room for: the worker still has the sequence. Bounded by its number of
  // sequences.
  void keep_close(SequenceId sequence) {
    unsent_closes_.push_back(sequence);
    ++held_;
  }
  bool has_unsent_closes() const { return !unsent_closes_.empty(); }
  std::vector<SequenceId> take_unsent_closes() {
    held_ -= static_cast<int32_t>(unsent_closes_.size());
    return std::exchange(unsent_closes_, {});
  }

  // ---- back-off
  bool is_silent() const { return silent_; }  // no message since the last round that it missed
  Clock::time_point usable_at() const { return silent_ ? silent_until_ : resume_at_; }
  bool is_usable(Clock::time_point now) const { return now >= usable_at(); }
  void heard() { silent_ = false; }
  void drafted() { misses_ = 0; }
  // A round waited for `waited` and got no draft.
  void missed(Clock::duration waited, Clock::duration longest_pause, Clock::time_point now);

  // ---- speed
  AnswerTime& answer_time() { return answer_time_; }
  const AnswerTime& answer_time() const { return answer_time_; }
  // A round waited `time` for its draft of `tokens` tokens.
  void waited(Clock::duration time, int32_t tokens, Clock::time_point now);
  double token_ns() const { return token_ns_; }  // average wait for a drafted token; 0: unknown
  bool is_measured_within(Clock::duration time, Clock::time_point now) const {
    return now - measured_at_ < time;
  }
  void read(int64_t ns, int32_t tokens) { read_token_ns_ = static_cast<double>(ns) / tokens; }
  double read_token_ns() const { return read_token_ns_; }  // of a committed token; 0: unknown
  const ProbeDraftPhase& add_probe_draft(const Draft& draft, Clock::time_point sent_at, int32_t unread);
  // Stores the step of this target group in whose rounds it last drafted.
  void asked_in(int32_t group, uint64_t step) { asked_in_[group] = step; }
  bool drafts_around(int32_t group, uint64_t step) const {
    const auto asked = asked_in_.find(group);
    return asked != asked_in_.end() && asked->second + 1 >= step;
  }

  // ---- verdicts of its drafts
  struct Verified {
    int64_t drafts = 0, drafted = 0, tested = 0, accepted = 0;
  };
  void add_verified(int32_t drafted, int32_t tested, int32_t accepted) {
    ++verified_.drafts;
    verified_.drafted += drafted;
    verified_.tested += tested;
    verified_.accepted += accepted;
  }
  const Verified& verified() const { return verified_; }

  // ---- use of its drafts
  // A round of one of its sequences is over, with or without a draft.
  void round_over(bool with_draft) {
    ++watched_.rounds;
    watched_.drafted += with_draft;
  }
  // Whether the worker's drafts were used in the rounds watched since `watched_.from`. False: hardly any
  // round had a draft. Empty: too few rounds, or less than `after` has passed. The watch restarts after each
  // answer.
  std::optional<bool> is_of_use(Clock::time_point now, Clock::duration after) {
    if (watched_.from == Clock::time_point{}) watched_.from = now;
    if (now - watched_.from < after || watched_.rounds < kWatchedRounds) return std::nullopt;
    const Watched over = std::exchange(watched_, {.from = now});
    return over.drafted * kRarely >= over.rounds;
  }

  uint64_t fingerprint() const { return hello_.model.fingerprint; }
  const std::string& name() const { return hello_.model.name; }  // of its model
  int32_t room() const { return hello_.max_sequences; }

  // ---- forms of q
  bool sends_slices() const { return slices_; }  // none of its slices was lost yet
  bool has_head(uint64_t fingerprint) const {
    return fingerprint != 0 && hello_.head_fingerprint == fingerprint;
  }
  void lose_slices() { slices_ = false; }
  void lose_head() { hello_.head_fingerprint = 0; }

 private:
  struct Watched {
    Clock::time_point from{};
    int64_t rounds = 0, drafted = 0;
  };
  static constexpr int64_t kWatchedRounds = 64, kRarely = 16;

  Hello hello_;
  DrafterKind kind_;
  int32_t held_ = 0;
  std::vector<SequenceId> unsent_closes_;
  int32_t misses_ = 0;  // consecutive rounds that it missed
  bool silent_ = false;
  Clock::time_point resume_at_{};     // gets no requests until then
  Clock::time_point silent_until_{};  // gets no requests until then while it stays silent
  AnswerTime answer_time_;
  double token_ns_ = 0, read_token_ns_ = 0;
  Clock::time_point measured_at_{};
  ProbeDraftPhase probe_drafts_;
  std::map<int32_t, uint64_t> asked_in_;  // steps, by target group
  bool slices_ = true;
  Verified verified_;
  Watched watched_;
};

}  // namespace outrider
