// Drafts that branch: every pass computes the children of some nodes of the tree. Under match rules a tree
// may grow during its verification. Each result is a function of the text and its positions, so the subtree
// of the token that the text went on with is the next draft. Internal to the model drafter.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "draft_worker/model/drafting_state.h"
#include "draft_worker/model/token_drawing.h"
#include "heads/branch_confidence.h"

namespace outrider {

class TreeRounds {
 public:
  // Both must outlive it.
  TreeRounds(DraftingState& state, TokenDrawing& drawing) : state_(state), drawing_(drawing) {}

  // Learns from the last tree, once the text has gone on.
  void learn_from_text(DraftedSequence& s);
  // True if the tree that grew meanwhile contains the text's last token and its children. That node becomes
  // the root, and its cache the sequence's.
  bool regrow(DraftedSequence& s, const Propose& propose);
  // Begins a round that branches; `regrown`: from the tree of regrow().
  void begin(DraftedSequence& s, const Propose& propose, bool regrown);

  // Appends a slice of one row for each node whose children this pass computes.
  void add_looks(DraftedSequence& s, GrowingTree& tree, int64_t rows, int64_t logit_rows,
                 std::vector<BatchSlice>& slices);
  // Queues ranking on the device: rank_looks() for the nodes of this pass, whose logits begin at `row`;
  // rank_root() for the text's last token.
  void rank_looks(const DraftedSequence& s, const GrowingTree& tree, const StrandKey& key, int64_t row,
                  RankedPass& ranked);
  void rank_root(const DraftedSequence& s, int64_t row, RankedPass& ranked);
  // Takes the results for the nodes, from this row of the pass on; take_root(): for the text's last token.
  void take_looks(DraftedSequence& s, GrowingTree& tree, const StrandKey& key, int64_t row);
  Status take_root(DraftedSequence& s, int64_t row);
  // Ends the growth of the trees of this pass. False: no tree was growing.
  bool stop_growth(std::span<const PassPart> parts);

  // Makes the round's tree the draft; it may grow from now on.
  void finish(DraftedSequence& s, Draft& draft, std::chrono::steady_clock::time_point now);
  // Does one pass of at most `rows` rows for the trees that grow during verification; `ranked`: ranks its
  // rows on the device. False: no tree grows, or all have grown enough.
  bool grow_on(int64_t rows, RankedPass* ranked);
  // Drops the last tree, which no verdict will need; its statistics stay.
  void drop(DraftedSequence& s);
  // Drops all growing trees, to free KV blocks. False: they hold none.
  bool give_up();

 private:
  KvHandle cache_before(DraftedSequence& s, GrowingTree& tree, int32_t node);
  DraftStep step_behind(const DraftedSequence& s, const GrowingTree& tree, const StrandKey& key,
                        int32_t node);
  bool look_behind(DraftedSequence& s, GrowingTree& tree, const StrandKey& key, int32_t node, int64_t row);
  bool draw_behind(DraftedSequence& s, GrowingTree& tree, const StrandKey& key, int32_t node, int64_t row,
                   const DraftStep& step);
  static void take_rows(GrowingTree& tree, std::span<const int32_t> order, Draft& draft);
  BranchConfidence& confidence_of(const DraftedSequence& s) {
    return confidence_[static_cast<size_t>(s.sampling.rule)];
  }

  DraftingState& state_;
  TokenDrawing& drawing_;
  std::array<BranchConfidence, kRuleCount> confidence_;  // by rule

  // Buffers of one pass.
  std::vector<BatchSlice> slices_;
  std::vector<PassPart> parts_;
  std::vector<TokenId> path_;  // of step_behind()
};

}  // namespace outrider
