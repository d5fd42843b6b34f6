// From a row of a head's logits to drafted tokens, for every kind of head: as any drafter draws, on the
// target's ids. A chain gets one, a node of a tree its children.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "comm/collectives.h"
#include "heads/head_drafter.h"
#include "heads/token_guesses.h"
#include "heads/tree_growth.h"
#include "transformer/sampling/draft_sampler.h"

namespace outrider {

// The last tree of a sequence. Its text goes on from there, and teaches how far to trust the head.
struct HeadTree {
  TreeGrowth growth;
  size_t base = 0;         // committed tokens that it stood behind; 0: there was none
  std::vector<QRow> q_of;  // what the children of a node were drawn from, the root's first; of rules with q
};

class HeadDraws {
 public:
  // `target_ids` of the rows of logits, which must stay where they are; empty: all ids in order.
  HeadDraws(int64_t vocab_size, std::span<const TokenId> target_ids, std::vector<TokenId> eos_ids);
  // Where the head computes, as far as it can.
  HeadDraws(const Head& head, std::vector<TokenId> eos_ids);

  // A chain, and its row of logits.
  struct Chain {
    const HeadTask* task = nullptr;
    HeadDraft* draft = nullptr;
    int64_t row = 0;
    bool goes_on = false;  // what draw() below says
  };
  // As below, for several rows of logits where the head computes.
  void draw(std::span<Chain> chains, FloatRows logits);

  // Adds a token to the draft from its row of logits. False: the draft ends before it (the row is not finite,
  // or the stop rule says so), or with it.
  bool draw(const HeadTask& task, std::span<const float> logits, HeadDraft& draft);

  // A tree for a task that branches, whose paths have `depth` tokens at most.
  void begin_tree(const HeadTask& task, int32_t depth, HeadTree& tree);
  // Finds the children of a node, or the root's, in its row of logits: the best tokens, or, under rules with
  // q, drawn ones. Where that is not finite there are none.
  void look_behind(const HeadTask& task, int32_t node, std::span<const float> logits, HeadTree& tree);
  // What has grown, and under rules with q the rows that children were drawn from, as Draft has them.
  static void take_tree(HeadTree& tree, HeadDraft& draft);

 private:
  void spread(std::span<const float> logits);
  DraftStep step_of(const HeadTask& task, const HeadDraft& draft) const;
  // A token that was drawn, and what it was drawn from.
  bool take(const HeadTask& task, std::optional<TokenId> token, const DraftConfidence& confidence,
            HeadDraft& draft) const;
  void draw_children(const HeadTask& task, int32_t node, const DraftStep& step, HeadTree& tree);
  bool ends(TokenId id) const;

  const std::span<const TokenId> target_ids_;
  const std::vector<TokenId> eos_ids_;
  std::unique_ptr<Collectives> single_;
  DraftSampler sampler_;
  HeadCompute* compute_ = nullptr;               // of the head, and
  std::unique_ptr<HeadSampler> device_sampler_;  // where that is a device
  TokenGuesser guesser_;
  std::array<BranchConfidence, kRuleCount> confidence_;  // by rule
  std::vector<float> logits_;                            // of the target's whole vocabulary
  std::vector<TokenId> path_, drawn_;
  std::vector<HeadSampler::Row> asked_;  // of one draw
};

}  // namespace outrider
