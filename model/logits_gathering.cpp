#include "model/logits_gathering.h"

#include <algorithm>

namespace outrider {

LogitsGathering::LogitsGathering(Collectives& group, int64_t vocab_size)
    : group_(group), vocab_size_(vocab_size) {
  for (int r = 0; r < group.size(); ++r) widest_ = std::max(widest_, part(r).size());
}

IndexRange LogitsGathering::part(int rank) const {
  return vocab_range(vocab_size_, {.tp_rank = rank, .tp_size = group_.size()});
}

void LogitsGathering::exchange(const LogitsShard& shard) {
  count_ = shard.logits.extent(0);
  if (count_ == 0) return;
  mine_.resize(static_cast<size_t>(count_ * widest_));
  for (int64_t row = 0; row < count_; ++row)
    std::ranges::copy(shard.logits.row(row), mine_.begin() + row * widest_);
  all_.resize(mine_.size() * static_cast<size_t>(group_.size()));
  group_.all_gather(std::as_bytes(std::span(mine_)), std::as_writable_bytes(std::span(all_)));
}

TensorView<float, 2> LogitsGathering::rows() {
  whole_.resize(static_cast<size_t>(count_ * vocab_size_));
  for (int r = 0; r < group_.size(); ++r)
    for (int64_t row = 0; row < count_; ++row)
      std::copy_n(all_.begin() + (r * count_ + row) * widest_, part(r).size(),
                  whole_.begin() + row * vocab_size_ + part(r).begin);
  return {whole_.data(), {count_, vocab_size_}};
}

}  // namespace outrider
