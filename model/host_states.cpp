#include "model/host_states.h"

#include <algorithm>
#include <limits>

namespace outrider {

HostStates::HostStates(const ModelConfig& config, const DeltaNetShape& shape)
    : layer_size_(shape.state_size()), states_(std::numeric_limits<int64_t>::max()) {
  for (int64_t i = 0; i < config.num_layers; ++i) {
    index_.push_back(layers_);
    layers_ += config.is_delta_net(i) ? 1 : 0;
  }
}

void HostStates::begin(std::span<const BatchSlice> batch, KvCache& kv, bool takes_in) {
  states_.begin(batch, kv, takes_in);
  while (static_cast<int64_t>(numbers_.size()) < states_.places())
    numbers_.emplace_back(layers_ * layer_size_);
  for (const RecurrentStates::Copy& copy : states_.copies()) {
    const auto from = numbers_[static_cast<size_t>(copy.from)].span();
    std::copy(from.begin(), from.end(), numbers_[static_cast<size_t>(copy.to)].data());
  }
}

std::span<const DeltaNetSequence> HostStates::in_layer(int64_t layer, std::span<const BatchSlice> rows,
                                                       const KvCache& kv) {
  sequences_.clear();
  const int64_t first = index_[static_cast<size_t>(layer)] * layer_size_;
  auto slice = rows.begin();
  int64_t row = 0;
  for (const RecurrentStates::Planned& p : states_.planned()) {
    DeltaNetSequence& to = sequences_.emplace_back(
        DeltaNetSequence{.block_table = kv.block_table(p.sequence),
                         .state = numbers_[static_cast<size_t>(p.place)].data() + first,
                         .held = p.held,
                         .hold = p.hold,
                         .first_row = row});
    if (slice == rows.end() || slice->sequence != p.sequence) continue;
    to.rows = static_cast<int64_t>(slice->tokens.size());
    row += to.rows;
    ++slice;
  }
  return sequences_;
}

}  // namespace outrider
