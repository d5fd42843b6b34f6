// Draws tokens from logits in device memory: bit for bit those of DraftSampler from the same logits, and as
// often as wanted without the host, since what a token changes for the next one - position, penalties - is
// kept on the device. One thread, one stream at a time.
#pragma once

#include <span>

#include "base/cuda.h"
#include "kernels/sampling/confidence.h"
#include "kernels/sampling/cuda/draw_inputs.h"
#include "kernels/sampling/cuda/row_memory.h"
#include "kernels/sampling/device_row.h"

namespace outrider::cuda {

class DeviceDraws {
 public:
  // Memory of the current device. `logits` is where every step finds them.
  DeviceDraws(const DrawLimits& limits, float* logits);
  static int64_t bytes_for(const DrawLimits& limits);

  // Whether send() can take them; else they are the host's.
  bool takes(std::span<const DrawRow> rows) const { return inputs_.takes(rows); }
  // Rows with more steps first. `measures`: for confidence(). Must not come before what was queued earlier is
  // done.
  void send(std::span<const DrawRow> rows, bool measures, StreamView stream);

  // The next token of the first `rows` rows.
  void queue_step(int64_t rows, StreamView stream);
  // True if the work of queue_step() depends on `rows` alone: it may be captured, before any send(), and
  // repeated.
  bool is_plain() const {
    return !inputs_.has_filtered_rows() && inputs_.compact(limits_.rows).count == 0 && !measures_;
  }
  // The tokens drawn last, as inputs of a forward pass.
  void queue_feed(int64_t rows, int32_t* tokens, int32_t* positions, StreamView stream);

  // Brings what `steps` steps drew to the host, and the rows of q if they are wanted there: valid once the
  // stream was waited for, until the next send().
  void queue_fetch(int64_t steps, bool wants_q, StreamView stream);
  // -1: the row was not finite.
  TokenId token(int64_t row, int64_t step) const { return TokenId(drawn(row, step).id); }
  DraftConfidence confidence(int64_t row, int64_t step) const;
  // The distribution from which a token was drawn, under a rule with q.
  void read_q(int64_t row, int64_t step, QRow& q) const;
  // Where that row of q lies on the device, if it is dense.
  DeviceRow device_row(int64_t row, int64_t step) const;

 private:
  const Drawn& drawn(int64_t row, int64_t step) const { return drawn_.data()[step * limits_.rows + row]; }
  void queue_compact(int64_t rows, StreamView stream);
  DrawBatch batch_of(int64_t rows) const;

  const DrawLimits limits_;
  DrawBatch batch_;
  DrawInputs inputs_;
  bool measures_ = false;

  const RowMemory memory_;
  DeviceBuffer<uint64_t> q_parts_, moment_parts_;
  DeviceBuffer<std::byte> q_;
  DeviceBuffer<float> ranks_;
  DeviceBuffer<uint64_t> zeros_;
  DeviceBuffer<uint32_t> entries_;
  DeviceBuffer<uint8_t> unit_looks_;
  DeviceBuffer<DrawBatch::Choice> compact_choices_;
  DeviceBuffer<Drawn> drawn_on_device_;
  PinnedBuffer<std::byte> host_q_;
  PinnedBuffer<Drawn> drawn_;
};

}  // namespace outrider::cuda
