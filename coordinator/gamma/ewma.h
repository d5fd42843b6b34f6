// The default policy: decayed acceptance, measured costs, and the lengths that maximise tokens per second of
// the whole batch.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/gamma/acceptance.h"
#include "coordinator/gamma/by_group.h"
#include "coordinator/gamma/found_drafts.h"
#include "coordinator/gamma/goodput.h"

namespace outrider {

struct EwmaOptions {
  int32_t max = kDefaultGammaMax;
  int32_t found_max = 64;  // of a draft that is found in the text, and is ended where rows stop paying
  double decay = 0.95;
  double prior_mean = 0.7, prior_tests = 10;
  double switch_gain = 0.01;  // predicted, before lengths change
  double surprise = 0.005;    // chance of a run of rounds that halves the evidence; 0: never
  double shrink = 1000;       // tests that the others of a batch are worth in a sequence's estimate
  bool trials = true;         // of plain steps and of drafts, whichever is not done now
};

class EwmaGamma;

// The sequences of one factory in one target group: they wait for each other's drafts and share each pass, so
// there is one decision for all of them, made again after every step, and when somebody joins. Trials count
// steps. Also what new sequences start from.
class EwmaBatch {
 public:
  explicit EwmaBatch(const EwmaOptions& options);
  void join(EwmaGamma* member);
  void leave(EwmaGamma* member);
  void decide(const CostModel& cost);  // unless nothing happened since
  void learn(const RoundOutcome& outcome);
  void learn_shadow(int32_t drafted, int32_t accepted);
  double mean() const { return shared_.mean(); }
  bool off() const { return off_; }
  enum class Trial { kNone, kDraft, kPlain };
  Trial trial() const { return trial_; }
  // This step is plain, and shadow drafts are made.
  bool rehearses() const { return rehearses_; }
  // In plain steps: of a prompt that was read.
  void charge(double steps) { debt_ += steps; }
  double plain_seconds() const { return plain_seconds_; }  // of a step, as it was last decided
  bool alone() const { return members_.size() < 2; }
  bool finds() const { return finds_; }

 private:
  void learn_acceptance(int32_t drafted, int32_t accepted);
  void settle(const CostModel& cost, double plain_seconds, int64_t context, Trial trial);
  void settle_shadows(const CostModel& cost, int64_t context);
  GoodputChoice best_choice(const CostModel& cost, int64_t context, double plain_seconds);
  void choose(const CostModel& cost, int64_t context, const GoodputChoice& best, bool all_chosen);
  double rate_of_present(const CostModel& cost, int64_t context) const;
  void consider_trial(const CostModel& cost, double plain_seconds, double best_rate);
  void consider_rehearsal(const CostModel& cost);
  int32_t choose_explorers();
  double shadow_seconds(const CostModel& cost, double plain_seconds) const;

  EwmaOptions options_;
  std::vector<EwmaGamma*> members_;
  AcceptanceEwma shared_;  // of all sequences, decayed by the step
  bool finds_ = false;     // all have drafters that end their drafts themselves: a gamma says whether to ask
  FoundDrafts found_;
  bool stale_ = true;

  // Trials of what is not done now have a budget: other steps earn 1 % of their time, down to a quarter of
  // that after trials of drafts that found nothing, since all that was written must be read for one; a trial
  // is charged what it lost. Drafts that were accepted pay for themselves.
  double credit_ = 0;
  bool off_ = false;                                          // nobody drafts, trials apart
  Trial trial_ = Trial::kNone, trial_before_ = Trial::kNone;  // of the last decision, and of the one before
  int32_t fruitless_ = 0;       // trials of drafts in a row after which nobody drafted
  int32_t since_plain_ = 1021;  // steps; nothing is known at first, so the first trial is soon
  int32_t plain_left_ = 0;      // steps of a plain trial that are to come
  bool plain_tried_ = false;
  double trial_rate_ = 0;  // of what a plain trial stood in for
  struct Step {
    int32_t rounds = 0, accepted = 0, drafted = 0, longest = 0;  // longest: 1 at least if somebody waited
    void add(int32_t drafted_tokens, int32_t accepted_tokens, bool waited);
    double tokens() const { return 1 + static_cast<double>(accepted) / rounds; }  // of a sequence
    double seconds(const CostModel& cost, int64_t context) const;
  } step_, shadow_;        // since the last decision
  int32_t uncharged_ = 0;  // drafted steps while their cost is doubted

  // A drafter that was not heard of for a while is behind with its reading, and may be slow, far or dead. So
  // it makes a shadow draft before a round waits for it; where that can be tested, trials are nothing else.
  Shadows shadows_ = Shadows::kNone;  // the least that any sequence can have
  bool shadow_out_ = false;
  bool rehearses_ = false;
  int32_t since_draft_ = kRehearsedFor;  // steps since the last draft or shadow
  static constexpr int32_t kRehearsedFor = 4;

  // How far ahead of plain decoding the batch is, in plain steps. While it is behind nobody drafts, trials
  // apart: so whatever the estimates say, what drafting has lost stays below the start, and 1 % of the plain
  // steps since.
  double standing_ = kStartStanding;
  double debt_ = 0;           // for prompts, not yet taken from it
  double plain_seconds_ = 0;  // of a step, as it was last decided; no measure until a pass was
  bool in_seconds_ = false;
  double explorers_reading_ = 0;  // seconds
  static constexpr double kStartStanding = 1.5;

  // Scratch.
  std::vector<double> acceptance_;
  std::vector<int32_t> limits_;
  std::vector<UnreadPrompt> unread_;
};

using EwmaBatches = ByGroup<EwmaBatch>;

class EwmaGamma : public GammaPolicy {
 public:
  explicit EwmaGamma(const EwmaOptions& options, std::shared_ptr<EwmaBatches> batches = nullptr);
  ~EwmaGamma() override;
  int32_t next(const GammaContext& context) override;
  void update(const RoundOutcome& outcome) override;
  int32_t longest_found() const override { return batch_->finds() ? options_.found_max : 0; }
  int32_t shadow() const override;
  void observe_shadow(int32_t drafted, int32_t accepted) override;

  double acceptance() const { return acceptance_.mean(); }
  double estimate() const;                   // own evidence, and that of the batch
  int32_t chosen() const { return gamma_; }  // without probes

 private:
  friend class EwmaBatch;
  void join(int32_t group);
  void learn(int32_t drafted, int32_t accepted);
  void leave();
  int32_t length();
  void read();
  // A draft that nobody waits for is being made, after its prompt.
  bool is_read_aside() const { return unread_.seconds > 0 && shadow_out_; }
  void watch_for_change(int32_t drafted, int32_t accepted);

  EwmaOptions options_;
  std::shared_ptr<EwmaBatches> batches_;
  EwmaBatch* batch_;  // of the group that it runs in
  AcceptanceEwma acceptance_;
  bool joined_ = false;
  int32_t gamma_ = -1;  // none chosen yet
  int32_t limit_ = 0, context_ = 0;
  bool early_ = false;
  Shadows shadows_ = Shadows::kNone;
  bool shadow_out_ = false;
  bool found_ = false;
  UnreadPrompt unread_;
  bool explores_ = false;  // makes the drafts of a trial, or the first ones
  // A prompt that was read is charged, in plain steps, as the text grows that it was read for.
  double owed_ = 0;
  int32_t owed_tokens_ = 0;
  int32_t zeros_ = 0;   // rounds in a row without an accepted token
  int32_t streak_ = 0;  // tokens in a row without a rejection
  int32_t idle_ = 0;    // rounds in a row without a draft while others had one
};

}  // namespace outrider
