// Drafts of a DFlash head: one pass gives all tokens of a draft, or the candidates of every depth of a tree.
// The pass's output does not depend on how many tokens are wanted.
#pragma once

#include <map>
#include <vector>

#include "heads/block_head.h"
#include "heads/head_draws.h"

namespace outrider {

class BlockDrafter final : public HeadDrafter, private HeadDraws::Steps {
 public:
  BlockDrafter(BlockHead& head, HeadDrafterOptions options);
  ~BlockDrafter() override;

  void draft(std::span<const HeadTask> tasks, HiddenStateSource& hidden_states,
             std::vector<HeadDraft>& drafts) override;
  void close(SequenceId sequence) override;
  int64_t ingest_ns() const override { return ingest_ns_; }
  int64_t draft_ns() const override { return draft_ns_; }

 private:
  struct Sequence {
    KvHandle kv;  // of the states that were read
    HeadTree tree;
  };
  struct Work {
    const HeadTask* task = nullptr;
    HeadDraft* draft = nullptr;
    Sequence* sequence = nullptr;
    bool done = false;
  };
  // The tree whose candidates come from the logits' rows `row` and up.
  struct Tree {
    const Work* work = nullptr;
    int64_t row = 0;
  };
  Sequence& begin(SequenceId id);
  int64_t known_hidden_states(const Work& work) const {
    return static_cast<int64_t>(work.task->committed.size()) - 1;
  }
  int64_t wanted(const HeadTask& task) const { return std::min<int64_t>(task.gamma, head_.block_tokens()); }
  bool collect(HiddenStateSource& hidden_states);
  void add(Work& work, HiddenStateSource& hidden_states);
  void take(FloatRows logits);
  void draw_chains(FloatRows logits);
  bool begin(std::span<const HeadDraws::Chain>) override { return head_.knows_drawn(); }
  FloatRows next(std::span<HeadDraws::Chain> chains, HeadSampler& drawn) override;
  void grow(FloatRows logits);
  void look_behind(FloatRows logits, FloatRows& here);

  BlockHead& head_;
  const int32_t max_sequences_;
  HeadDraws draws_;
  std::map<SequenceId, Sequence> sequences_;
  int64_t ingest_ns_ = 0, draft_ns_ = 0;

  // Buffers of one draft().
  std::vector<Work> works_;
  std::vector<Work*> parts_;  // of the pass, by slice
  std::vector<BlockSlice> slices_;
  FloatRows logits_;                      // of the pass
  std::vector<HeadDraws::Chain> chains_;  // longest first
  std::vector<TokenId> before_;           // of chains_, the last token; or of looks_, the node's
  std::vector<int64_t> before_rows_;      // theirs
  std::vector<Tree> trees_;
  std::vector<HeadDraws::Look> looks_;  // of one depth
  int64_t rows_ = 0;                    // of the pass, of states and blocks
  int64_t hidden_state_rows_ = 0, blocks_ = 0;
  RowBuffer inputs_;  // [states of a pass, hidden]
};

}  // namespace outrider
