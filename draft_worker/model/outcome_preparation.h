// Drafts for likely outcomes of drafts that are being verified. A branch is a copy-on-write fork of its
// sequence's cache; the Propose with its outcome turns it into the round. Internal to the model drafter.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "draft_worker/model/device_runs.h"
#include "draft_worker/model/drafting_state.h"
#include "draft_worker/model/outcome_statistics.h"
#include "draft_worker/model/token_drawing.h"
#include "draft_worker/model/tree_rounds.h"

namespace outrider {

class OutcomePreparation {
 public:
  // All must outlive it. `runs`: null if the host draws all tokens.
  OutcomePreparation(DraftingState& state, TokenDrawing& drawing, TreeRounds& trees,
                     std::optional<DeviceRuns>& runs)
      : state_(state), drawing_(drawing), trees_(trees), runs_(runs) {}

  // The current round's draft was sent: begins the preparation for its verification.
  void sent(DraftedSequence& s, std::span<const TokenId> ids, std::chrono::steady_clock::time_point now);
  // A verdict came. True: a branch became the round; else the round is empty.
  bool resume(DraftedSequence& s, const Propose& propose);
  void drop(DraftedSequence& s);

  // Does one pass for branches. False: no branch is worth it.
  bool prepare();
  // Frees the KV blocks of branches for rounds. False: there were none.
  bool give_up_branches();
  // Limit of rows in one preparing pass; a longer pass would delay a Propose too much.
  int64_t max_rows() const;

 private:
  // A part of a preparing pass: the next token of a branch, or (kReadBlock) the tokens of the block once
  // more, for the model's guesses of the tokens after them.
  static constexpr int32_t kReadBlock = -1;
  struct Part {
    double probability;
    int32_t order;  // breaks ties of probability
    DraftedSequence* sequence;
    int32_t branch;
    int32_t rows;
  };

  bool observe(DraftedSequence& s, std::span<const TokenId> outcome);
  static TokenId prepared_guess(const DraftedSequence& s, std::span<const TokenId> outcome);
  void adopt(DraftedSequence& s, PreparedBranch& branch, const Propose& propose);
  void plan(DraftedSequence& s);
  void add_branch(DraftedSequence& s, const Outcome& outcome);
  void collect_parts();
  void add_part(double probability, DraftedSequence& s, int32_t branch, int32_t rows);
  void limit_parts();
  bool awaits_verdict() const;
  BatchSlice slice_of(const Part& part);
  Status extend_parts();
  void take_parts();
  bool collect_runs();
  Status run_branches();
  void take_guesses(DraftedSequence& s, int64_t row);
  static Strand& strand_of(const Part& part) {
    return part.sequence->block->branches[static_cast<size_t>(part.branch)].strand;
  }
  OutcomeStatistics& statistics_of(const DraftedSequence& s) {
    return statistics_[static_cast<size_t>(s.sampling.rule)];
  }

  DraftingState& state_;
  TokenDrawing& drawing_;
  TreeRounds& trees_;
  std::optional<DeviceRuns>& runs_;
  std::array<OutcomeStatistics, kRuleCount> statistics_;  // by rule

  // Buffers of one pass.
  std::vector<Part> parts_;
  std::vector<BatchSlice> slices_;
  std::vector<double> probabilities_;
  std::vector<Outcome> outcomes_;
};

}  // namespace outrider
