// This rank's slice of dense draft distributions, made from the hidden states in a plan (QKind::kHidden) with
// the draft model's output head. From there on they are like slices that came from the draft worker. All
// buffers are allocated when it is made: rows x slice width x 4 bytes of address space, of which a plan
// touches its own rows.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/collectives.h"
#include "model/draft_head.h"
#include "target_worker/slice_slots.h"

namespace outrider {

class HiddenRows {
 public:
  // The head has the ids of `range`, as far as the draft model has them. `rows`: of all entries of a plan.
  HiddenRows(std::shared_ptr<const DraftHead> head, IndexRange range, int64_t rows);

  // Collective. Fills `sliced` at the places of the entries of kHidden; sampling[i] is that of entry i. A
  // draft is lost if its states are not such that its tokens could have been drawn from them.
  void gather(std::span<const PlanEntry> entries, std::span<const SamplingParams* const> sampling,
              Collectives& group, std::span<SlicedQ> sliced);

 private:
  bool make_rows(const PlanEntry& entry, const SamplingParams& sampling, std::span<QRow> rows);
  bool make_row(const HiddenRow& state, float inverse_temperature, std::span<float> logits, QRow& row);

  const std::shared_ptr<const DraftHead> head_;
  const IndexRange ids_;
  std::vector<QRow> rows_;
  std::vector<uint64_t> integers_;  // to add up over ranks; of each entry whether this rank is content, the
                                    // sums of its rows and the weights of the drafted tokens
  std::vector<float> logits_;       // [kRowsAtATime, ids]
  std::vector<float> chunk_max_;
  DraftHead::Scratch scratch_;
};

}  // namespace outrider
