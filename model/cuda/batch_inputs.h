// Inputs that change from step to step (tokens, positions, block tables), in device memory at fixed
// addresses, so that a captured graph serves every step. Filled on the host, sent in one copy.
#pragma once

#include <span>

#include "base/cuda.h"
#include "kernels/cuda/delta_ops.h"
#include "model/batch.h"
#include "model/recurrent_states.h"

namespace outrider::cuda {

// How attention takes rows together (AttentionArguments).
struct AttentionTiles {
  int32_t rows = 1;
  int32_t heads = 1;
  int64_t turn_rows = 1;
};

class BatchInputs {
 public:
  // At most max_rows tokens of at most max_rows sequences of at most max_positions tokens.
  BatchInputs(int64_t max_rows, int64_t max_logit_rows, int64_t max_positions, const AttentionTiles& tiles,
              EmbeddedIds ids, bool has_states);

  // After append_batch. Waits until the copy before has been read. states: of every slice, in order, where
  // the model has any.
  void send(std::span<const BatchSlice> batch, const KvCache& kv, StreamView stream,
            std::span<const RecurrentStates::Planned> states = {});
  const DeviceBatch& device() const { return device_; }
  // Where a kernel puts what it knows better than the host.
  int32_t* tokens() const { return memory_.data(); }
  int32_t* positions() const { return memory_.data() + max_rows_; }

 private:
  DeviceBatch view(int32_t* base) const;

  void tile_rows(int32_t first_row, int32_t rows, int32_t* tile_rows) const;

  int64_t max_rows_, max_logit_rows_, table_stride_;
  int64_t state_ints_;  // of all sequences
  AttentionTiles tiles_;
  EmbeddedIds ids_;
  PinnedBuffer<int32_t> staging_;
  DeviceBuffer<int32_t> memory_;
  DeviceBatch device_;
  Event sent_;
};

}  // namespace outrider::cuda
