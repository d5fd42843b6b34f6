// Drafts of a head over pairs, one token a pass. Rows of drafted tokens are dropped before the next draft.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "heads/head_draws.h"
#include "heads/pair_head.h"

namespace outrider {

class PairDrafter final : public HeadDrafter {
 public:
  PairDrafter(PairHead& head, HeadDrafterOptions options);
  ~PairDrafter() override;

  void draft(std::span<const HeadTask> tasks, StateSource& states, std::vector<HeadDraft>& drafts) override;
  void close(SequenceId sequence) override;
  int64_t ingest_ns() const override { return ingest_ns_; }
  int64_t draft_ns() const override { return draft_ns_; }

 private:
  struct Sequence {
    KvHandle kv;
    int64_t read = 0;  // pairs of committed states and tokens
  };
  struct Work {
    const HeadTask* task = nullptr;
    HeadDraft* draft = nullptr;
    Sequence* sequence = nullptr;
    int32_t row = -1;  // of states_, where its last output is; -1: not begun to draft
    bool done = false;
  };
  Sequence& begin(SequenceId id);
  bool collect(StateSource& states);
  void add_pairs(Work& work, StateSource& states);
  void take_rows(const PairHead::Rows& rows);
  bool has_room(const Work& work) const;

  PairHead& head_;
  const int32_t max_sequences_;
  HeadDraws draws_;
  std::map<SequenceId, Sequence> sequences_;
  int64_t ingest_ns_ = 0, draft_ns_ = 0;

  // Buffers of one draft().
  std::vector<Work> works_;
  std::vector<Work*> parts_;  // of the pass, by slice
  std::vector<PairSlice> slices_;
  int64_t rows_ = 0;       // of the pass
  ActivationRows inputs_;  // [rows of a pass, hidden]
  ActivationRows states_;  // [sequences, hidden]: last outputs
};

}  // namespace outrider
