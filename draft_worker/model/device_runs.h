// Rounds and branches whose tokens the model's device draws. Rounds advance by as many tokens at a time as
// need no check on the host; branches by one, so that a Propose never waits for more. Internal to the model
// drafter.
#pragma once

#include <memory>
#include <vector>

#include "draft_worker/model/drafting_state.h"
#include "draft_worker/model/ranked_pass.h"
#include "draft_worker/model/token_drawing.h"
#include "model/token_runner.h"

namespace outrider {

class DeviceRuns {
 public:
  // Both must outlive it.
  DeviceRuns(DraftingState& state, TokenDrawing& drawing, std::unique_ptr<TokenRunner> runner)
      : state_(state), drawing_(drawing), runner_(std::move(runner)) {}

  // Collects the remaining work of every current round, or a part of a prompt. False: there is none, or these
  // rounds run on the host.
  bool collect_rounds();
  Status run_rounds();
  size_t count() const { return runs_.size(); }
  DraftedSequence& sequence(size_t run) { return *parts_[run].sequence; }
  // After a successful run: takes the tokens up to the completion of the round. Later tokens leave no trace.
  Status take_round(size_t run);
  // Marks a round that was not taken, or is not finite: it gets no share of the pass's time.
  void failed(size_t run) { parts_[run].failed = true; }
  // All rounds were taken, in a pass of `total_ns`; the next run overwrites their results.
  void end_rounds(bool ran, int64_t total_ns);

  void begin_branches() { runs_.clear(); }
  void add_branch(const DraftedSequence& s, const Strand& strand, const BatchSlice& slice);
  // The number of branches, from the first one on, that fit into one run.
  size_t fit_branches();
  Status run_branches() { return runner_->run(runs_, false); }
  void take_branch(DraftedSequence& s, Strand& strand, size_t run);

  // Passes whose rows the host does not see.
  RankedPass& ranked() { return ranked_; }

 private:
  // A sequence's part of a run.
  struct Part {
    DraftedSequence* sequence;
    bool drafts_on;  // its strand had tokens before this pass
    bool failed = false;
  };
  static StopKind stop_of(const Part& part) { return part.sequence->job->strand.stop.kind; }
  void take_q(const DraftedSequence& s, Strand& strand, size_t run, size_t token);
  void share_time(int64_t total_ns);

  DraftingState& state_;
  TokenDrawing& drawing_;
  const std::unique_ptr<TokenRunner> runner_;
  RankedPass ranked_{*runner_};
  std::vector<TokenRun> runs_;
  std::vector<Part> parts_;  // of rounds
};

}  // namespace outrider
