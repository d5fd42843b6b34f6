#include "model/taken_up_rows.h"

#include <algorithm>

#include "base/log.h"

namespace outrider {

int64_t TakenUpRows::split(std::span<const BatchSlice> batch, const KvCache& kv, CpuKvStorage& storage) {
  rest_.clear();
  exited_.clear();
  int64_t layers = 0;
  for (const BatchSlice& slice : batch) {
    const SlicePlace place = place_of(slice, kv);
    const int64_t first = place.first_slot;
    // Those that exited are a chain: of a tree they can be what stands in front of it.
    const auto chain = slice.tokens.first(slice.tokens.size() - place.parents.size());
    const int64_t count = slice.exited ? slice.exited->count_of(first, chain) : 0;
    for (int64_t i = 0; i < count; ++i) slice.exited->restore(i, storage, kv.slot(slice.sequence, first + i));
    if (count > 0) {
      CHECK(layers == 0 || layers == slice.exited->layers(), "rows behind {} layers and behind {}", layers,
            slice.exited->layers());
      layers = slice.exited->layers();
    }
    exited_.push_back(count);
    total_ += count;
    if (count == static_cast<int64_t>(slice.tokens.size())) continue;
    rest_.push_back(slice);
    rest_.back().tokens = slice.tokens.subspan(static_cast<size_t>(count));
    rest_.back().parents = place.parents;
  }
  return layers;
}

// From the last row to the first: none is written over before it has moved.
void TakenUpRows::join(std::span<const BatchSlice> batch, ActivationRows& x) const {
  int64_t from = count_rows(rest_).rows, to = count_rows(batch).rows;
  const auto row = [&](int64_t i) { return x.data.data() + i * x.stride; };
  for (size_t s = batch.size(); s-- > 0;) {
    for (auto i = static_cast<int64_t>(batch[s].tokens.size()); i-- > exited_[s];)
      if (--to != --from) std::copy_n(row(from), x.columns, row(to));
    for (int64_t i = exited_[s]; i-- > 0;) {
      const auto kept = batch[s].exited->residual(i);
      std::copy(kept.begin(), kept.end(), row(--to));
    }
  }
}

}  // namespace outrider
