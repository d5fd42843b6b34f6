// Draws from rows whose probabilities are integer weights, spread over ranks (two-level inverse CDF): the
// ranks' masses are exact sums, so the walk over ranks and then over ids finds the token an unsharded walk
// would find.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/collectives.h"
#include "kernels/sampling/shard_row.h"

namespace outrider {

// A draft distribution over the whole vocabulary: q(v) = weight(v) / sum. Dense: ids is empty and weights[i]
// belongs to id begin + i (0 elsewhere). Sparse: ids strictly ascending; other ids below id_end weigh `rest`.
struct QView {
  std::span<const uint32_t> ids;
  std::span<const uint32_t> weights;
  uint64_t sum = 0;
  int64_t begin = 0;
  uint32_t rest = 0, id_end = 0;

  uint64_t weight(TokenId id) const;
  double probability(TokenId id) const { return static_cast<double>(weight(id)) / static_cast<double>(sum); }
};

// One rejection at a row of a tree: the weights r become max(floor * r, scale * r - weight * q), of which
// `mass` is the sum, and are then divided by it. q is what the draft drew this child from: its integers over
// `q_sum`, without the tokens that were taken out before.
struct RejectionStep {
  double scale = 1, weight = 1, floor = 0;
  size_t removed = 0;  // how many of RowWeights::removed q had lost before
  uint64_t q_sum = 0;  // of q's integers without them
  double mass = 1;

  double left(double r, double q_weight) const {
    const double excess = scale * r - weight * (q_weight / static_cast<double>(q_sum));
    const double kept = floor * r;
    return excess > kept ? excess : kept;
  }
};

// Integer weights of one row, computed where they are needed and never stored whole: W = exp(l - max), or,
// with a q, the recovery weights max(0, ratio * W / total - q).
struct RowWeights {
  std::span<const float> logits;  // processed
  IndexRange range{};             // their ids
  float max = 0;
  bool residual = false;
  QView q{};
  uint64_t total = 0;  // sum of W over the whole row
  double ratio = 1;
  // In a tree: the residual weights after the last step, in units of 2^-60, in place of the weights of
  // `ratio`.
  std::span<const RejectionStep> steps{};
  std::span<const TokenId> removed{};
};

struct WeightedDraw {
  RowWeights row;
  uint64_t bits = 0;  // 64 uniform bits, the same on every rank
  TokenId token{};    // out
};

class WeightedSampler {
 public:
  explicit WeightedSampler(Collectives& group) : group_(group) {}

  // This rank's share of the weights' sum.
  uint64_t local_mass(const RowWeights& row);

  // This rank's share of the sum of min(q, (W / total) / rho), in units of 2^-60, for each rho.
  void local_overlaps(const RowWeights& row, std::span<const double> rho, std::span<uint64_t> overlap);

  // Two collectives for all draws together (none for no draws). A residual without any mass (rounding; p ==
  // q) falls back to W, at the price of one more collective; returns how many did. The rows must not be
  // masked whole.
  int draw(std::span<WeightedDraw> draws);

 private:
  static constexpr int64_t kBlockTokens = 1024;

  std::span<const uint64_t> block_weights(const RowWeights& row, int64_t begin);
  void fill_q(const RowWeights& row, int64_t begin, size_t count);
  void fill_rejected(const RowWeights& row, int64_t begin, size_t count);
  void measure(std::span<const WeightedDraw> draws);
  uint64_t group_mass(size_t draw, size_t draws) const;
  int64_t find_local(const RowWeights& row, uint64_t target);

  Collectives& group_;
  std::vector<uint64_t> mine_, all_, chosen_;
  std::array<uint64_t, kBlockTokens> weights_, residual_;
  std::array<double, kBlockTokens> q_, left_;
};

}  // namespace outrider
