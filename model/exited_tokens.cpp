#include "model/exited_tokens.h"

#include <algorithm>

#include "base/log.h"

namespace outrider {

void ExitedTokens::begin(int64_t first, int64_t most) {
  first_ = first;
  most_ = most;
  ids_.clear();
}

void ExitedTokens::add(TokenId id, int64_t layers, std::span<const float> residual, const CpuKvStorage& from,
                       const KvSlot& at) {
  const auto i = static_cast<int64_t>(ids_.size());
  CHECK(i < most_ && (i == 0 || layers == layers_), "token {} of {} behind {} layers, not {}", i, most_,
        layers, layers_);
  layers_ = layers;
  if (i == 0 && (!room_ || room_->tokens < most_)) {
    KvShape shape = from.shape();
    shape.layers = layers;
    room_.emplace(Room{.tokens = most_,
                       .keys_and_values = CpuKvStorage(shape, kv_blocks_for(most_)),
                       .residual = ActivationRows(most_, static_cast<int64_t>(residual.size()))});
  }
  room_->keys_and_values.copy_token(from, at, slot(i));
  std::copy(residual.begin(), residual.end(), room_->residual.rows(most_).row(i).begin());
  ids_.push_back(id);
}

int64_t ExitedTokens::count_of(int64_t first, std::span<const TokenId> tokens) const {
  if (first != first_) return 0;
  return std::mismatch(ids_.begin(), ids_.end(), tokens.begin(), tokens.end()).first - ids_.begin();
}

std::span<const float> ExitedTokens::residual(int64_t i) const {
  const ActivationRows& rows = room_->residual;
  return {rows.data.data() + i * rows.stride, static_cast<size_t>(rows.columns)};
}

void ExitedTokens::restore(int64_t i, CpuKvStorage& to, const KvSlot& at) const {
  to.copy_token(room_->keys_and_values, slot(i), at);
}

}  // namespace outrider
