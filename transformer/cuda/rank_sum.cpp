#include "transformer/cuda/rank_sum.h"

#include "base/log.h"

namespace outrider::cuda {

RankSum::RankSum(Collectives& collectives, int64_t max_floats)
    : collectives_(&collectives), staging_(collectives.size() > 1 ? max_floats + max_floats % 2 : 0) {}

void RankSum::sum(float* values, int64_t count, StreamView stream) {
  CHECK(count <= staging_.size(), "{} floats", count);
  copy(staging_.data(), values, count, stream);
  stream.synchronize();
  collectives_->all_reduce_sum(staging_.span().first(static_cast<size_t>(count)));
  copy(values, staging_.data(), count, stream);
  stream.synchronize();  // the staging memory is used again at once
}

void RankSum::merge(float* values, int64_t count, StreamView stream) {
  CHECK(count <= staging_.size(), "{} floats", count);
  copy(staging_.data(), values, count, stream);
  stream.synchronize();
  auto* words = reinterpret_cast<uint64_t*>(staging_.data());
  if (count % 2) staging_.data()[count] = 0;
  collectives_->all_reduce_sum(std::span(words, static_cast<size_t>((count + 1) / 2)));
  copy(values, staging_.data(), count, stream);
  stream.synchronize();
}

}  // namespace outrider::cuda
