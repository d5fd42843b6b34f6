// Kernels of the parts of a layer that Llama's lacks, and of products with stacks of matrices: for models,
// and for heads whose layer is like a model's (heads/cuda/device_compute.h).
#pragma once

#include "model/cuda/activations.h"
#include "model/cuda/rope_tables.h"
#include "model/cuda/weights.h"

namespace outrider::cuda {

// Room of one stream for products, and its device.
struct Products {
  // out[m, :] = the stack's product with x[m, :].
  void multiply(int64_t rows, const void* x, int64_t x_stride, const DeviceStack& weight, float* out,
                int64_t out_stride, const ChosenWork& chosen = {}, const GatedOutput& gated = {}) const;

  StreamView stream;
  const DeviceInfo& device;
  SplitRoom split;
  bf16* gathered = nullptr;  // [rows, columns of codes]: inputs in the order of one matrix
};

// Memory of one mixture at a time.
struct MixtureRoom {
  float* weights = nullptr;        // [rows, experts + 1]
  float* gate_up = nullptr;        // [rows, gates, then ups]
  std::byte* activated = nullptr;  // [rows, columns]
  int32_t* work = nullptr;         // [expert_work_size]: counts, tiles and steps of its experts
};
// Room for what list_chosen() finds in a layer; 0 without a mixture.
int64_t expert_work_size(const DeviceLayer& layer);

// Memory of the latents of one layer at a time.
struct LatentRoom {
  float* latents = nullptr;  // [rows, stride]: what DeviceLayer::qkv makes
  int64_t stride = 0;
  const LatentActivations& heads;
};

// One rank's.
struct LayerParts {
  // out[m, :] = this rank's part of the mixture of normed rows, without its experts' biases.
  void queue_mixture(const DeviceLayer& w, const void* normed, int64_t rows, const MixtureRoom& room,
                     float* out) const;
  // In the absorbed form (latent_attention.h): queries of normed rows, in room.heads.queries, and keys in the
  // cache.
  void queue_latents(const DeviceLayer& w, const DeviceBatch& batch, const KvLayer& kv,
                     const RopeTables& rope, const void* normed, int64_t rows, const LatentRoom& room) const;
  // Turns attention's output, in latents, into the values of heads, in room.heads.values.
  void queue_values(const DeviceLayer& w, const void* attended, int64_t rows, const LatentRoom& room) const;

  const ModelConfig& config;
  const ShardPlan& plan;
  WeightType activation = WeightType::kFloat32;
  Products products;
};

}  // namespace outrider::cuda
