#include "kernels/sampling/cuda/row_memory.h"

#include <algorithm>

#include "base/log.h"

namespace outrider::cuda {

RowMemory::RowMemory(int64_t rows, int64_t width)
    : width_(static_cast<int32_t>(width)),
      part_values_(rows * kMaxParts),
      best_(rows),
      bins_(rows * kKeyBytes * kKeyBins),
      ties_(rows),
      max_(rows),
      finite_rows_(rows),
      searches_(rows * kSearchStates) {}

int64_t RowMemory::bytes_for(int64_t rows) {
  constexpr int64_t kWord = sizeof(uint64_t);
  return rows * (kWord * (kMaxParts + kKeyBytes * kKeyBins + 2) + int64_t{sizeof(float)} +
                 int64_t{sizeof(int32_t)} + kSearchStates * int64_t{sizeof(Search)});
}

void RowMemory::set(RowBatch& batch) const {
  batch.width = width_;
  batch.parts = std::max(1, (width_ + kPartTokens - 1) / kPartTokens);
  CHECK(batch.parts <= kMaxParts, "a vocabulary of {} tokens", width_);
  batch.part_values = part_values_.data();
  batch.best = best_.data();
  batch.max = max_.data();
  batch.finite_rows = finite_rows_.data();
  batch.searches = searches_.data();
  batch.bins = bins_.data();
  batch.ties = batch.all_ties = ties_.data();
}

void queue_cut(const SearchTask& task, const RowBatch& batch, StreamView stream) {
  if (task.count == 0) return;
  for (int byte = 0; byte < kKeyBytes; ++byte) count_bins(stream, batch, task, byte);
  count_ties(stream, batch, task);
  cut(stream, batch, task);
}

void queue_processing(const DrawInputs& inputs, RowBatch batch, StreamView stream) {
  penalise_rows(stream, batch);
  scale_and_rank(stream, batch);
  settle_best(stream, batch);
  queue_cut(inputs.top_k(batch.rows), batch, stream);
  queue_cut(inputs.top_p(batch.rows), batch, stream);
  const SearchTask min_p = inputs.min_p(batch.rows);
  batch.min_p_rows = min_p.rows;
  batch.min_p_count = min_p.count;
  if (min_p.count > 0) cut_min_p(stream, batch);
}

}  // namespace outrider::cuda
