// The measurements of a run, as plain sums. Filled by the protocol machine from the times it is given; memory
// is bounded however long the run. Every counter here has a line in counters.h, which defines sums over
// coordinators, reports and /metrics.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/transport.h"
#include "coordinator/metrics/tree_sums.h"
#include "coordinator/request/request.h"

namespace outrider {

inline double in_milliseconds(std::chrono::nanoseconds duration) {
  return static_cast<double>(duration.count()) * 1e-6;
}

// A histogram of durations in bounded memory: a class is one nanosecond wide below 256 ns, and above it 1/128
// to 1/256 of its durations (the layout of HdrHistogram, Tene 2012). Each class between the shortest and the
// longest sample takes 8 bytes, at most 41 kB in all. Zeros are counted separately, and durations over 19
// hours are in the last class.
class DurationHistogram {
 public:
  void add(std::chrono::nanoseconds duration);  // a negative one counts as zero
  void add(const DurationHistogram& other);
  int64_t count() const { return count_; }
  double sum_ns() const { return sum_ns_; }
  // The number of samples up to `bound`, including those above it in its class.
  int64_t count_up_to(std::chrono::nanoseconds bound) const;
  double mean_ns() const;                   // of the samples themselves, not of their classes
  double coefficient_of_variation() const;  // deviation / mean, likewise; 0 without samples
  // Nearest rank: of n sorted samples number ceil(q n), counted from 1, and number 1 for q = 0, without
  // interpolation. The result is the middle of a histogram class: at most 0.4 % off, and exact below 256 ns.
  // q in [0, 1]; 0 without samples.
  double percentile_ns(double q) const;

 private:
  static size_t class_of(int64_t ns);    // of at least 1
  void cover(size_t begin, size_t end);  // makes room for these classes
  std::vector<int64_t> counts_;          // [i]: of class first_ + i
  size_t first_ = 0;
  int64_t zeros_ = 0, count_ = 0;
  double sum_ns_ = 0, sum_squares_ = 0;
};

// A histogram of text lengths: class i has lengths from 2^(i-1) + 1 to 2^i tokens.
class LengthHistogram {
 public:
  static constexpr size_t kClasses = 24;
  void add(int64_t length);
  void add(const LengthHistogram& other);
  const std::array<int64_t, kClasses>& classes() const { return classes_; }
  int64_t count() const;
  int64_t sum() const { return sum_; }

 private:
  std::array<int64_t, kClasses> classes_{};
  int64_t sum_ = 0;
};

// Bounds a time reported by a peer: such times are only summed and shown, and absurd ones must not spoil the
// sums.
constexpr int64_t reported_ns(int64_t ns) {
  constexpr int64_t kHour = int64_t{3600} * 1'000'000'000;
  return std::clamp<int64_t>(ns, 0, kHour);
}

// The reason why a Draft was not used.
enum class DropReason : uint8_t {
  kUnknownSequence,   // never opened here, or finished
  kUnexpectedSender,  // another worker holds the sequence
  kStaleEpoch,
  kStaleRound,
  kDuplicate,  // this round's draft is already here
  kWrongBase,
  kWrongHash,
  kTooLong,
  kBadIds,  // outside the target's vocabulary
  kBadQ,
  kTree,          // not a tree, or not the requested one
  kNotUsed,       // good, but its request ended before the plan
  kSliceMissing,  // a target rank did not get its part of q in time
  kProbeDraft,    // a probe draft, used for learning only
};
constexpr std::array<std::string_view, 14> kDropReasonNames = {"unknown_sequence",
                                                               "unexpected_sender",
                                                               "stale_epoch",
                                                               "stale_round",
                                                               "duplicate",
                                                               "wrong_base",
                                                               "wrong_hash",
                                                               "too_long",
                                                               "bad_ids",
                                                               "bad_q",
                                                               "tree",
                                                               "not_used",
                                                               "slice_missing",
                                                               "shadow"};

// Sums over verified rounds. g drafted, n accepted, t = n + [n < g] tested, e emitted after cuts. The
// counters come first.
struct RoundSums {
  int64_t rounds = 0;
  int64_t first_rounds = 0;  // rounds that ended a prefill, so g = 0 whatever the policy
  int64_t g0_rounds = 0;     // rounds with nothing drafted, first rounds included
  int64_t drafted = 0, tested = 0, accepted = 0, emitted = 0;
  int64_t emitted_speculative = 0;                // in rounds with g > 0
  int64_t rollbacks = 0;                          // rounds with a rejection: n < t
  int64_t rolled_back_tokens = 0;                 // sum of g - n: in trees also siblings of accepted tokens
  std::vector<int64_t> gamma_histogram, accepted_histogram, burst_histogram;
  std::vector<int64_t> position_tested, position_accepted;  // [i]: draft token i + 1

