// The parameters of one tp_rank, packed for the kernels. Only this rank's part of a file is read into memory,
// and only once: each tensor is packed from the mapped file and its pages are given back.
#pragma once

#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "base/load_progress.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/packed_matrix.h"
#include "model_files/model_config.h"
#include "model_files/safetensors.h"
#include "model_files/shard_plan.h"
#include "model_files/weight_format.h"
#include "model_files/weight_sources.h"

namespace outrider {

// In an expert, only the rank of the first leaf adds down_bias.
struct DenseMlp {
  PackedMatrix gate_up;  // [2 * columns of this rank, hidden]: all gates, then all ups
  std::vector<float> gate_up_bias;
  PackedMatrix down;  // [hidden, columns of this rank]
  std::vector<float> down_bias;

  size_t bytes() const { return gate_up.bytes() + down.bytes(); }
};

// BesideSources, packed.
struct BesideMlp {
  DenseMlp mlp;
  std::vector<float> mlp_out_norm, experts_norm, experts_out_norm;
  std::vector<float> router_norm;  // router_scale / sqrt(hidden)
  std::vector<float> expert_scales;
};

// Router and shared gate are fp32 whatever the format: they decide.
struct ExpertMlp {
  PackedMatrix router;  // [experts, hidden], whole on every rank
  std::vector<float> router_bias, correction;
  std::vector<DenseMlp> experts;
  std::optional<DenseMlp> shared;
  PackedMatrix shared_gate;  // [1, hidden], whole; empty: the shared MLP counts fully
  std::optional<BesideMlp> beside;

  size_t bytes() const;
};

// LatentSources, packed.
struct LatentWeights {
  PackedMatrix q_a, q, kv_a;
  std::vector<float> q_norm, kv_norm;
  std::vector<PackedMatrix> key_up, value_up;

  size_t bytes() const;
};

// Vectors of a gated delta net, of this rank's heads.
struct DeltaNetWeights {
  std::vector<float> rate;     // [value heads]: -exp(A_log)
  std::vector<float> dt_bias;  // [value heads]
  std::vector<float> norm;     // [value_dim]
};

// LayerInputSources, packed.
struct LayerInputWeights {
  PackedMatrix gate, out;
  std::vector<float> norm;
};

// Rows of a large table, of which a pass reads one for each token. The table stays in its file, and a row's
// numbers are those of a packed table.
class FileTable {
 public:
  FileTable(MatrixSource source, WeightType type);

  // The files that the source views; they must be given before a row is read.
  void keep(std::shared_ptr<const TensorFiles> files) { files_ = std::move(files); }
  void copy_row(int64_t row, std::span<float> to) const;

 private:
  MatrixSource source_;
  WeightType type_;
  std::shared_ptr<const TensorFiles> files_;
};

// InputTableSources, of which the projection is packed.
struct InputTable {
  FileTable table;
  PackedMatrix projection;
  std::vector<float> norm;
};

// A layer with a short convolution has its in_proj in `qkv`, [B + C + x of this rank's channels, hidden], and
// its out_proj in `o`. One with a gated delta net has [q + k + v + b + a + gate of this rank's heads,
// hidden].
struct LayerWeights {
  std::vector<float> attention_norm, mlp_norm;          // [hidden]; empty where the family has none
  std::vector<float> attention_out_norm, mlp_out_norm;  // [hidden], of what attention and MLP yield
  std::vector<float> q_norm, k_norm;                    // [head_dim], or [q], [k of this rank]
  // [q + k + v of this rank, hidden], and rows of the gate, where there is one; empty with latent attention
  PackedMatrix qkv;
  std::optional<DeltaNetWeights> delta_net;
  std::optional<LatentWeights> latent;
  std::vector<float> qkv_bias;
  std::vector<float> sinks;  // [query heads of this rank]
  std::vector<float> conv;   // [taps, channels of this rank]; empty in a layer with attention
  PackedMatrix o;            // [hidden, heads of this rank * head_dim]
  std::vector<float> o_bias;
  std::optional<LayerInputWeights> input;
  float scale = 1;  // of the residual stream behind the layer
  std::variant<DenseMlp, ExpertMlp> mlp;

  DenseMlp& dense() { return std::get<DenseMlp>(mlp); }
  const DenseMlp& dense() const { return std::get<DenseMlp>(mlp); }
  size_t bytes() const;
};

struct Weights {
  PackedMatrix head;       // [vocabulary rows of this rank, hidden]
  PackedMatrix embedding;  // the same rows of the embedding; empty when tied (then the head is read)
  std::optional<InputTable> inputs;
  std::vector<float> final_norm;
  std::vector<LayerWeights> layers;
  int64_t bytes = 0;

  const PackedMatrix& embedding_rows() const { return embedding.n() > 0 ? embedding : head; }
};

enum class MatrixKind : uint8_t { kLayer, kVocabulary };

// int4 keeps the vocabulary's matrices in int8: they are a small part of the work, and every token's logits
// come straight from the output head. Not for kAuto.
WeightType weight_type(WeightFormat format, MatrixKind kind);
// The type of a mapped matrix: as stored, else as asked for, else `numbers`. An error if it is stored in
// another of our formats than is asked for. Codes of published checkpoints are kept, but for a format that is
// asked for: then it is made of the numbers they stand for.
Result<WeightType> weight_type(const MatrixSource& source, WeightFormat format, MatrixKind kind,
                               WeightType numbers);
// The same on the CPU, which holds fp16 as such.
Result<WeightType> cpu_weight_type(const MatrixSource& source, WeightFormat format, MatrixKind kind,
                                   WeightType numbers);
const char* weight_type_name(WeightType type);  // "int8"

// Row `row` of a mapped part.
SourceRow source_row(const TensorPart& part, int64_t row);

// A mapped matrix, packed for the kernels. Its pages are given back. As kCodes every part is packed by its
// own scheme, for inputs in `activations` where there are such products, and parts of numbers as bf16 or
// fp32.
PackedMatrix pack_matrix(const MatrixSource& source, WeightType type, ThreadPool& pool,
                         ActivationFormat activations = ActivationFormat::kBFloat16);

struct WeightOptions {
  WeightFormat format = WeightFormat::kAuto;
  ActivationFormat activations = ActivationFormat::kBFloat16;
  LoadProgress progress;
};

// Parts of a layer by themselves, whole: matrices in the format that is asked for, else as stored, else as
// `numbers`.
Result<ExpertMlp> pack_mixture(const ExpertSources& sources, const ModelConfig& config, WeightFormat format,
                               WeightType numbers, ThreadPool& pool);
Result<LatentWeights> pack_latent(const LatentSources& sources, const ModelConfig& config,
                                  WeightFormat format, WeightType numbers, ThreadPool& pool);

// Weights may go on to read from the files, which they then take.
Result<Weights> load_weights(TensorFiles files, const ModelConfig& config, const ShardPlan& plan,
                             const WeightOptions& options, ThreadPool& pool);

}  // namespace outrider
