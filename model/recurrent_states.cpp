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
  const auto at = static_cast<size_t>(sequence.index);
  if (at >= states_.size()) states_.resize(at + 1);
  State& state = states_[at];
  if (state.numbers.size() == 0) state.numbers = Buffer<float>(layers_ * layer_size_);
  const uint64_t mark = kv.settle_mark(sequence);
  const int64_t settled = kv.settled(sequence);
  if (mark == 0) return 0;
  if (state.mark == mark && state.held > settled) {
    constexpr int64_t kMostLeftOut = 64;
    left_out_ = std::max(left_out_, std::min(state.held - settled, kMostLeftOut));
    return 0;
  }
  for (const State& of : states_) {
    if (of.mark != mark || of.held != settled) continue;
    if (&of != &state) {
      std::copy(of.numbers.span().begin(), of.numbers.span().end(), state.numbers.data());
      state.held = of.held;
      state.mark = mark;
    }
    return settled;
  }
  return 0;
}

void RecurrentStates::begin(std::span<const BatchSlice> batch, KvCache& kv, bool takes_in) {
  planned_.clear();
  for (const BatchSlice& slice : batch)
    planned_.push_back({.sequence = slice.sequence, .held = usable(slice.sequence, kv)});
  for (size_t i = 0; i < batch.size(); ++i) {
    const BatchSlice& slice = batch[i];
    Planned& p = planned_[i];
    const SlicePlace place = place_of(slice, kv);
    p.hold = p.held;
    if (takes_in) {
      p.hold = std::max(p.hold, place.first_slot - left_out_);
      // Only tokens with logits may be drafts.
      const int64_t sure = kv.length(slice.sequence) - slice.logit_rows;
      if (sure > place.first_slot) p.hold = std::max(p.hold, std::min(sure, place.tree_begin));
    }
    if (p.hold != p.held || p.held == 0) states_[static_cast<size_t>(slice.sequence.index)].mark = 0;
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
    if (p.hold == p.held) continue;
    State& state = states_[static_cast<size_t>(p.sequence.index)];
    state.held = p.hold;
    state.mark = kv.settle(p.sequence, p.hold);
  }
}

}  // namespace outrider
