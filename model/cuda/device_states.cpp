#include "model/cuda/device_states.h"

#include <algorithm>

#include "model/cuda/memory_plan.h"

namespace outrider::cuda {

DeviceStates::DeviceStates(const MemoryPlan& plan, StreamView stream)
    : layer_size_(layer_state_floats(plan.shard)),
      size_(state_floats(plan.config, plan.shard)),
      states_(plan.states),
      numbers_(plan.states * size_) {
  int64_t layers = 0;
  for (int64_t i = 0; i < plan.config.num_layers; ++i) {
    index_.push_back(layers);
    layers += plan.config.is_delta_net(i) ? 1 : 0;
  }
  const DeltaNetPart& own = *plan.shard.delta_net;
  std::vector<int32_t> keys;
  for (int64_t value = own.values.begin; value < own.values.end; ++value)
    keys.push_back(static_cast<int32_t>(
        std::find(own.keys.begin(), own.keys.end(), plan.config.delta_net->key_of(value)) -
        own.keys.begin()));
  keys_ = DeviceBuffer<int32_t>(static_cast<int64_t>(keys.size()));
  if (keys.empty()) return;
  copy(keys_.data(), static_cast<const int32_t*>(keys.data()), keys_.size(), stream);
  stream.synchronize();
}

void DeviceStates::begin(std::span<const BatchSlice> batch, KvCache& kv, bool takes_in, StreamView stream) {
  states_.begin(batch, kv, takes_in);
  for (const RecurrentStates::Copy& each : states_.copies())
    if (size_ > 0)
      copy(numbers_.data() + each.to * size_, static_cast<const float*>(numbers_.data()) + each.from * size_,
           size_, stream);
}

void DeviceStates::place(int64_t layer, DeltaNetArguments& to) const {
  to.states = numbers_.data() + index_[static_cast<size_t>(layer)] * layer_size_;
  to.state_stride = size_;
  to.keys = keys_.data();
}

}  // namespace outrider::cuda
