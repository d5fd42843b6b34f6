#include "transformer/model/cuda/batch_inputs.h"

#include <algorithm>

#include "base/log.h"

namespace outrider::cuda {

// In one piece: tokens, positions, row_table, tile_rows, logit_rows, tables.
BatchInputs::BatchInputs(int64_t max_rows, int64_t max_logit_rows, int64_t max_positions,
                         const AttentionTiles& tiles, EmbeddedIds ids)
    : max_rows_(max_rows),
      max_logit_rows_(max_logit_rows),
      table_stride_(kv_blocks_for(max_positions)),
      tiles_(tiles),
      ids_(ids),
      staging_(4 * max_rows + max_logit_rows + max_rows * table_stride_),
      memory_(staging_.size()),
      device_(view(memory_.data())) {}

DeviceBatch BatchInputs::view(int32_t* base) const {
  return {.tokens = base,
          .positions = base + max_rows_,
          .row_table = base + 2 * max_rows_,
          .tables = base + 4 * max_rows_ + max_logit_rows_,
          .tile_rows = base + 3 * max_rows_,
          .logit_rows = base + 4 * max_rows_,
          .table_stride = table_stride_};
}

void BatchInputs::tile_slice(int32_t first_row, int32_t rows, int32_t* tile_rows) const {
  const auto turn_rows = static_cast<int32_t>(tiles_.turn_rows);
  std::fill_n(tile_rows + first_row, rows, 0);
  for (int32_t row = first_row, end = first_row + rows; row < end; row += tile_rows[row])
    tile_rows[row] = std::min({tiles_.rows, end - row, turn_rows - row % turn_rows});
}

void BatchInputs::send(std::span<const BatchSlice> batch, const KvCache& kv, StreamView stream) {
  sent_.synchronize();
  int32_t* base = staging_.data();
  int32_t *tokens = base, *positions = base + max_rows_, *row_table = base + 2 * max_rows_,
          *tile_rows = base + 3 * max_rows_, *logit_rows = base + 4 * max_rows_,
          *tables = logit_rows + max_logit_rows_;
  int32_t row = 0;
  for (size_t s = 0; s < batch.size(); ++s) {
    const BatchSlice& slice = batch[s];
    const int64_t length = kv.length(slice.sequence);
    const auto count = static_cast<int32_t>(slice.tokens.size());
    CHECK(!place_of(slice, kv).is_tree(), "a tree on a device");
    std::copy_n(kv.block_table(slice.sequence), kv_blocks_for(length),
                tables + static_cast<int64_t>(s) * table_stride_);
    tile_slice(row, count, tile_rows);
    for (int32_t i = 0; i < count; ++i, ++row) {
      tokens[row] = ids_.readable(slice.tokens[static_cast<size_t>(i)]).value();
      positions[row] = static_cast<int32_t>(length) - count + i;
      row_table[row] = static_cast<int32_t>(s);
      if (i >= count - slice.logit_rows) *logit_rows++ = row;
    }
  }
  const int64_t used = 4 * max_rows_ + max_logit_rows_ + static_cast<int64_t>(batch.size()) * table_stride_;
  copy(memory_.data(), staging_.data(), used, stream);
  sent_.record(stream);
}

}  // namespace outrider::cuda
