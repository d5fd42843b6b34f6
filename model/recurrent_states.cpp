#include "model/recurrent_states.h"

#include <algorithm>

namespace outrider {

RecurrentStates::RecurrentStates(const ModelConfig& config, const DeltaNetShape& shape)
    : layer_size_(shape.state_size()) {
  for (int64_t i = 0; i < config.num_layers; ++i) {
    index_.push_back(layers_);
    layers_ += config.is_delta_net(i) ? 1 : 0;
  }
}

int64_t RecurrentStates::usable(KvHandle sequence, const KvCache& kv) {
  State& state = states_[static_cast<size_t>(sequence.index)];
  const int64_t settled = kv.settled(sequence);
  if (state.held == settled) return settled;
  constexpr int64_t kMostLeftOut = 64;
  if (settled > 0 && state.held > settled)
    left_out_ = std::max(left_out_, std::min(state.held - settled, kMostLeftOut));
  return 0;
}

void RecurrentStates::begin(std::span<const BatchSlice> batch, KvCache& kv, bool takes_in) {
  planned_.clear();
  for (const BatchSlice& slice : batch) {
    const auto at = static_cast<size_t>(slice.sequence.index);
    if (at >= states_.size()) states_.resize(at + 1);
    if (states_[at].numbers.size() == 0) states_[at].numbers = Buffer<float>(layers_ * layer_size_);
    const SlicePlace place = place_of(slice, kv);
    const int64_t held = usable(slice.sequence, kv), end = kv.length(slice.sequence);
    int64_t hold = held;
    if (takes_in) {
      hold = std::max(hold, place.first_slot - left_out_);
      // Only tokens with logits may be drafts.
      if (end - slice.logit_rows > place.first_slot)
        hold = std::max(hold, std::min(end - slice.logit_rows, place.tree_begin));
    }
    states_[at].held = hold == held ? held : -1;
    kv.settle(slice.sequence, held);
    planned_.push_back({.sequence = slice.sequence, .held = held, .hold = hold});
  }
}

std::span<const DeltaNetSequence> RecurrentStates::in_layer(int64_t layer, std::span<const BatchSlice> rows,
                                                            const KvCache& kv) {
  sequences_.clear();
  const int64_t first = index_[static_cast<size_t>(layer)] * layer_size_;
  auto slice = rows.begin();
  int64_t row = 0;
  for (const Planned& p : planned_) {
    DeltaNetSequence& to = sequences_.emplace_back(
        DeltaNetSequence{.block_table = kv.block_table(p.sequence),
                         .state = states_[static_cast<size_t>(p.sequence.index)].numbers.data() + first,
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

void RecurrentStates::end(KvCache& kv) {
  for (const Planned& p : planned_) {
    states_[static_cast<size_t>(p.sequence.index)].held = p.hold;
    kv.settle(p.sequence, p.hold);
  }
}

}  // namespace outrider
