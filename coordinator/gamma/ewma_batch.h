// Joint decisions of the sequences of one ewma policy. The sequences of a target group wait for each other's
// drafts and share each pass, so there is one decision for all sequences, renewed after every step and
// whenever a sequence joins. Also holds the starting estimates of new sequences.
#pragma once

#include <vector>

#include "coordinator/gamma/acceptance.h"
#include "coordinator/gamma/by_group.h"
#include "coordinator/gamma/found_drafts.h"
#include "coordinator/gamma/goodput.h"
#include "coordinator/gamma/standing.h"
#include "coordinator/gamma/trials.h"

namespace outrider {

struct EwmaOptions {
  int32_t max = kDefaultGammaMax;
  int32_t suffix_match_max = 64;  // limit of a draft found in the text, ended where rows stop paying
  double decay = 0.95;
  double prior_mean = 0.7, prior_tests = 10;
  double switch_gain = 0.01;  // least predicted gain that changes lengths
  double surprise = 0.005;    // chance of a run of rounds at which the evidence is halved; 0: never
  double shrink = 1000;       // weight of the batch in a sequence's estimate, in tests
  bool trials = true;         // trials of the choice not in use: plain steps or drafts
};

// One sequence of the batch.
struct EwmaMember {
  // A probe draft is being made, after the prefill of its prompt.
  bool is_read_aside() const { return unread.seconds > 0 && probe_draft_out; }

  // Inputs, set before each decision.
  AcceptanceEwma acceptance;
  int32_t limit = 0, context = 0;
  bool early = false;
  ProbeDraftMode probe_drafts = ProbeDraftMode::kNone;
  bool probe_draft_out = false;
  bool local = false;  // the drafter is in this process; the only sequence, or its speed was measured
  bool found = false;
  UnreadPrompt unread;
  // Decisions.
  int32_t gamma = -1;     // none chosen yet
  bool explores = false;  // makes the drafts of a trial, or the first ones
};

class EwmaBatch {
 public:
  explicit EwmaBatch(const EwmaOptions& options);
  void join(EwmaMember* member);
  void leave(EwmaMember* member);
  // The number of sequences that join after their prefill on the target.
  void expect_members(int32_t count) { expected_members_ = count; }
  // The drafter's prefill for the newest sequence. The price for an expected sequence is assumed to be equal.
  void expect_unread(const UnreadPrompt& unread) { usual_unread_ = unread; }
  void decide(const CostModel& cost);  // unless nothing happened since
  void learn(const RoundOutcome& outcome);
  void learn_probe_draft(int32_t drafted, int32_t accepted);
  double mean() const { return shared_.mean(); }
  double estimate(const EwmaMember& member) const;  // its own evidence, and that of the batch
  bool off() const { return trials_.off(); }
  Trials::Kind trial() const { return trials_.now(); }
  // True if this step is plain and probe drafts are made.
  bool rehearses() const { return rehearses_; }
  // Charges plain steps for the prefill of a prompt.
  void charge(double steps) { standing_.charge(steps); }
  double plain_seconds() const { return plain_seconds_; }  // of a step, at the last decision
  bool alone() const { return members_.size() < 2; }
  bool finds() const { return finds_; }

 private:
  struct Step {
    void add(int32_t drafted_tokens, int32_t accepted_tokens, bool waited);
    double tokens() const { return 1 + static_cast<double>(accepted) / rounds; }  // of a sequence
    double seconds(const CostModel& cost, int64_t context) const;

    int32_t rounds = 0, accepted = 0, drafted = 0, longest = 0;  // longest: at least 1 if a round waited
  };
  void learn_acceptance(int32_t drafted, int32_t accepted);
  void settle(const CostModel& cost, int64_t context, Trials::Kind trial);
  void settle_probe_drafts(const CostModel& cost, int64_t context);
  GoodputChoice best_choice(const CostModel& cost, int64_t context);
  void drop_unpaid_prefills(const CostModel& cost, int64_t context);
  void choose(const CostModel& cost, int64_t context, const GoodputChoice& best, bool all_chosen);
  bool drafts_could_pay(const CostModel& cost, int64_t context) const;
  double rate_of_present(const CostModel& cost, int64_t context) const;
  void consider_trial(const CostModel& cost, double best_rate);
  void consider_rehearsal(const CostModel& cost);
  int32_t choose_explorers();
  bool is_first_contact(const CostModel& cost) const;
  double probe_draft_seconds(const CostModel& cost) const;

  EwmaOptions options_;
  std::vector<EwmaMember*> members_;
  AcceptanceEwma shared_;  // of all sequences, decayed by the step
  bool finds_ = false;     // all drafters end their drafts themselves: gamma only says whether to ask
  FoundDrafts found_;
  Step step_, probe_draft_;  // since the last decision
  Trials trials_;
  Standing standing_;
  bool stale_ = true;
  bool is_hopeless_ = false;  // at these costs no acceptance would make drafts pay
  int32_t expected_members_ = 0;
  UnreadPrompt usual_unread_;

  // A drafter without messages for a while has fallen behind with its prefill, and may be slow, far or dead.
  // So it makes a probe draft before a round waits for it. Where probe drafts can be tested, trials are
  // probe drafts only.
  ProbeDraftMode probe_drafts_ = ProbeDraftMode::kNone;  // the least that any sequence can have
  bool probe_draft_out_ = false;
  bool rehearses_ = false;
  int32_t since_draft_ = kRehearsedFor;  // steps since the last draft or probe draft
  static constexpr int32_t kRehearsedFor = 4;

  double plain_seconds_ = 0;  // of a step, at the last decision; no measure before the first pass
  bool in_seconds_ = false;
  double explorers_prefill_ = 0;  // seconds

  // Scratch.
  std::vector<double> acceptance_;
  std::vector<int32_t> limits_;
  std::vector<UnreadPrompt> unread_;
};

using EwmaBatches = ByGroup<EwmaBatch>;

}  // namespace outrider
