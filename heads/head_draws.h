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
#include "kernels/sampling/draft_sampler.h"

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

  // A chain that gets its next tokens.
  struct Chain {
    const HeadTask* task = nullptr;
    HeadDraft* draft = nullptr;
    int64_t row = 0;      // of the logits of the next one
    int32_t most = 1;     // that it may get at once
    int32_t tokens = 1;   // that it gets at once, or fewer
    bool goes_on = true;  // what draw() below says of the last one
  };
  // Computes the logits of chains' next tokens from the tokens drawn where the head computes.
  class Steps {
   public:
    virtual ~Steps() = default;
    // Announces the chains. False: there is no room for them, and nothing changed.
    virtual bool begin(std::span<const Chain> chains) = 0;
    // Queues the work that computes logits for the first chains, and returns the rows of logits.
    virtual FloatRows next(std::span<Chain> chains, HeadSampler& drawn) = 0;
  };
  // As below, for several chains, from rows of logits where the head computes. With `steps`, which wants
  // chains that may get more tokens first, these get several where a device draws: the host waits for the
  // last ones, or, where a rule may end drafts early, for each. Returns how many a chain may have got.
  int32_t draw(std::span<Chain> chains, FloatRows logits, Steps* steps = nullptr);
  // Records the steps, for up to `chains` chains, before the first draw. For steps that queue the same work
  // each time.
  void record(Steps& steps, int64_t chains);

  // Whether draw() above drew where the head computes, the last time, and how long the tokens behind the
  // first ones took there.
  bool drew_there() const { return drew_there_; }
  int64_t ns_behind_first() const { return ns_behind_first_; }

  // Adds a token to the draft from its row of logits. False: the draft ends before it (the row is not finite,
  // or the stop rule says so), or with it.
  bool draw(const HeadTask& task, std::span<const float> logits, HeadDraft& draft);
  // As draw() for one token that was drawn elsewhere with step_of(); empty: the row was not finite. The
  // distribution it was drawn from is in the draft already.
  bool take(const HeadTask& task, std::optional<TokenId> token, const DraftConfidence& confidence,
            HeadDraft& draft) const;
  DraftStep step_of(const HeadTask& task, const HeadDraft& draft) const;

  // A tree for a task that branches, whose paths have `depth` tokens at most.
  void begin_tree(const HeadTask& task, int32_t depth, HeadTree& tree);
  // A node, or the root, of a task's tree, and the row of logits that says what stands behind it.
  struct Look {
    const HeadTask* task = nullptr;
    HeadTree* tree = nullptr;
    int32_t node = kTreeRoot;
    int64_t row = 0;
  };
  // Finds children in rows of logits where the head computes: the best tokens or, under rules with q, drawn
  // ones. A row that is not finite has no children. The host waits once for all rows that are ranked there.
  // Rows that cannot be ranked there (rules with q, or no room) are fetched to the host, all rows at once:
  // `here` has them afterwards, for later looks at the same rows.
  void look_behind(std::span<const Look> looks, FloatRows logits, FloatRows& here);
  void look_behind(std::span<const Look> looks, FloatRows logits) {
    FloatRows here;
    look_behind(looks, logits, here);
  }
  // Moves the grown tree into the draft and, under rules with q, the rows from which children were drawn, in
  // Draft's order.
  static void take_tree(HeadTree& tree, HeadDraft& draft);

 private:
  void spread(std::span<const float> logits);
  int32_t draw_there(std::span<Chain> chains, FloatRows logits, Steps* steps);
  int32_t plan(std::span<Chain> chains, Steps* steps);
  void queue_draw(std::span<const Chain> chains, FloatRows logits);
  void queue_step(std::span<Chain> chains, Steps& steps);
  void take_drawn(std::span<Chain> chains, int32_t first, int32_t end);
  DraftStep step_behind(const Look& look, std::span<const TokenId> path) const;
  size_t look_there(std::span<const Look> looks, FloatRows logits);
  void look_here(const Look& look, std::span<const float> logits);
  void add(const Look& look, std::span<const RankedToken> best);
  void draw_children(const Look& look, const DraftStep& step);
  void end_texts(HeadTree& tree, int32_t first);
  bool ends(TokenId id) const;

  const std::span<const TokenId> target_ids_;
  const std::vector<TokenId> eos_ids_;
  std::unique_ptr<Collectives> single_;
  DraftSampler sampler_;
  HeadCompute* compute_ = nullptr;                       // of the head, and
  std::unique_ptr<HeadSampler> device_sampler_;          // where that is a device
  std::vector<std::unique_ptr<RecordedWork>> recorded_;  // steps, by chains
  bool drew_there_ = false;
  int64_t ns_behind_first_ = 0;
  TokenGuesser guesser_;
  std::array<BranchConfidence, kRuleCount> confidence_;  // by rule
  std::vector<float> logits_;                            // of the target's whole vocabulary
  std::vector<TokenId> path_, drawn_;
  std::vector<HeadSampler::Row> asked_;  // of one draw
  std::vector<int32_t> row_numbers_;     // of one step
  // Scratch of one call for nodes of trees.
  std::vector<Look> looks_;
  std::vector<TokenLook> ranked_;
  std::vector<size_t> ranked_as_;            // by look: its index in ranked_
  std::vector<std::vector<TokenId>> paths_;  // to ranked nodes
};

}  // namespace outrider
