#include "kernels/sampling/weighted_draw.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "base/philox.h"

namespace outrider {

uint64_t QView::weight(TokenId id) const {
  const auto v = static_cast<uint32_t>(id.value());
  const auto at = static_cast<uint64_t>(id.value() - begin);
  if (ids.empty()) return at < weights.size() ? weights[at] : 0;
  const auto it = std::lower_bound(ids.begin(), ids.end(), v);
  if (it != ids.end() && *it == v) return weights[static_cast<size_t>(it - ids.begin())];
  return v < id_end ? rest : 0;
}

void WeightedSampler::fill_q(const RowWeights& row, int64_t begin, size_t count) {
  const auto sum = static_cast<double>(row.q.sum);
  const int64_t first = row.range.begin + begin, last = first + static_cast<int64_t>(count);
  const auto others = static_cast<size_t>(std::clamp<int64_t>(row.q.id_end - first, 0, last - first));
  std::fill_n(q_.begin(), others, static_cast<double>(row.q.rest) / sum);
  std::fill(q_.begin() + others, q_.begin() + count, 0.0);
  if (row.q.ids.empty()) {
    const int64_t begun = row.q.begin;
    const int64_t end = std::min(last, begun + static_cast<int64_t>(row.q.weights.size()));
    for (int64_t v = std::max(first, begun); v < end; ++v)
      q_[static_cast<size_t>(v - first)] =
          static_cast<double>(row.q.weights[static_cast<size_t>(v - begun)]) / sum;
    return;
  }
  const auto ids = row.q.ids;
  for (auto it = std::lower_bound(ids.begin(), ids.end(), static_cast<uint32_t>(first));
       it != ids.end() && *it < static_cast<uint32_t>(last); ++it)
    q_[static_cast<size_t>(*it - first)] =
        static_cast<double>(row.q.weights[static_cast<size_t>(it - ids.begin())]) / sum;
}

// 2^60 times what is at least 0, to the nearest integer.
uint64_t in_fixed_point(double value) { return static_cast<uint64_t>(std::llrint(value * 0x1p60)); }

// From weights_ to residual_ by all steps of the row.
void WeightedSampler::fill_rejected(const RowWeights& row, int64_t begin, size_t count) {
  RowWeights integers = row;
  integers.q.sum = 1;
  fill_q(integers, begin, count);
  const auto total = static_cast<double>(row.total);
  for (size_t i = 0; i < count; ++i) left_[i] = static_cast<double>(weights_[i]) / total;
  const int64_t first = row.range.begin + begin;
  size_t removed = 0;
  for (const RejectionStep& step : row.steps) {
    for (; removed < step.removed; ++removed) {
      const int64_t at = row.removed[removed].value() - first;
      if (at >= 0 && at < static_cast<int64_t>(count)) q_[static_cast<size_t>(at)] = 0;
    }
    const bool last = &step == &row.steps.back();
    for (size_t i = 0; i < count; ++i) {
      left_[i] = step.left(left_[i], q_[i]);
      if (!last) left_[i] /= step.mass;
    }
  }
  for (size_t i = 0; i < count; ++i) residual_[i] = in_fixed_point(left_[i]);
}

void WeightedSampler::local_overlaps(const RowWeights& row, std::span<const double> rho,
                                     std::span<uint64_t> overlap) {
  std::fill(overlap.begin(), overlap.end(), 0);
  const auto total = static_cast<double>(row.total);
  for (int64_t begin = 0; begin < row.range.size(); begin += kBlockTokens) {
    const auto count = static_cast<size_t>(std::min(kBlockTokens, row.range.size() - begin));
    fill_weights(row.logits.subspan(static_cast<size_t>(begin), count), row.max,
                 std::span(weights_.data(), count));
    fill_q(row, begin, count);
    for (size_t i = 0; i < rho.size(); ++i)
      for (size_t v = 0; v < count; ++v)
        overlap[i] += in_fixed_point(std::min(q_[v], static_cast<double>(weights_[v]) / total / rho[i]));
  }
}

// Weights of the block of local indices that starts at `begin`; valid until the next call.
std::span<const uint64_t> WeightedSampler::block_weights(const RowWeights& row, int64_t begin) {
  const auto count = static_cast<size_t>(std::min(kBlockTokens, row.range.size() - begin));
  const std::span weights(weights_.data(), count), residual(residual_.data(), count);
  fill_weights(row.logits.subspan(static_cast<size_t>(begin), count), row.max, weights);
  if (!row.residual) return weights;
  if (!row.steps.empty()) {
    fill_rejected(row, begin, count);
    return residual;
  }
  fill_q(row, begin, count);
  fill_residual(weights, row.total, row.ratio, std::span(q_.data(), count), residual);
  return residual;
}

uint64_t WeightedSampler::local_mass(const RowWeights& row) {
  if (!row.residual) return sum_weights(row.logits, row.max);
  uint64_t mass = 0;
  for (int64_t begin = 0; begin < row.range.size(); begin += kBlockTokens)
    for (uint64_t weight : block_weights(row, begin)) mass += weight;
  return mass;
}

// all_[r * draws + d] = mass of draw d on rank r.
void WeightedSampler::measure(std::span<const WeightedDraw> draws) {
  mine_.resize(draws.size());
  all_.resize(draws.size() * static_cast<size_t>(group_.size()));
  for (size_t d = 0; d < draws.size(); ++d) mine_[d] = local_mass(draws[d].row);
  group_.all_gather(std::as_bytes(std::span(mine_)), std::as_writable_bytes(std::span(all_)));
}

uint64_t WeightedSampler::group_mass(size_t draw, size_t draws) const {
  uint64_t mass = 0;
  for (size_t at = draw; at < all_.size(); at += draws) mass += all_[at];
  return mass;
}

// The first local id whose cumulative weight exceeds target.
int64_t WeightedSampler::find_local(const RowWeights& row, uint64_t target) {
  for (int64_t begin = 0; begin < row.range.size(); begin += kBlockTokens) {
    const auto weights = block_weights(row, begin);
    for (size_t i = 0; i < weights.size(); ++i) {
      if (target < weights[i]) return row.range.begin + begin + static_cast<int64_t>(i);
      target -= weights[i];
    }
  }
  check_failed(__FILE__, __LINE__, "target < mass", "a shard's weights changed between two passes over them");
}

int WeightedSampler::draw(std::span<WeightedDraw> draws) {
  if (draws.empty()) return 0;
  measure(draws);
  int fallbacks = 0;
  for (size_t d = 0; d < draws.size(); ++d) {
    if (!draws[d].row.residual || group_mass(d, draws.size()) > 0) continue;
    draws[d].row.residual = false;
    ++fallbacks;
  }
  if (fallbacks > 0) measure(draws);  // the same decision on every rank: masses are the group's

  chosen_.assign(draws.size(), 0);
  for (size_t d = 0; d < draws.size(); ++d) {
    const uint64_t total = group_mass(d, draws.size());
    CHECK(total > 0, "draw {} of {} has no weight at all", d, draws.size());
    uint64_t target = multiply_high(draws[d].bits, total);
    size_t owner = 0;
    while (target >= all_[owner * draws.size() + d]) target -= all_[owner++ * draws.size() + d];
    if (static_cast<int>(owner) == group_.rank())
      chosen_[d] = static_cast<uint64_t>(find_local(draws[d].row, target)) + 1;
  }
  group_.all_reduce_max(std::span(chosen_));
  for (size_t d = 0; d < draws.size(); ++d) draws[d].token = TokenId(static_cast<int32_t>(chosen_[d] - 1));
  return fallbacks;
}

}  // namespace outrider
