// Drafts that branch: every pass looks behind those nodes of the tree that are to have children. Under match
// rules a tree may grow on while it is verified. What was found is a function of the text and its positions,
// so what grew behind the token that the text went on with is the next draft. Internal to the model drafter.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "draft_worker/drafting_state.h"
#include "draft_worker/token_drawing.h"
#include "heads/branch_confidence.h"

namespace outrider {

class TreeRounds {
 public:
  // Both must outlive it.
  TreeRounds(DraftingState& state, TokenDrawing& drawing) : state_(state), drawing_(drawing) {}

  // What the last tree was good for is known once the text has gone on.
  void learn_from_text(DraftedSequence& s);
  // Whether the tree that grew on meanwhile has the text's last token, and what is behind it. Then that is
  // the root now, and the sequence's cache is the one that led there.
  bool regrow(DraftedSequence& s, const Propose& propose);
  // The round under way branches; `regrown`: it begins with what regrow() found.
  void begin(DraftedSequence& s, const Propose& propose, bool regrown);

  // Appends a slice of one row for each node that this pass looks behind.
  void add_looks(DraftedSequence& s, GrowingTree& tree, int64_t rows, int64_t logit_rows,
                 std::vector<BatchSlice>& slices);
  // Asks the device about them, from this row of the pass on, or about the row of the text's last token.
  void rank_looks(const DraftedSequence& s, const GrowingTree& tree, const StrandKey& key, int64_t row,
                  RankedPass& ranked);
  void rank_root(const DraftedSequence& s, int64_t row, RankedPass& ranked);
  // What came of them, from this row of the pass on; and of the row of the text's last token.
  void take_looks(DraftedSequence& s, GrowingTree& tree, const StrandKey& key, int64_t row);
  Status take_root(DraftedSequence& s, int64_t row);
  // Trees of this pass are drafted as far as they got. False: there was none that grows.
  bool stop_growth(std::span<const PassPart> parts);

  // The round's tree is the draft; it may grow on from now.
  void finish(DraftedSequence& s, Draft& draft, std::chrono::steady_clock::time_point now);
  // One pass of at most `rows` for the trees that grow on while they are verified; with `ranked` its rows are
  // ranked on the device. False: none does, or all have grown enough.
  bool grow_on(int64_t rows, RankedPass* ranked);
  // No verdict will need the last tree, beyond what it taught.
  void drop(DraftedSequence& s);
  // Drops all that grow on. False: they hold no keys and values.
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
