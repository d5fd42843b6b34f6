// Latent attention (MLA; DeepSeek-AI 2024, arXiv 2405.04434, sections 2.1.2 and 2.1.3), in the absorbed form.
// The cache holds one latent and one rotated part for each token, shared by all heads. A head's query is
// multiplied with the matrix that would turn latents into keys, and the attended latents are multiplied with
// the matrix that turns latents into values. So attention (cpu_ops.h) sees one KV head: keys [latent, rotated
// part], values [latent, 0].
//
// The latents are computed whole on every rank, and a head's products on the rank of the head. So no bit
// depends on the number of ranks or on neighbouring rows.
#pragma once

#include <span>

#include "model/activations.h"
#include "model/weights.h"
#include "model_files/shard_plan.h"

namespace outrider {

class LatentRows {
 public:
  LatentRows(const ModelConfig& config, const ShardPlan& plan, int64_t max_rows);

  // x [rows, hidden] -> queries [rows, heads * (kv_rank + rope_dim)], keys and values [rows, kv_rank +
  // rope_dim] of the cache, of rows at these places.
  struct Outputs {
    TensorView<float, 2> queries, keys, values;
  };
  void project(ThreadPool& pool, MatmulScratch& scratch, const LatentWeights& w, TensorView<const float, 2> x,
               const RopeTable& rope, std::span<const AttentionRow> places, const Outputs& out);

  // attended [rows, heads * (kv_rank + rope_dim)] -> what o_proj takes, [rows, heads * value_dim].
  TensorView<const float, 2> expand(ThreadPool& pool, MatmulScratch& scratch, const LatentWeights& w,
                                    TensorView<float, 2> attended);

 private:
  void rotate(const float* from, const RopeTable& rope, int64_t position, float* to);

  const LatentConfig config_;
  const int64_t heads_;      // of this rank
  ActivationRows q_latent_;  // [rows, q_rank]
  ActivationRows q_;         // [rows, heads * (nope_dim + rope_dim)]
  ActivationRows latent_;    // [rows, kv_rank + rope_dim]
  ActivationRows values_;    // [rows, heads * value_dim]
};

}  // namespace outrider
