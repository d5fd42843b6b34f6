// Sources of the weights of one tp_rank: tensors of a model directory, and parts of tensors. Plain values
// that view files, which stay mapped.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model_files/coded_matrix.h"
#include "model_files/safetensors.h"
#include "model_files/shard_plan.h"

namespace outrider {

// A matrix within a larger tensor: element (row, column) is its element number at(row, column).
struct ElementsApart {
  int64_t first = 0, row = 0, column = 0;
  int64_t at(int64_t r, int64_t c) const { return first + r * row + c * column; }
};

// Rows and columns of a stored matrix. Vectors have one row.
struct TensorPart {
  const TensorInfo* tensor = nullptr;
  IndexRange rows;
  IndexRange columns;
  const TensorInfo* scales = nullptr;        // of a matrix of codes (stored_codes.h)
  int64_t first_group = 0;                   // of `columns` among its scales
  std::shared_ptr<const CodedMatrix> coded;  // of a published checkpoint; `tensor` holds its codes
  std::optional<ElementsApart> apart;        // of numbers that do not lie row by row
  int64_t bytes(int64_t row_count) const;    // that `row_count` rows take in the file, without scales
};

// Stored matrices stacked into one [n, k].
struct MatrixSource {
  std::vector<TensorPart> parts;
  std::vector<int64_t> leaf_ends;  // along k, where tensor parallelism cuts this contraction; else empty
  int64_t n() const;
  int64_t k() const { return parts.empty() ? 0 : parts.front().columns.size(); }
  int64_t bytes() const;
};

// Stored vectors one after the other; empty if the model has none.
using VectorSource = std::vector<TensorPart>;
std::vector<float> read_vector(const VectorSource& source);
// The factors of a norm: 1 + weight where `adds_one` (ModelConfig::norm_adds_one).
std::vector<float> read_norm(const VectorSource& source, bool adds_one);

struct MlpSources {
  MatrixSource gate_up;  // [2 * columns of this rank, hidden]: all gates, then all ups
  VectorSource gate_up_bias;
  MatrixSource down;  // [hidden, columns of this rank]
  VectorSource down_bias;
};

// An MLP beside the experts of a layer (ExpertConfig::beside_mlp). Its normed output is added to that of the
// experts.
struct BesideSources {
  MlpSources mlp;
  VectorSource mlp_out_norm;                    // [hidden], of what the MLP yields
  VectorSource experts_norm, experts_out_norm;  // [hidden], of what experts get and yield
  VectorSource router_scale;                    // [hidden], of the normed input of the router
  VectorSource expert_scales;                   // [experts], of the weights of the chosen ones
};

// A mixture: each expert is an MLP, cut over the ranks like any.
struct ExpertSources {
  MatrixSource router;  // [experts, hidden], whole on every rank
  VectorSource router_bias;
  VectorSource correction;  // [experts], where choices are corrected
  std::vector<MlpSources> experts;
  std::optional<MlpSources> shared;
  VectorSource shared_gate;  // [hidden]; of the shared MLP
  std::optional<BesideSources> beside;
};

// Sources of latent attention (MLA). key_up and value_up have one matrix for each head of this rank: key_up
// takes a query to the latent, value_up takes a latent to the value.
struct LatentSources {
  MatrixSource q_a;                    // [q_rank, hidden], or no parts
  VectorSource q_norm;                 // [q_rank]
  MatrixSource q;                      // [query_dim of this rank's heads, q_rank or hidden]
  MatrixSource kv_a;                   // [kv_rank + rope_dim, hidden]
  VectorSource kv_norm;                // [kv_rank]
  std::vector<MatrixSource> key_up;    // [kv_rank, nope_dim]
  std::vector<MatrixSource> value_up;  // [value_dim, kv_rank]
};

// Vectors of a gated delta net, of this rank's heads.
struct DeltaNetSources {
  VectorSource decay;    // [value heads]: A_log, or with `is_rate` -exp(A_log)
  VectorSource dt_bias;  // [value heads]
  VectorSource norm;     // [value_dim]
  bool is_rate = false;
};

// A layer uses its input beside the residual stream (ModelConfig::layer_input_size) as follows:
// norm(out(gelu(gate(x)) * input)) is added to x. Every rank has all of it.
struct LayerInputSources {
  MatrixSource gate;  // [layer_input_size, hidden]
  MatrixSource out;   // [hidden, layer_input_size]
  VectorSource norm;  // [hidden]
};

// The table and the projection that make the inputs of all layers.
struct InputTableSources {
  MatrixSource table;       // [vocabulary rows of this rank, layers * layer_input_size]
  MatrixSource projection;  // [layers * layer_input_size, hidden], whole on every rank
  VectorSource norm;        // [layer_input_size], of what is projected for one layer
};

// A layer with a short convolution has its in_proj in `qkv`, [B + C + x of this rank's channels, hidden], and
// its out_proj in `o`. One with a gated delta net has [q + k + v + b + a + gate of this rank's heads,
// hidden].
struct LayerSources {
  VectorSource attention_norm, mlp_norm;          // [hidden]; empty where the family has none
  VectorSource attention_out_norm, mlp_out_norm;  // [hidden], of what attention and MLP yield
  VectorSource q_norm, k_norm;                    // [head_dim], or [q], [k of this rank]
  // [q + k + v of this rank, hidden], and rows of the gate, where there is one; no parts with latent
  // attention
  MatrixSource qkv;
  std::optional<DeltaNetSources> delta_net;
  std::optional<LatentSources> latent;
  VectorSource qkv_bias;
  VectorSource sinks;  // [query heads of this rank]
  MatrixSource o;      // [hidden, heads of this rank * output_dim]
  // [taps, channels of this rank], the oldest row's first; empty in a layer with attention
  VectorSource conv;
  VectorSource o_bias;
  std::optional<LayerInputSources> input;
  VectorSource scale;  // [1]; of the residual stream behind the layer
  std::variant<MlpSources, ExpertSources> mlp;

  const MlpSources& dense() const { return std::get<MlpSources>(mlp); }
  const ExpertSources* mixture() const { return std::get_if<ExpertSources>(&mlp); }
  // All but the router, which is never quantised: those of attention, then those of the MLP or of every
  // expert, then those of the layer's input.
  std::vector<const MatrixSource*> attention_matrices() const;
  std::vector<const MatrixSource*> matrices() const;
};

struct WeightMap {
  bool all_bf16 = false;   // every matrix of numbers: then nothing need be rounded that they did not round
  bool has_codes = false;  // some matrix is stored quantised, in our format or a published one
  MatrixSource head;       // [vocabulary rows of this rank, hidden]
  std::optional<MatrixSource> embedding;  // the same rows of the embedding; none when tied
  std::optional<InputTableSources> inputs;
  VectorSource final_norm;
  std::vector<LayerSources> layers;

  // Those with a row for each token of the vocabulary.
  std::vector<const MatrixSource*> vocabulary_matrices() const;
  // Those of all layers.
  std::vector<const MatrixSource*> layer_matrices() const;
  int64_t matrix_bytes() const;
};

// Element `index` of a tensor that is_weight_dtype.
float tensor_element(const TensorInfo& tensor, int64_t index);

}  // namespace outrider
