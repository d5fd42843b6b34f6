#include "model/latent_attention.h"

#include <algorithm>
#include <cstring>

#include "model_files/latent_config.h"

namespace outrider {
namespace {

// Columns [first, first + count).
template <class T>
TensorView<T, 2> columns_of(TensorView<T, 2> whole, int64_t first, int64_t count) {
  return {whole.data() + first, {whole.extent(0), count}, {whole.stride(0), 1}};
}

}  // namespace

LatentRows::LatentRows(const ModelConfig& config, const ShardPlan& plan, int64_t max_rows)
    : config_(*config.latent),
      heads_(plan.query_heads.size()),
      q_latent_(max_rows, config_.q_rank),
      q_(max_rows, heads_ * config_.query_dim()),
      latent_(max_rows, config_.kv_rank + config_.rope_dim),
      values_(max_rows, heads_ * config_.value_dim) {}

// One rotated part; neighbours that turn together become the halves that the table turns.
void LatentRows::rotate(const float* from, const RopeTable& rope, int64_t position, float* to) {
  const int64_t d = config_.rope_dim, half = d / 2;
  for (int64_t i = 0; i < d; ++i)
    to[i] = config_.interleaved ? from[i < half ? 2 * i : 2 * (i - half) + 1] : from[i];
  rope.rotate({to, static_cast<size_t>(d)}, position);
}

void LatentRows::project(ThreadPool& pool, MatmulScratch& scratch, const LatentWeights& w,
                         TensorView<const float, 2> x, const RopeTable& rope,
                         std::span<const AttentionRow> places, const Outputs& out) {
  if (heads_ == 0) return;  // more ranks than heads: nothing is cached
  const int64_t rows = x.extent(0), rank = config_.kv_rank, nope = config_.nope_dim;
  const int64_t width = rank + config_.rope_dim;  // of what is cached
  const auto q = q_.rows(rows), latent = latent_.rows(rows);
  if (config_.q_rank > 0) {
    const auto q_latent = q_latent_.rows(rows);
    matmul(pool, scratch, x, w.q_a, q_latent);
    rms_norm(q_latent, w.q_norm, kLatentEpsilon, q_latent);
    matmul(pool, scratch, q_latent, w.q, q);
  } else {
    matmul(pool, scratch, x, w.q, q);
  }
  matmul(pool, scratch, x, w.kv_a, latent);
  rms_norm(columns_of(latent, 0, rank), w.kv_norm, kLatentEpsilon, columns_of(latent, 0, rank));
  for (int64_t h = 0; h < heads_; ++h)
    matmul(pool, scratch, columns_of(q, h * config_.query_dim(), nope), w.key_up[static_cast<size_t>(h)],
           columns_of(out.queries, h * width, rank));
  for (int64_t m = 0; m < rows; ++m) {
    const int64_t position = places[static_cast<size_t>(m)].position;
    for (int64_t h = 0; h < heads_; ++h)
      rotate(q.row(m).data() + h * config_.query_dim() + nope, rope, position,
             out.queries.row(m).data() + h * width + rank);
    float *key = out.keys.row(m).data(), *value = out.values.row(m).data();
    std::copy_n(latent.row(m).data(), rank, key);
    rotate(latent.row(m).data() + rank, rope, position, key + rank);
    std::copy_n(latent.row(m).data(), rank, value);
    std::fill_n(value + rank, config_.rope_dim, 0.0f);
  }
}

TensorView<const float, 2> LatentRows::expand(ThreadPool& pool, MatmulScratch& scratch,
                                              const LatentWeights& w, TensorView<float, 2> attended) {
  const auto values = values_.rows(attended.extent(0));
  const int64_t width = config_.kv_rank + config_.rope_dim;
  for (int64_t h = 0; h < heads_; ++h)
    matmul(pool, scratch, columns_of(attended, h * width, config_.kv_rank),
           w.value_up[static_cast<size_t>(h)], columns_of(values, h * config_.value_dim, config_.value_dim));
  return values;
}

}  // namespace outrider
