#include "model/cuda/batch_inputs.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"

namespace outrider::cuda {

// In one piece: tokens, positions, row_table, tile_rows, tail_begins, tail_at, logit_rows, the sequences of
// gated delta nets, the tables in use, and behind them the tails, so that their places count from the tables.
BatchInputs::BatchInputs(int64_t max_rows, int64_t max_logit_rows, int64_t max_positions,
                         const AttentionTiles& tiles, EmbeddedIds ids, bool has_states)
    : max_rows_(max_rows),
      max_logit_rows_(max_logit_rows),
      table_stride_(kv_blocks_for(max_positions)),
      state_ints_(has_states ? max_rows * kDeltaSequenceInts : 0),
      tiles_(tiles),
      ids_(ids),
      staging_(6 * max_rows + max_logit_rows + state_ints_ + max_rows * table_stride_ + path_slots(max_rows)),
      memory_(staging_.size()),
      device_(view(memory_.data())) {}

DeviceBatch BatchInputs::view(int32_t* base) const {
  int32_t* const sequences = base + 6 * max_rows_ + max_logit_rows_;
  int32_t* const tables = sequences + state_ints_;
  return {.tokens = base,
          .positions = base + max_rows_,
          .row_table = base + 2 * max_rows_,
          .tables = tables,
          .tile_rows = base + 3 * max_rows_,
          .logit_rows = base + 6 * max_rows_,
          .tail_begins = base + 4 * max_rows_,
          .tail_at = base + 5 * max_rows_,
          .tails = tables,
          .table_stride = table_stride_,
          .sequences = reinterpret_cast<const DeltaSequence*>(sequences)};
}

void BatchInputs::tile_rows(int32_t first_row, int32_t rows, int32_t* tile_rows) const {
  const auto turn_rows = static_cast<int32_t>(tiles_.turn_rows);
  std::fill_n(tile_rows + first_row, rows, 0);
  for (int32_t row = first_row, end = first_row + rows; row < end; row += tile_rows[row])
    tile_rows[row] = std::min({tiles_.rows, end - row, turn_rows - row % turn_rows});
}

void BatchInputs::send(std::span<const BatchSlice> batch, const KvCache& kv, StreamView stream,
                       std::span<const RecurrentStates::Planned> states) {
  CHECK(states.size() == (state_ints_ > 0 ? batch.size() : 0), "{} states for {} slices", states.size(),
        batch.size());
  sent_.synchronize();
  int32_t* base = staging_.data();
  int32_t *tokens = base, *positions = base + max_rows_, *row_table = base + 2 * max_rows_,
          *tiles = base + 3 * max_rows_, *tail_begins = base + 4 * max_rows_, *tail_at = base + 5 * max_rows_,
          *logit_rows = base + 6 * max_rows_, *const sequences = logit_rows + max_logit_rows_,
          *tables = sequences + state_ints_;
  int32_t* tail = tables + static_cast<int64_t>(batch.size()) * table_stride_;
  int32_t row = 0;
  for (size_t s = 0; s < batch.size(); ++s) {
    const BatchSlice& slice = batch[s];
    const SlicePlace place = place_of(slice, kv);
    const int64_t end = kv.length(slice.sequence);
    std::copy_n(kv.block_table(slice.sequence), kv_blocks_for(end),
                tables + static_cast<int64_t>(s) * table_stride_);
    const int32_t first_row = row;
    int32_t in_place = 0;  // rows without tails: the first ones
    for (int64_t slot = place.first_slot; slot < end; ++slot, ++row) {
      tokens[row] = ids_.readable(slice.tokens[static_cast<size_t>(row - first_row)]).value();
      positions[row] = static_cast<int32_t>(place.position(slot));
      row_table[row] = static_cast<int32_t>(s);
      if (slot >= end - slice.logit_rows) *logit_rows++ = row;
      const bool is_in_place = positions[row] == slot;
      in_place += is_in_place ? 1 : 0;
      tail_begins[row] = is_in_place ? kNoTail : static_cast<int32_t>(place.tree_begin);
      tail_at[row] = static_cast<int32_t>(tail - tables);
      if (!is_in_place) tail = place.write_path(slot, tail);
    }
    if (!states.empty()) {
      const DeltaSequence sequence{.place = states[s].place,
                                   .held = static_cast<int32_t>(states[s].held),
                                   .hold = static_cast<int32_t>(states[s].hold),
                                   .first_row = first_row,
                                   .rows = row - first_row,
                                   .chain_rows = in_place,
                                   .chain_end = static_cast<int32_t>(place.first_slot) + in_place,
                                   .tree_begin = static_cast<int32_t>(place.tree_begin)};
      std::memcpy(sequences + static_cast<int64_t>(s) * kDeltaSequenceInts, &sequence, sizeof(sequence));
    }
    tile_rows(first_row, in_place, tiles);
    tile_rows(first_row + in_place, row - first_row - in_place, tiles);
  }
  // A graph has a place for as many sequences as rows.
  const auto used = static_cast<int64_t>(states.size());
  if (used > 0) std::fill_n(sequences + used * kDeltaSequenceInts, (row - used) * kDeltaSequenceInts, 0);
  copy(memory_.data(), staging_.data(), tail - base, stream);
  sent_.record(stream);
}

}  // namespace outrider::cuda
