// Recurrent states in device memory, all of it taken at start-up: a pass must not allocate.
#pragma once

#include <span>
#include <vector>

#include "base/cuda.h"
#include "kernels/cuda/delta_ops.h"
#include "model/recurrent_states.h"

namespace outrider::cuda {

struct MemoryPlan;

class DeviceStates {
 public:
  DeviceStates(const MemoryPlan& plan, StreamView stream);

  // Around the queueing of a pass, as in RecurrentStates. Copies are queued.
  void begin(std::span<const BatchSlice> batch, KvCache& kv, bool takes_in, StreamView stream);
  void end(KvCache& kv) { states_.end(kv); }
  std::span<const RecurrentStates::Planned> planned() const { return states_.planned(); }

  // Fills in the states of a layer, and how its heads share keys.
  void place(int64_t layer, DeltaNetArguments& to) const;

 private:
  int64_t layer_size_, size_;   // floats of a state: in a layer, and in all
  std::vector<int64_t> index_;  // by layer: among those with a gated delta net
  RecurrentStates states_;
  DeviceBuffer<float> numbers_;  // [most][layers with a gated delta net][layer_size_]
  DeviceBuffer<int32_t> keys_;   // [value heads]: the key head of each, of this rank's
};

}  // namespace outrider::cuda