  // `tested`: of a tree of gamma nodes, those that the target's tokens were compared with, a level each.
  void add_round(int32_t gamma, int32_t accepted_count, int32_t emitted_count, bool first,
                 std::optional<int32_t> tested = std::nullopt);
  void add(const RoundSums& other);
  double acceptance() const;                 // sum n / sum t
  double utilisation() const;                // sum n / sum g
  double tokens_per_round() const;            // sum e / passes of this sequence
  double block_efficiency() const;           // sum e / passes, over rounds with g > 0 only
  int32_t burst_percentile(double q) const;  // tokens of a burst, exact, by nearest rank as for durations
};

// The time of rounds by phase. Draft wait and target time overlap between sequences.
struct PhaseTimes {
  std::chrono::nanoseconds draft_wait{0};  // Propose sent until the draft was decided
  std::chrono::nanoseconds plan_wait{0};   // decided until planned
  std::chrono::nanoseconds verify{0};      // plan sent until its result
  void add(const PhaseTimes& other);
};

// Rounds whose pass had no prefill rows. Reported as the duration of rounds of plain decoding.
struct DecodingRounds {
  int64_t rounds = 0, emitted = 0;
  PhaseTimes phases;
  void add(const DecodingRounds& other);
};

// Drafts that workers prepared during verification.
struct PreparationTotals {
  int64_t lookups = 0, hits = 0;  // outcomes that could have been prepared for, and that were
  int64_t used_tokens = 0, wasted_tokens = 0;
  int64_t outcomes = 0;  // branches, over all lookups
  int64_t busy_ns = 0;
  void add(const PreparationReport& report);
  void add(const PreparationTotals& other);
  double hit_rate() const {
    return lookups > 0 ? static_cast<double>(hits) / static_cast<double>(lookups) : 0;
  }
};

// Sums over all draft workers of one kind (ModelInfo::fingerprint).
struct DrafterTotals {
  std::string name;
  int64_t joined = 0, lost = 0, left = 0;  // lives that began, broke off, and ended politely
  int64_t opened = 0;                      // sequences given to a worker; more than requests when they move
  int64_t rounds = 0, drafted = 0, accepted = 0, emitted = 0;  // with drafts of this kind
  double round_seconds = 0;
};

// Sums over the target groups that used one entry of a coordinator's table, one after the other.
struct GroupTotals {
  int64_t joined = 0, lost = 0;  // lives that began, and that ended
  int64_t requests = 0;          // that began in it
  int64_t handed_over = 0;       // that continued in another group after its loss
  int64_t passes = 0, rows = 0, emitted = 0;
  int64_t prefix_queries = 0, prefix_hits = 0, preemptions = 0;
  int64_t busy_ns = 0;  // of its leader
};

struct RequestMetrics {
  Clock::time_point submitted_at{};
  std::optional<Clock::time_point> begun_at;  // it got a place in a target group
  std::optional<Clock::time_point> first_token_at, last_token_at, finished_at;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt, from the prefix cache
  RoundSums rounds;
  std::vector<int32_t> step_drafted, step_accepted;  // by round with a draft
  PhaseTimes phases;
  DurationHistogram gaps;    // between emitted tokens, zeros inside a burst included
  DurationHistogram bursts;  // between bursts

  void tokens_emitted(int32_t count, Clock::time_point now);
  double ttft_ms() const;
};

// Event counters.
struct EventCounts {
  int64_t submitted = 0, refused = 0;
  int64_t prompt_tokens = 0;
  int64_t prefix_queries = 0;      // prompt tokens that were looked up in the prefix cache
  int64_t prefix_hits = 0;         // prompt tokens that were found there
  int64_t preemptions = 0;         // sequences that lost their KV blocks and were prefilled again
  int64_t failovers = 0;           // requests that continued in another target group after theirs was lost
  int64_t drafts_received = 0;     // == drafts_used + sum of drafts_dropped + drafts held for the next plan
  int64_t drafts_used = 0;         // went into a StepPlan
  int64_t proposals = 0;           // with gamma > 0
  int64_t proposals_repeated = 0;  // sent again, because the draft was overdue
  int64_t draft_deadlines_missed = 0;
  int64_t liveness_timeouts = 0;              // missed deadlines under a p/q rule, which must stay rare
  int64_t draft_ingest_ns = 0, draft_ns = 0;  // as workers report them

