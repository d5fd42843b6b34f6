#include "transformer/weights.h"

#include <algorithm>
#include <cstring>

namespace outrider {
namespace {

float element(const TensorInfo& tensor, int64_t index) {
  const std::byte* data = tensor.data.data();
  if (tensor.dtype == Dtype::kF32) {
    float value;
    std::memcpy(&value, data + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data + index * 2, 2);
  return tensor.dtype == Dtype::kBF16 ? to_float(bf16{bits}) : half_to_float(bits);
}

// Rows and columns of a stored matrix that belong to this rank, and where they go.
struct Part {
  const TensorInfo* tensor = nullptr;
  IndexRange rows;
  IndexRange columns;
};

class Loader {
 public:
  Loader(TensorFiles& files, const ModelConfig& config, const ShardPlan& plan, ThreadPool& pool,
         const LoadProgress& progress)
      : files_(files), config_(config), plan_(plan), pool_(pool), progress_(progress) {}

  Result<Weights> load();

 private:
  Result<const TensorInfo*> tensor(const std::string& name, std::vector<int64_t> shape) const;
  Result<std::vector<float>> vector(const std::string& name, int64_t size, IndexRange part);
  // Several stored matrices stacked into one packed matrix.
  Result<PackedMatrix> matrix(const std::vector<Part>& parts, std::vector<int64_t> leaves = {});
  void pack(const Part& part, int64_t first_row, PackedMatrix& to);
  Result<Part> part(const std::string& name, std::vector<int64_t> shape, IndexRange rows,
                    IndexRange columns) const;
  Result<LayerWeights> layer(int64_t index);
  Status load_attention(const std::string& prefix, LayerWeights& w);
  Status load_mlp(const std::string& prefix, LayerWeights& w);
  Status choose_type();
  void advance(int64_t bytes);

  TensorFiles& files_;
  const ModelConfig& config_;
  const ShardPlan& plan_;
  ThreadPool& pool_;
  const LoadProgress& progress_;
  WeightType type_ = WeightType::kFloat32;
  int64_t done_ = 0;
  int64_t total_ = 0;
};

void Loader::advance(int64_t bytes) {
  done_ += bytes;
  if (progress_) progress_(std::min(done_, total_), total_);
}

Result<const TensorInfo*> Loader::tensor(const std::string& name, std::vector<int64_t> shape) const {
  ASSIGN_OR_RETURN(const TensorInfo* info, files_.require(name, shape));
  if (!is_weight_dtype(info->dtype))
    return unsupported(
        fmt::format("tensor {} is {}; weights must be F32, BF16 or F16", name, dtype_name(info->dtype)));
  return info;
}

// bf16 only if every matrix is: then nothing is rounded that the file did not round.
Status Loader::choose_type() {
  type_ = WeightType::kBFloat16;
  for (std::string_view name : files_.names()) {
    const TensorInfo* info = files_.find(name);
    if (info->shape.size() == 2 && info->dtype != Dtype::kBF16) type_ = WeightType::kFloat32;
  }
  return {};
}

Result<std::vector<float>> Loader::vector(const std::string& name, int64_t size, IndexRange part) {
  ASSIGN_OR_RETURN(const TensorInfo* info, tensor(name, {size}));
  std::vector<float> values;
  for (int64_t i = part.begin; i < part.end; ++i) values.push_back(element(*info, i));
  return values;
}

Result<Part> Loader::part(const std::string& name, std::vector<int64_t> shape, IndexRange rows,
                          IndexRange columns) const {
  ASSIGN_OR_RETURN(const TensorInfo* info, tensor(name, std::move(shape)));
  return Part{info, rows, columns};
}

Result<PackedMatrix> Loader::matrix(const std::vector<Part>& parts, std::vector<int64_t> leaves) {
  int64_t rows = 0;
  for (const Part& p : parts) rows += p.rows.size();
  const int64_t columns = parts.front().columns.size();
  if (leaves.empty()) leaves = {columns};
  PackedMatrix packed(type_, rows, columns, std::move(leaves));
  int64_t row = 0;
  for (const Part& p : parts) {
    pack(p, row, packed);
    row += p.rows.size();
  }
  return packed;
}

void Loader::pack(const Part& part, int64_t first_row, PackedMatrix& to) {
  const TensorInfo& tensor = *part.tensor;
  const int64_t stride = tensor.shape[1];
  constexpr int64_t kBlock = kTileColumns;
  const int64_t blocks = (part.rows.size() + kBlock - 1) / kBlock;
  pool_.parallel_for(blocks, 4, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t last = std::min(part.rows.size(), (block + 1) * kBlock);
      for (int64_t c = 0; c < part.columns.size();
           c += 64)  // columns in chunks, so that the tile stays in cache
        for (int64_t r = block * kBlock; r < last; ++r)
          for (int64_t i = c; i < std::min(c + 64, part.columns.size()); ++i)
            to.set(first_row + r, i,
                   element(tensor, (part.rows.begin + r) * stride + part.columns.begin + i));
    }
  });
  const auto width = tensor.data.size() / static_cast<size_t>(std::max<int64_t>(1, tensor.shape[0]));
  release_pages(tensor.data.subspan(static_cast<size_t>(part.rows.begin) * width,
                                    static_cast<size_t>(part.rows.size()) * width));
  advance(part.rows.size() * part.columns.size() * (type_ == WeightType::kBFloat16 ? 2 : 4));
}

Status Loader::load_attention(const std::string& prefix, LayerWeights& w) {
  const int64_t d = config_.head_dim, hidden = config_.hidden_size;
  const IndexRange q{plan_.query_heads.begin * d, plan_.query_heads.end * d};
  const IndexRange kv{plan_.kv_heads.begin * d, plan_.kv_heads.end * d};
  const IndexRange all{0, hidden};
  ASSIGN_OR_RETURN(Part q_part, part(prefix + "q_proj.weight", {config_.q_size(), hidden}, q, all));
  ASSIGN_OR_RETURN(Part k_part, part(prefix + "k_proj.weight", {config_.kv_size(), hidden}, kv, all));
  ASSIGN_OR_RETURN(Part v_part, part(prefix + "v_proj.weight", {config_.kv_size(), hidden}, kv, all));
  ASSIGN_OR_RETURN(w.qkv, matrix({q_part, k_part, v_part}));
  ASSIGN_OR_RETURN(Part o_part, part(prefix + "o_proj.weight", {hidden, config_.q_size()}, all, q));
  ASSIGN_OR_RETURN(w.o, matrix({o_part}, plan_.attention_leaf_ends));
  if (config_.qkv_bias) {
    ASSIGN_OR_RETURN(w.qkv_bias, vector(prefix + "q_proj.bias", config_.q_size(), q));
    ASSIGN_OR_RETURN(const std::vector<float> k_bias, vector(prefix + "k_proj.bias", config_.kv_size(), kv));
    ASSIGN_OR_RETURN(const std::vector<float> v_bias, vector(prefix + "v_proj.bias", config_.kv_size(), kv));
    w.qkv_bias.insert(w.qkv_bias.end(), k_bias.begin(), k_bias.end());
    w.qkv_bias.insert(w.qkv_bias.end(), v_bias.begin(), v_bias.end());
  }
  if (config_.o_bias) {
    ASSIGN_OR_RETURN(w.o_bias, vector(prefix + "o_proj.bias", hidden, all));
  }
  if (config_.qk_norm) {
    ASSIGN_OR_RETURN(w.q_norm, vector(prefix + "q_norm.weight", d, {0, d}));
    ASSIGN_OR_RETURN(w.k_norm, vector(prefix + "k_norm.weight", d, {0, d}));
  }
  return {};
}

Status Loader::load_mlp(const std::string& prefix, LayerWeights& w) {
  const int64_t hidden = config_.hidden_size, intermediate = config_.intermediate_size;
  const IndexRange all{0, hidden}, columns = plan_.mlp_columns;
  ASSIGN_OR_RETURN(Part gate, part(prefix + "gate_proj.weight", {intermediate, hidden}, columns, all));
  ASSIGN_OR_RETURN(Part up, part(prefix + "up_proj.weight", {intermediate, hidden}, columns, all));
  ASSIGN_OR_RETURN(w.gate_up, matrix({gate, up}));
  ASSIGN_OR_RETURN(Part down, part(prefix + "down_proj.weight", {hidden, intermediate}, all, columns));
  ASSIGN_OR_RETURN(w.down, matrix({down}, plan_.mlp_leaf_ends));
  if (config_.mlp_bias) {
    ASSIGN_OR_RETURN(w.gate_up_bias, vector(prefix + "gate_proj.bias", intermediate, columns));
    ASSIGN_OR_RETURN(const std::vector<float> up_bias,
                     vector(prefix + "up_proj.bias", intermediate, columns));
    w.gate_up_bias.insert(w.gate_up_bias.end(), up_bias.begin(), up_bias.end());
    ASSIGN_OR_RETURN(w.down_bias, vector(prefix + "down_proj.bias", hidden, all));
  }
  return {};
}

Result<LayerWeights> Loader::layer(int64_t index) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const int64_t hidden = config_.hidden_size;
  LayerWeights w;
  ASSIGN_OR_RETURN(w.attention_norm, vector(prefix + "input_layernorm.weight", hidden, {0, hidden}));
  ASSIGN_OR_RETURN(w.mlp_norm, vector(prefix + "post_attention_layernorm.weight", hidden, {0, hidden}));
  RETURN_IF_ERROR(load_attention(prefix + "self_attn.", w));
  RETURN_IF_ERROR(load_mlp(prefix + "mlp.", w));
  return w;
}

