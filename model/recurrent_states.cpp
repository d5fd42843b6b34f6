#include "model/recurrent_states.h"

#include <algorithm>

namespace outrider {

int32_t RecurrentStates::place_for(KvHandle sequence) {
  const auto at = static_cast<size_t>(sequence.index);
  if (at >= place_of_.size()) place_of_.resize(at + 1, -1);
  int32_t& place = place_of_[at];
  if (place < 0 && places() < most_) {
    place = static_cast<int32_t>(states_.size());
    states_.emplace_back();
  }
  if (place < 0) {
    const auto oldest = std::min_element(states_.begin(), states_.end(), [](const State& a, const State& b) {
      return a.last_pass < b.last_pass;
    });
    if (oldest == states_.end() || oldest->last_pass == pass_) return -1;
    place = static_cast<int32_t>(oldest - states_.begin());
    if (oldest->owner >= 0) place_of_[static_cast<size_t>(oldest->owner)] = -1;
    *oldest = {};
  }
  State& state = states_[static_cast<size_t>(place)];
  state.owner = sequence.index;
  state.last_pass = pass_;
  return place;
}

int64_t RecurrentStates::usable(KvHandle sequence, int32_t place, const KvCache& kv) {
  State& state = states_[static_cast<size_t>(place)];
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
      copies_.push_back({static_cast<int32_t>(&of - states_.data()), place});
      state.held = of.held;
      state.mark = mark;
    }
    return settled;
  }
  return 0;
}

void RecurrentStates::begin(std::span<const BatchSlice> batch, KvCache& kv, bool takes_in) {
  ++pass_;
  planned_.clear();
  copies_.clear();
  for (const BatchSlice& slice : batch) {
    Planned& p = planned_.emplace_back(
        Planned{.sequence = slice.sequence, .place = place_for(slice.sequence), .held = 0, .hold = 0});
    if (p.place >= 0) p.held = usable(slice.sequence, p.place, kv);
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    const BatchSlice& slice = batch[i];
    Planned& p = planned_[i];
    if (p.place < 0) continue;
    const SlicePlace place = place_of(slice, kv);
    p.hold = p.held;
    if (takes_in) {
      p.hold = std::max(p.hold, place.first_slot - left_out_);
      // Only tokens with logits may be drafts.
      const int64_t sure = kv.length(slice.sequence) - slice.logit_rows;
      if (sure > place.first_slot) p.hold = std::max(p.hold, std::min(sure, place.tree_begin));
    }
    if (p.hold != p.held || p.held == 0) states_[static_cast<size_t>(p.place)].mark = 0;
  }
}

void RecurrentStates::end(KvCache& kv) {
  for (const Planned& p : planned_) {
    if (p.hold == p.held) continue;
    State& state = states_[static_cast<size_t>(p.place)];
    state.held = p.hold;
    state.mark = kv.settle(p.sequence, p.hold);
  }
}

}  // namespace outrider
