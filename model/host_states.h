// The numbers of recurrent states in host memory, which is taken as sequences need it and kept for later
// ones. Used by the model's thread only.
#pragma once

#include <span>
#include <vector>

#include "base/buffer.h"
#include "kernels/cpu/delta_net.h"
#include "model/recurrent_states.h"
#include "model_files/model_config.h"

namespace outrider {

class HostStates {
 public:
  HostStates(const ModelConfig& config, const DeltaNetShape& shape);

  // Around a pass, as in RecurrentStates.
  void begin(std::span<const BatchSlice> batch, KvCache& kv, bool takes_in);
  void end(KvCache& kv) { states_.end(kv); }
  // All sequences of the pass in one layer. rows: the slices whose rows go through this layer, in order.
  std::span<const DeltaNetSequence> in_layer(int64_t layer, std::span<const BatchSlice> rows,
                                             const KvCache& kv);

 private:
  const int64_t layer_size_;
  std::vector<int64_t> index_;  // by layer: among those with a gated delta net
  int64_t layers_ = 0;
  RecurrentStates states_;
  std::vector<Buffer<float>> numbers_;  // by place: [layers with a gated delta net][shape.state_size()]
  std::vector<DeltaNetSequence> sequences_;
};

}  // namespace outrider