Result<Weights> Loader::load() {
  RETURN_IF_ERROR(choose_type());
  const int64_t hidden = config_.hidden_size;
  const int64_t q = plan_.query_heads.size() * config_.head_dim,
                kv = plan_.kv_heads.size() * config_.head_dim;
  const int64_t per_layer = hidden * (2 * q + 2 * kv + 3 * plan_.mlp_columns.size());
  const int64_t heads = config_.tie_word_embeddings ? 1 : 2;
  total_ = (config_.num_layers * per_layer + heads * plan_.vocab.size() * hidden) *
           (type_ == WeightType::kBFloat16 ? 2 : 4);

  Weights weights;
  const std::vector<int64_t> table{config_.vocab_size, hidden};
  const IndexRange all{0, hidden};
  ASSIGN_OR_RETURN(Part embedding, part("model.embed_tokens.weight", table, plan_.vocab, all));
  if (config_.tie_word_embeddings) {
    ASSIGN_OR_RETURN(weights.head, matrix({embedding}));
  } else {
    ASSIGN_OR_RETURN(weights.embedding, matrix({embedding}));
    ASSIGN_OR_RETURN(Part head, part("lm_head.weight", table, plan_.vocab, all));
    ASSIGN_OR_RETURN(weights.head, matrix({head}));
  }
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    ASSIGN_OR_RETURN(LayerWeights w, layer(i));
    weights.bytes += static_cast<int64_t>(w.qkv.bytes() + w.o.bytes() + w.gate_up.bytes() + w.down.bytes());
    weights.layers.push_back(std::move(w));
  }
  ASSIGN_OR_RETURN(weights.final_norm, vector("model.norm.weight", hidden, all));
  weights.bytes += static_cast<int64_t>(weights.head.bytes() + weights.embedding.bytes());
  RETURN_IF_ERROR(files_.check_unchanged());
  return weights;
}

}  // namespace

Result<Weights> load_weights(TensorFiles& files, const ModelConfig& config, const ShardPlan& plan,
                             ThreadPool& pool, const LoadProgress& progress) {
  return Loader(files, config, plan, pool, progress).load();
}

}  // namespace outrider
