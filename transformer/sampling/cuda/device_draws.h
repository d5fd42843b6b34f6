// Draws tokens from logits in device memory: bit for bit those of DraftSampler from the same logits, and as
// often as wanted without the host, since what a token changes for the next one - position, penalties - is
// kept on the device. One thread, one stream at a time.
#pragma once

#include <span>

#include "base/cuda.h"
#include "transformer/sampling/confidence.h"
#include "transformer/sampling/cuda/draw_batch.h"
#include "transformer/sampling/cuda/row_steps.h"
#include "transformer/sampling/draft_sampler.h"

namespace outrider::cuda {

struct DrawLimits {
  int64_t rows = 0;     // at a time
  int64_t steps = 0;    // with one send()
  int64_t width = 0;    // ids that may be drawn: [0, width)
  int64_t stride = 0;   // of the rows of logits
  int64_t q_rows = 0;   // dense rows of q that are kept, over all rows and steps, or more compact ones
  int64_t counted = 0;  // distinct tokens that penalties count, over all rows
  int64_t biases = 0;   // over all rows
};

// One row. Its first token is `first`, the next ones follow it.
struct DrawRow {
  DraftStep first;
  int64_t logits_row = 0;  // at the first step; later row i of the draws is row i of the logits
  int32_t steps = 1;
};

class DeviceDraws {
 public:
  // Memory of the current device. `logits` is where every step finds them.
  DeviceDraws(const DrawLimits& limits, float* logits);
  static int64_t bytes_for(const DrawLimits& limits);

  // Whether send() can take them; else they are the host's.
  bool takes(std::span<const DrawRow> rows) const;
  // Rows with more steps first. `measures`: for confidence(). Must not come before what was queued earlier is
  // done.
  void send(std::span<const DrawRow> rows, bool measures, StreamView stream);

  // The next token of the first `rows` rows.
  void queue_step(int64_t rows, StreamView stream);
  // What queue_step() queues depends on `rows` alone: it may be captured, before any send(), and repeated.
  bool is_plain() const { return filtered_.size == 0 && compact_.size == 0 && !measures_; }
  // The tokens drawn last, as inputs of a forward pass.
  void queue_feed(int64_t rows, int32_t* tokens, int32_t* positions, StreamView stream);

  // Brings what `steps` steps drew to the host: valid once the stream was waited for, until the next send().
  void queue_fetch(int64_t steps, StreamView stream);
  // -1: the row was not finite.
  TokenId token(int64_t row, int64_t step) const { return TokenId(drawn(row, step).id); }
  DraftConfidence confidence(int64_t row, int64_t step) const;
  // What a draw under a rule with q was drawn from.
  void read_q(int64_t row, int64_t step, QRow& q) const;

 private:
  // Filled on the host, sent to the device.
  template <class T>
  struct Sent {
    explicit Sent(int64_t capacity) : host(capacity), device(capacity) {}
    void clear() { size = 0; }
    void push(const T& value) { host.data()[size++] = value; }
    void send(StreamView stream) const {
      if (size > 0) copy(device.data(), host.data(), size, stream);
    }

    PinnedBuffer<T> host;
    DeviceBuffer<T> device;
    int64_t size = 0;
  };

  const Drawn& drawn(int64_t row, int64_t step) const { return drawn_.data()[step * limits_.rows + row]; }
  void add_row(const DrawRow& row);
  void add_q(const DrawRow& row);
  void add_penalties(const DrawRow& row, RequestInput& request);
  // Those of the first `rows` rows.
  static SearchTask task_of(const Sent<int32_t>& list, int64_t rows, bool by_mass = false);
  void queue_filters(int64_t rows, StreamView stream);
  void queue_compact(int64_t rows, StreamView stream);
  DrawBatch batch_of(int64_t rows) const;

  const DrawLimits limits_;
  DrawBatch batch_;
  Sent<RowInput> rows_;
  Sent<RequestInput> requests_;
  Sent<DrawState> states_;
  Sent<CountedToken> counted_;
  Sent<Bias> biases_;
  Sent<int32_t> filtered_, top_k_, top_p_, noisy_, compact_;  // rows, ascending
  Sent<RowInput> selections_;  // by row: which of its weights a compact one may list
  bool measures_ = false;
  int64_t q_used_ = 0;  // bytes

  DeviceBuffer<uint64_t> part_values_, q_parts_, moment_parts_, best_, bins_, ties_;
  DeviceBuffer<float> max_;
  DeviceBuffer<int32_t> failed_, tie_ends_;
  DeviceBuffer<Search> searches_;
  DeviceBuffer<std::byte> q_;
  DeviceBuffer<float> ranks_;
  DeviceBuffer<uint64_t> zeros_;
  DeviceBuffer<uint32_t> entries_;
  DeviceBuffer<DrawBatch::Choice> compact_choices_;
  DeviceBuffer<Drawn> drawn_on_device_;
  PinnedBuffer<std::byte> host_q_;
  PinnedBuffer<Drawn> drawn_;
};

}  // namespace outrider::cuda
