// The parameters of one tp_rank in device memory. Read from the mapped files once, through two pinned staging
// buffers, so that reading and copying overlap; the device puts the elements into the order its kernels want.
#pragma once

#include <memory>
#include <vector>

#include "base/cuda.h"
#include "base/load_progress.h"
#include "base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "model/cuda/matrix_plan.h"
#include "model_files/model_config.h"
#include "model_files/shard_plan.h"
#include "model_files/weight_format.h"
#include "model_files/weight_sources.h"

namespace outrider::cuda {

// Matrices of k columns each, one below the other, which are one matrix of the model.
class DeviceStack {
 public:
  DeviceStack() = default;
  explicit DeviceStack(DeviceMatrix matrix) { add(std::move(matrix)); }
  void add(DeviceMatrix matrix) { matrices_.push_back(std::move(matrix)); }
  const std::vector<DeviceMatrix>& matrices() const { return matrices_; }
  int64_t n() const {
    int64_t rows = 0;
    for (const DeviceMatrix& matrix : matrices_) rows += matrix.view().n;
    return rows;
  }
  bool is_paired() const { return !matrices_.empty() && matrices_.front().view().paired > 0; }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const DeviceMatrix& matrix : matrices_) sum += matrix.bytes();
    return sum;
  }

 private:
  std::vector<DeviceMatrix> matrices_;
};

// Weights of latent attention. DeviceLayer::qkv computes the latents: that of queries (or the queries
// themselves), and below it that of keys and values.
struct DeviceLatent {
  DeviceBuffer<float> q_norm, kv_norm;  // [q_rank], [kv_rank]
  DeviceStack q;                  // [query_dim of this rank's heads, q_rank]; empty without such a latent
  DeviceMatrix key_up, value_up;  // of every head (HeadProduct): [kv_rank, nope_dim], [value_dim, kv_rank]

  int64_t bytes() const { return q.bytes() + key_up.bytes() + value_up.bytes(); }
};

// Vectors of a gated delta net, of this rank's heads.
struct DeviceDeltaNet {
  DeviceBuffer<float> rate, dt_bias;  // [value heads]: -exp(A_log), and its bias
  DeviceBuffer<float> norm;           // [value_dim]
};

// Vectors that a model lacks are empty: a null pointer. A layer with a short convolution has its in_proj in
// `qkv` and its out_proj in `o`. One with a gated delta net has [q + k + v + b + a + gate] in `qkv`.
struct DeviceLayer {
  DeviceBuffer<float> attention_norm, mlp_norm, q_norm, k_norm;
  DeviceBuffer<float> attention_out_norm, mlp_out_norm;  // of what attention and MLP yield
  DeviceBuffer<float> qkv_bias, o_bias, gate_up_bias, down_bias;
  DeviceBuffer<float> sinks;                    // [query heads of this rank]
  DeviceBuffer<float> conv;                     // [taps, channels of this rank] of a convolution
  DeviceBuffer<float> router, shared_gate;      // of a mixture: [experts, hidden], [hidden]
  DeviceBuffer<float> router_bias, correction;  // [experts]
  DeviceBuffer<float> expert_down_bias;         // [experts, hidden]; gate_up_bias is as gate_up's rows are
  DeviceStack qkv, o, gate_up, down;            // of a mixture: all experts as one MLP (ExpertColumns)
  DeviceLatent latent;
  DeviceDeltaNet delta_net;
};

// Weight types of a model's matrices: those of the layers, and those of embedding and output head. Both take
// activations of one type. kCodes: every matrix as a published checkpoint stores it, some in codes.
struct DeviceWeightTypes {
  WeightType layers = WeightType::kFloat32;
  WeightType vocabulary = WeightType::kFloat32;
  WeightType activation() const { return activation_type(layers); }
};

struct DeviceWeights {
  DeviceWeightTypes types;
  DeviceStack head, embedding;  // of one matrix each; embedding is empty when tied
  DeviceBuffer<float> final_norm;
  std::vector<DeviceLayer> layers;
  int64_t bytes = 0;
  // Staging buffers of the loading. They are kept, because freeing device or pinned memory waits for the
  // device, where kernels of ranks that loaded faster may be waiting for each other.
  std::shared_ptr<void> staging;

  const MatrixView& embedding_rows() const {
    return (embedding.bytes() > 0 ? embedding : head).matrices().front().view();
  }
};

// An error names heads of sizes that no device computes. Before what follows.
Status check_heads(const ModelConfig& config);

// Device memory of matrices.
struct MatrixSizes {
  int64_t bytes = 0;
  // The most activation columns that one matrix needs gathered into another order.
  int64_t gathered_columns = 0;
  int64_t widest = 0;  // the most rows of a matrix whose product may be split over blocks
};
// Types and device memory of a rank's weights. Weights other than matrices are small and not counted.
struct WeightPlan : MatrixSizes {
  DeviceWeightTypes types;
  int64_t gate_columns = 0;  // the most gate columns of an MLP whose product does not apply the gate itself
};
// As stored, unless `format` asks for something else. An error names what a device does not take.
Result<WeightPlan> plan_weights(const WeightMap& map, const ModelConfig& config, const ShardPlan& plan,
                                WeightFormat format);
// Where there are no files: bf16, unless `format` asks for something else.
WeightPlan plan_weights(const ModelConfig& config, const ShardPlan& plan, WeightFormat format);

// [n, k] of the matrices of a layer's attention on a rank, `o` and those of heads apart.
struct MatrixSize {
  int64_t n = 0, k = 0;
};
std::vector<MatrixSize> attention_inputs(const ModelConfig& config, const ShardPlan& plan);

// The size of a gated delta net's first product; 0 without a delta net.
MatrixSize delta_input(const ModelConfig& config, const ShardPlan& plan);

// How the columns of a mixture's experts lie on a rank.
ExpertColumns expert_columns(const ExpertConfig& config, Shard shard);

// The columns of an MLP that a rank computes, and where its leaves end.
struct MlpColumns {
  int64_t count = 0;
  std::vector<int64_t> leaf_ends;
};
MlpColumns mlp_columns(const ModelConfig& config, const ShardPlan& plan, bool has_experts);

// types: of plan_weights. What is not stored so is rounded or quantised on the way.
DeviceWeights upload_weights(const WeightMap& map, const ModelConfig& config, const ShardPlan& plan,
                             const DeviceWeightTypes& types, StreamView stream, const LoadProgress& progress);

// Reproducible noise in the shapes of `config`: for timing a model whose files are not there. Scaled so that
// activations stay finite.
DeviceWeights noise_weights(const ModelConfig& config, const ShardPlan& plan, const DeviceWeightTypes& types,
                            StreamView stream);

}  // namespace outrider::cuda
