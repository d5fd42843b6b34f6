// Gated delta nets (model_files' DeltaNetConfig has the equations). A token updates the state of every head
// by the same operations in the same order, wherever it comes from: a prompt, a draft, or the cache. So a
// row's bits do not depend on chunks, on drafts that were rejected, nor on how much of the text a state
// holds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"

namespace outrider {

// Sizes of this rank's part. The cache keeps of every token [q | k | v | b | a]: what the convolution reads,
// then two numbers of each value head.
struct DeltaNetShape {
  std::vector<int64_t> values = {};  // value heads in the order of their key heads
  std::vector<int64_t> ends = {};    // by key head: where its value heads end in `values`
  int64_t key_dim = 0, value_dim = 0;
  int64_t taps = 0;
  float epsilon = 0;  // of the norm of outputs

  int64_t key_heads() const { return static_cast<int64_t>(ends.size()); }
  int64_t value_heads() const { return static_cast<int64_t>(values.size()); }
  std::span<const int64_t> values_of(int64_t key) const {
    const int64_t begin = first_of(key);
    return std::span(values).subspan(static_cast<size_t>(begin),
                                     static_cast<size_t>(ends[static_cast<size_t>(key)] - begin));
  }
  int64_t first_of(int64_t key) const { return key == 0 ? 0 : ends[static_cast<size_t>(key) - 1]; }
  int64_t most_values() const;  // of a key head
  int64_t padded_value_dim() const { return round_up(value_dim, kRowPadding); }
  int64_t channels() const { return 2 * key_heads() * key_dim + value_heads() * value_dim; }
  int64_t row_size() const { return channels() + 2 * value_heads(); }
  // Floats of a sequence's state: [value_heads][key_dim][padded_value_dim], in the order of `values`.
  int64_t state_size() const { return value_heads() * key_dim * padded_value_dim(); }
};

struct DeltaNetVectors {
  std::span<const float> taps;     // [taps, channels], the oldest row's first
  std::span<const float> rate;     // [value heads]: -exp(A_log)
  std::span<const float> dt_bias;  // [value heads]
  std::span<const float> norm;     // [value_dim]
};

// One sequence in a pass. Its state holds positions [0, held), and [0, hold) afterwards. Rows of the pass, if
// it has any, are behind position `held`, one for each position in front of `tail_begin`, then nodes of a
// tree.
struct DeltaNetSequence {
  const int32_t* block_table = nullptr;
  float* state = nullptr;
  int64_t held = 0, hold = 0;
  int64_t first_row = 0, rows = 0;  // among the rows of the pass
};

// Buffers of each thread for numbers that are not states. A model has one object.
class DeltaNetScratch {
 public:
  DeltaNetScratch(int threads, const DeltaNetShape& shape);

  struct Area;  // of one thread
  std::span<float> of_thread(int64_t part) {
    return buffer_.span().subspan(static_cast<size_t>(part * stride_), static_cast<size_t>(stride_));
  }
  int64_t threads() const { return threads_; }

 private:
  int64_t threads_ = 0, stride_ = 0;
  Buffer<float> buffer_;
};

// out[m, head, :] = norm * rms(o) * silu(gate[m, head, :]), o being the output of row m's token in each value
// head. gate and out [M, value_heads * value_dim]. rows: of the pass; what the layer keeps of them is in the
// cache already.
void gated_delta_net(ThreadPool& pool, DeltaNetScratch& scratch, const DeltaNetShape& shape,
                     const DeltaNetVectors& vectors, const KvLayerView& layer,
                     std::span<const DeltaNetSequence> sequences, std::span<const AttentionRow> rows,
                     TensorView<const float, 2> gate, TensorView<float, 2> out);

// x[m, i] *= 1 / (1 + exp(-gate[m, i])).
void sigmoid_mul(ThreadPool& pool, TensorView<float, 2> x, TensorView<const float, 2> gate);

}  // namespace outrider
