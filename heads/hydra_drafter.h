// Drafts of a Hydra head: branch after branch, each over the tokens that the one before it gave. Where states
// go through a layer first, its keys and values are kept for committed positions.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "heads/head_draws.h"
#include "heads/hydra_head.h"

namespace outrider {

class HydraDrafter final : public HeadDrafter, private HeadDraws::Steps {
 public:
  // `head` must outlive it.
  HydraDrafter(HydraHead& head, HeadDrafterOptions options);
  ~HydraDrafter() override;

  void draft(std::span<const HeadTask> tasks, HiddenStateSource& hidden_states,
             std::vector<HeadDraft>& drafts) override;
  void close(SequenceId sequence) override;
  int64_t ingest_ns() const override { return ingest_ns_; }
  int64_t draft_ns() const override { return draft_ns_; }

 private:
  struct Sequence {
    KvHandle kv;       // of the prefix layer
    int64_t read = 0;  // positions that are in it
    HeadTree tree;
  };
  // A task, and the row of inputs_ that begins with its state.
  struct Work {
    const HeadTask* task;
    HeadDraft* draft;
    Sequence* sequence;
    int64_t row;
  };
  // Positions whose states are known: all but the last.
  static int64_t known(const HeadTask& task) { return static_cast<int64_t>(task.committed.size()) - 1; }

  Sequence& begin(SequenceId id);
  // Tokens of a chain.
  int64_t wanted(const HeadTask& task) const {
    return task.branches() ? 0 : std::min<int64_t>(task.gamma, head_.heads());
  }
  bool begin(std::span<const HeadDraws::Chain>) override;
  FloatRows next(std::span<HeadDraws::Chain> chains, HeadSampler& drawn) override;
  FloatRows input(const RowBuffer& rows, int64_t row, int64_t part, int64_t count = 1) const;
  void read_hidden_states(HiddenStateSource& hidden_states);
  void read_through_prefix(HiddenStateSource& hidden_states);
  void draft_chains();
  void embed_last();
  FloatRows embeddings(int64_t rows) const;
  void draft_tree(const Work& work);
  void embed_paths(const Work& work, std::span<const int32_t> nodes);
  void look_behind(const Work& work, std::span<const int32_t> nodes);

  HydraHead& head_;
  const int32_t max_sequences_;
  HeadDraws draws_;
  RowBuffer inputs_;       // [sequences, state and embeddings of the longest input]
  RowBuffer node_inputs_;  // [nodes at once, the same]
  RowBuffer prefix_inputs_;
  std::map<SequenceId, Sequence> sequences_;
  // Buffers of one draft().
  std::vector<Work> works_;    // longest chains first
  std::vector<size_t> going_;  // of works_, whose chains are not finished, in the order of their rows
  int64_t branch_ = 0;         // that was asked last, of chains
  std::vector<HeadDraws::Chain> chains_;
  std::vector<HeadDraws::Look> looks_;
  std::vector<PairSlice> slices_;
  std::vector<Work*> parts_;  // of slices_
  std::vector<int32_t> nodes_;
  std::vector<TokenId> path_;
  int64_t ingest_ns_ = 0, draft_ns_ = 0;
};

}  // namespace outrider