  int64_t target_passes = 0;  // plans with entries
  int64_t target_rows = 0;
  int64_t forward_ns = 0, verify_ns = 0, commit_ns = 0;  // as the leader reports them
  int64_t nonfinite_verdicts = 0;
  int64_t constrained_requests = 0;                // with a grammar, that began
  int64_t masks = 0, mask_ns = 0;                  // rows with a mask, and the time of computing masks
  int64_t mask_cut_tokens = 0, forced_tokens = 0;  // draft tokens that grammars removed and appended
  int64_t workers_joined = 0, workers_lost = 0, workers_left = 0, workers_unloaded = 0, sequences_moved = 0,
          hellos_refused = 0, resyncs = 0, sends_failed = 0;
  int64_t unexpected_messages = 0, stale_results = 0;
  // Rounds by the place of their head, and the number of trials of the other place.
  int64_t head_rounds_at_target = 0, head_rounds_at_worker = 0, place_trials = 0;
  int64_t ranked_rows = 0;                                       // whose best tokens went to draft workers
  int64_t text_rounds = 0, text_drafted = 0, text_accepted = 0;  // with a text draft beside a model
  // Prompts that one group prefilled and another decodes, and prompts whose blocks did not arrive.
  int64_t handoffs = 0, handoffs_lost = 0;
  int64_t handoff_blocks = 0, handoff_bytes = 0;  // taken in by a group, and sent by all ranks
};

// Bytes that bypass the coordinator: q from workers to the target's ranks, and hidden states from the
// target's leader to workers.
struct SliceBytes {
  int64_t slice_bytes = 0;
  int64_t link_bytes = 0;               // the part of slice_bytes that goes from device to device
  int64_t hidden_state_link_bytes = 0;  // of rows of hidden states, from device to device
};

struct Totals : EventCounts, SliceBytes {
  std::array<int64_t, 4> finished{};  // by FinishReason
  std::array<int64_t, kDropReasonNames.size()> drafts_dropped{};
  RoundSums rounds;
  PhaseTimes phases;
  DecodingRounds decoding;
  PreparationTotals preparation;
  TreeSums trees;
  std::map<uint64_t, DrafterTotals> drafters;  // by kind
  std::vector<GroupTotals> groups;             // by their place
  DurationHistogram ttft, gaps, bursts;
  DurationHistogram e2e;               // of requests that ended with kStop or kLength, from their submission
  DurationHistogram queued;            // from the submission of a request until it began
  LengthHistogram prompt_lengths;      // of requests that began
  LengthHistogram generation_lengths;  // as e2e
  std::optional<Clock::time_point> first_submit_at, last_finish_at;
  std::chrono::nanoseconds busy{0};  // with a request in progress, until the end of the last such time
  Clock::time_point busy_since{};    // the begin of the current such time

  // Each request is submitted once and finishes once, also a refused one.
  void count_submitted(Clock::time_point now);
  void count_finished(FinishReason reason, Clock::time_point now);
  int64_t in_progress() const;
  GroupTotals& group(int32_t index) {
    if (groups.size() <= static_cast<size_t>(index)) groups.resize(static_cast<size_t>(index) + 1);
    return groups[static_cast<size_t>(index)];
  }
  // Counts an arrived draft, used or not, and clamps its reported times.
  void receive(Draft& draft);
  void drop(DropReason reason) { ++drafts_dropped[static_cast<size_t>(reason)]; }
  int64_t dropped(DropReason reason) const { return drafts_dropped[static_cast<size_t>(reason)]; }
  double wall_seconds() const;  // from the first submission to the last finish
  double busy_seconds() const;  // the part of wall_seconds with a request in progress
  void add(const Totals& other);  // of another coordinator on the same clock
};

void fill_json(const RequestMetrics& metrics, nlohmann::json& out);
void fill_json(const Totals& totals, nlohmann::json& out);
// Bytes by message kind, also per accepted draft token and per emitted token. Bytes that bypass the
// coordinator are as workers and targets report them.
void fill_json(const TransportStats& stats, const Totals& totals, nlohmann::json& out);

}  // namespace outrider
