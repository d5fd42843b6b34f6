// Rounds and branches whose tokens the model's device draws: rounds advance by as many tokens at a time as
// nobody has to look at, branches by one, so that a Propose waits for no more. Internal to the model drafter.
#pragma once

#include <memory>
#include <vector>

#include "draft_worker/drafting_state.h"
#include "draft_worker/ranked_pass.h"
#include "draft_worker/token_drawing.h"
#include "transformer/model/token_runner.h"

namespace outrider {

class DeviceRuns {
 public:
  // Both must outlive it.
  DeviceRuns(DraftingState& state, TokenDrawing& drawing, std::unique_ptr<TokenRunner> runner)
      : state_(state), drawing_(drawing), runner_(std::move(runner)) {}

  // What is left of every round that is under way, or a part of a prompt. False: nothing is, or these rounds
  // are the host's.
  bool collect_rounds();
  Status run_rounds();
  size_t count() const { return runs_.size(); }
  DraftedSequence& sequence(size_t run) { return *parts_[run].sequence; }
  // Of a run that succeeded, the tokens up to where the round is complete; what is beyond leaves no trace.
  Status take_round(size_t run);
  // A round that was not taken, or is not finite: the time of the pass is not its own.
  void failed(size_t run) { parts_[run].failed = true; }
  // All were taken, in a pass of so long; the next run overwrites what was read.
  void end_rounds(bool ran, int64_t total_ns);

  void begin_branches() { runs_.clear(); }
  void add_branch(const DraftedSequence& s, const Strand& strand, const BatchSlice& slice);
  // How many of them, the first ones, fit into one run.
  size_t fit_branches();
  Status run_branches() { return runner_->run(runs_, false); }
  void take_branch(DraftedSequence& s, Strand& strand, size_t run);

  // Passes whose rows the host does not see.
  RankedPass& ranked() { return ranked_; }

 private:
  // A sequence's part of a run.
  struct Part {
    DraftedSequence* sequence;
    bool drafts_on;  // it had tokens already
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
