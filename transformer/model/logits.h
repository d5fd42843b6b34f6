// What a forward pass yields: raw fp32 logits of this rank's slice of the vocabulary.
#pragma once

#include "base/tensor_view.h"
#include "transformer/model/shard.h"

namespace outrider {

struct LogitsShard {
  TensorView<float, 2>
      logits;              // [rows, vocab_range.size()]; valid until the next forward; may be overwritten
  IndexRange vocab_range;  // of this rank
  int64_t vocab_size = 0;  // of the whole head, padding included
  // A CUDA stream: the logits are in device memory and ready when it is. Null: in host memory.
  void* device_stream = nullptr;
  // With logits on the device: host memory of the same shape that the device writes fast, for whoever wants
  // rows there.
  float* host_room = nullptr;
  // [rows, hidden_size]: what the head was applied to, as valid as the logits. Empty where logits are on a
  // device.
  TensorView<float, 2> hidden;
};

}  // namespace outrider
