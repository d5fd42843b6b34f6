// The parameters of one tp_rank in device memory. Read from the mapped files once, through two pinned staging
// buffers, so that reading and copying overlap; the device puts the elements into the order its kernels want.
#pragma once

#include <memory>
#include <vector>

#include "base/cuda.h"
#include "base/status.h"
#include "transformer/files/model_config.h"
#include "transformer/files/weight_format.h"
#include "transformer/files/weight_sources.h"
#include "transformer/model/load_progress.h"
#include "transformer/model/shard_plan.h"
#include "transformer/ops/cuda/cuda_ops.h"

namespace outrider::cuda {

// Vectors that a model lacks are empty: a null pointer.
struct DeviceLayer {
  DeviceBuffer<float> attention_norm, mlp_norm, q_norm, k_norm;
  DeviceBuffer<float> attention_out_norm, mlp_out_norm;  // of what attention and MLP yield
  DeviceBuffer<float> qkv_bias, o_bias, gate_up_bias, down_bias;
  DeviceBuffer<float> sinks;                // [query heads of this rank]
  DeviceBuffer<float> router, shared_gate;  // of a mixture: [experts, hidden], [hidden]
  DeviceBuffer<float> router_bias;          // [experts]
  DeviceBuffer<float> expert_down_bias;     // [experts, hidden]; gate_up_bias is as gate_up's rows are
  DeviceMatrix qkv, o, gate_up, down;       // of a mixture: all experts as one MLP (ExpertColumns)
};

// What the matrices of a model are: those of the layers, and embedding and head. Both take activations of one
// type.
struct DeviceWeightTypes {
  WeightType layers = WeightType::kFloat32;
  WeightType vocabulary = WeightType::kFloat32;
  WeightType activation() const { return activation_type(layers); }
};

struct DeviceWeights {
  DeviceWeightTypes types;
  DeviceMatrix head, embedding;  // embedding is empty when tied
  DeviceBuffer<float> final_norm;
  std::vector<DeviceLayer> layers;
  int64_t bytes = 0;
  // What loading needed. Freeing device or pinned memory waits for the device, where kernels of ranks that
  // loaded faster may be waiting for each other; so it is kept.
  std::shared_ptr<void> staging;

  const MatrixView& embedding_rows() const { return embedding.bytes() > 0 ? embedding.view() : head.view(); }
};

// What the matrices become on the device: as stored, unless `format` asks for something else. An error names
// what a device does not take.
Result<DeviceWeightTypes> device_weight_types(const WeightMap& map, WeightFormat format);
// What they become where there are no files: bf16, unless `format` asks for something else.
DeviceWeightTypes device_weight_types(WeightFormat format);

// How the columns of a mixture's experts lie on a rank.
ExpertColumns expert_columns(const ExpertConfig& config, Shard shard);

// The columns of an MLP that a rank computes, and where its leaves end.
struct MlpColumns {
  int64_t count = 0;
  std::vector<int64_t> leaf_ends;
};
MlpColumns mlp_columns(const ModelConfig& config, const ShardPlan& plan, bool has_experts);

// The bytes that one rank's matrices take on its device; other weights are small.
int64_t device_weight_bytes(const ModelConfig& config, const ShardPlan& plan, const DeviceWeightTypes& types);

// types: of device_weight_types. What is not stored so is rounded or quantised on the way.
DeviceWeights upload_weights(const WeightMap& map, const ModelConfig& config, const ShardPlan& plan,
                             const DeviceWeightTypes& types, StreamView stream, const LoadProgress& progress);

// Reproducible noise in the shapes of `config`: for timing a model whose files are not there. Scaled so that
// activations stay finite.
DeviceWeights noise_weights(const ModelConfig& config, const ShardPlan& plan, const DeviceWeightTypes& types,
                            StreamView stream);

}  // namespace outrider::cuda
