// Result of a forward pass: raw fp32 logits of this rank's slice of the vocabulary, in host memory or in the
// memory of the device that computed them. Valid until the model's next forward pass; may be overwritten.
#pragma once

#include <variant>

#include "base/cuda_stream.h"
#include "base/shard.h"
#include "base/tensor_view.h"

namespace outrider {

struct LogitsShard {
  TensorView<float, 2> logits;  // [rows, vocab_range.size()]
  IndexRange vocab_range;       // of this rank
  int64_t vocab_size = 0;       // of the whole head, padding included
  TensorView<float, 2> hidden;  // [rows, hidden_size]: what the head was applied to. Empty from a device.
};

struct DeviceLogits {
  TensorView<float, 2> logits;  // [rows, vocab_range.size()] in device memory; ready when `stream` is
  IndexRange vocab_range;       // of this rank
  int64_t vocab_size = 0;       // of the whole head, padding included
  cuda::StreamView stream;
  // Host memory of the same shape, to which the device writes fast, for callers that need rows on the host.
  float* host_room = nullptr;
};

using PlacedLogits = std::variant<LogitsShard, DeviceLogits>;

}  // namespace outrider
