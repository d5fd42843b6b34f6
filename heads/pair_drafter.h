// Drafts of a head over pairs, one token a pass, or the children of some nodes. Rows of drafted tokens are
// dropped before the next draft. A node's cache is a copy-on-write fork of its parent's, or, for the first
// child that is looked behind, that cache itself.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "heads/head_draws.h"
#include "heads/pair_head.h"

namespace outrider {

class PairDrafter final : public HeadDrafter, private HeadDraws::Steps {
 public:
  PairDrafter(PairHead& head, HeadDrafterOptions options);
  ~PairDrafter() override;

  void draft(std::span<const HeadTask> tasks, HiddenStateSource& hidden_states,
             std::vector<HeadDraft>& drafts) override;
  void close(SequenceId sequence) override;
  int64_t ingest_ns() const override { return ingest_ns_; }
  int64_t draft_ns() const override { return draft_ns_; }

 private:
  struct Sequence {
    KvHandle kv;
    int64_t read = 0;  // pairs of committed states and tokens
    // State of a tree draft, until it is finished.
    HeadTree tree;
    std::vector<KvHandle> kv_of, forks;  // by node, where it was looked behind; and those that are not shared
    std::vector<char> extended;          // by node, the root first: a child took its cache over
    std::vector<int32_t> place_of;       // by node, the root first: its output is this row of outputs_
  };
  struct Work {
    const HeadTask* task = nullptr;
    HeadDraft* draft = nullptr;
    Sequence* sequence = nullptr;
    int32_t row = -1;  // of states_, where a chain's last output is; -1: not begun to draft
    bool done = false;
  };
  Sequence& begin(SequenceId id);
  bool collect(HiddenStateSource& hidden_states);
  void add_pairs(Work& work, HiddenStateSource& hidden_states);
  void begin_tree(const Work& work);
  void add_nodes(Work& work);
  KvHandle cache_before(const Work& work, int32_t node);
  void take_node(Work& work, int32_t node, FloatRows state, int64_t row);
  void finish_tree(Work& work);
  FloatRows next_inputs(int64_t count) { return inputs_.from(rows_, count); }
  void take_rows(const PairHead::Rows& rows);
  void draw(FloatRows logits);
  bool begin(std::span<const HeadDraws::Chain> chains) override;
  FloatRows next(std::span<HeadDraws::Chain> chains, HeadSampler& drawn) override;
  Work& work_of(const HeadDraws::Chain& chain) {
    return works_[static_cast<size_t>(chain.task - works_.front().task)];
  }
  int64_t room(const Work& work) const;

  PairHead& head_;
  const int32_t max_sequences_;
  HeadDraws draws_;
  std::map<SequenceId, Sequence> sequences_;
  int64_t ingest_ns_ = 0, draft_ns_ = 0;

  // Buffers of one draft().
  std::vector<Work> works_;
  std::vector<Work*> parts_;  // of the pass, by slice
  std::vector<PairSlice> slices_;
  std::vector<HeadDraws::Chain> chains_;
  std::vector<HeadDraws::Look> looks_;
  std::vector<PairHead::Ahead> ahead_;
  std::vector<int32_t> nodes_;         // of the pass, by slice: behind which it looks, in a tree
  std::vector<TokenId> node_tokens_;   // of the pass
  int64_t rows_ = 0, logit_rows_ = 0;  // of the pass
  int64_t tree_blocks_ = 0;            // that nodes may have taken
  int64_t outputs_taken_ = 0;
  RowBuffer inputs_;         // [rows of a pass, hidden]
  RowBuffer hidden_states_;  // [sequences, hidden]: last outputs of chains
  RowBuffer outputs_;        // [nodes that are looked behind, hidden]: of trees
};

}  // namespace outrider
