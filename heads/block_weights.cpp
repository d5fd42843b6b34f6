#include "heads/block_weights.h"

#include "heads/head_weights.h"
#include "model_files/weight_map.h"

namespace outrider {
namespace {

class BlockLoader {
 public:
  BlockLoader(HeadTensors& tensors, const ModelConfig& layer) : tensors_(tensors), c_(layer) {}

  Result<BlockLayer> load(int64_t index) {
    prefix_ = fmt::format("layers.{}.", index);
    BlockLayer w;
    ASSIGN_OR_RETURN(w.attention_norm, vector("input_layernorm.weight", c_.hidden_size));
    RETURN_IF_ERROR(load_attention(w));
    ASSIGN_OR_RETURN(w.mlp, load_head_mlp(tensors_, c_, [&](const char* tail) { return name(tail); }));
    return w;
  }

 private:
  std::string name(const char* tail) const { return tensors_.own(prefix_ + tail); }
  Result<HeadVector> vector(const char* tail, int64_t size) { return tensors_.vector(name(tail), size); }
  Result<HeadMatrix> matrix(const char* tail, int64_t rows, int64_t columns) {
    return tensors_.matrix({name(tail)}, {rows}, columns, MatrixKind::kLayer);
  }

  Status load_attention(BlockLayer& w) {
    const int64_t hidden = c_.hidden_size;
    ASSIGN_OR_RETURN(w.q, matrix("self_attn.q_proj.weight", c_.q_size(), hidden));
    ASSIGN_OR_RETURN(w.kv, tensors_.matrix({name("self_attn.k_proj.weight"), name("self_attn.v_proj.weight")},
                                           {c_.kv_size(), c_.kv_size()}, hidden, MatrixKind::kLayer));
    ASSIGN_OR_RETURN(w.o, matrix("self_attn.o_proj.weight", hidden, c_.q_size()));
    if (c_.qkv_bias) {
      ASSIGN_OR_RETURN(w.q_bias, vector("self_attn.q_proj.bias", c_.q_size()));
      ASSIGN_OR_RETURN(w.kv_bias,
                       tensors_.vectors({name("self_attn.k_proj.bias"), name("self_attn.v_proj.bias")},
                                        {c_.kv_size(), c_.kv_size()}));
    }
    if (c_.o_bias) {
      ASSIGN_OR_RETURN(w.o_bias, vector("self_attn.o_proj.bias", hidden));
    }
    if (c_.qk_norm != QkNorm::kNone) {
      ASSIGN_OR_RETURN(w.q_norm, vector("self_attn.q_norm.weight", c_.head_dim));
      ASSIGN_OR_RETURN(w.k_norm, vector("self_attn.k_norm.weight", c_.head_dim));
    }
    return {};
  }

  HeadTensors& tensors_;
  const ModelConfig& c_;
  std::string prefix_;
};

// Loads the weights in the head's own files.
Status load_own(HeadTensors& tensors, const HeadConfig& config, BlockWeights& out) {
  const ModelConfig& c = config.layer;
  BlockLoader loader(tensors, c);
  for (int64_t i = 0; i < c.num_layers; ++i) {
    ASSIGN_OR_RETURN(BlockLayer layer, loader.load(i));
    out.layers.push_back(std::move(layer));
  }
  ASSIGN_OR_RETURN(out.output_norm, tensors.vector(tensors.own("norm.weight"), c.hidden_size));
  const int64_t known = config.draft_vocab_size > 0 ? config.draft_vocab_size : c.vocab_size;
  // The speculators library writes a head of its own, whole or not.
  if (known < c.vocab_size || tensors.find("lm_head.weight")) {
    ASSIGN_OR_RETURN(out.head,
                     tensors.matrix({"lm_head.weight"}, {known}, c.hidden_size, MatrixKind::kVocabulary));
    ASSIGN_OR_RETURN(out.target_ids, tensors.target_ids(known, c.vocab_size));
  }
  if (config.markov_rank > 0) {
    ASSIGN_OR_RETURN(out.markov_to, tensors.matrix({tensors.own("markov_head.markov_w2.weight")}, {known},
                                                   config.markov_rank, MatrixKind::kVocabulary));
  }
  return {};
}

}  // namespace

Result<BlockWeights> load_block_weights(const std::filesystem::path& directory, const HeadConfig& config,
                                        const std::filesystem::path& target_directory,
                                        const ModelConfig& target, WeightFormat format,
                                        HeadCompute& compute) {
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(directory));
  ASSIGN_OR_RETURN(TensorFiles target_files, TensorFiles::open(target_directory));
  ASSIGN_OR_RETURN(const WeightMap target_map, map_weights(target_files, target, ShardPlan(target, {})));
  BlockWeights out;
  const std::string name = directory.string();
  ASSIGN_OR_RETURN(out.projection, load_hidden_state_projection(directory, config, target_directory, target,
                                                                format, compute));
  HeadTensors tensors(files, config.kind, name, format, compute);
  for (const char* read : {"fc.weight", "hidden_norm.weight"}) tensors.find(tensors.own(read));
  if (Status status = load_own(tensors, config, out); !status.ok()) return status.in(name);
  if (out.head.n == 0) {
    ASSIGN_OR_RETURN(out.head, target_head(target_map, format, compute));
  }
  // Tables last: each takes its files along.
  if (config.markov_rank > 0) {
    ASSIGN_OR_RETURN(TensorFiles again, TensorFiles::open(directory));
    HeadTensors own(again, config.kind, name, format, compute);
    const std::string table = own.own("markov_head.markov_w1.weight");
    tensors.find(table);
    auto rows = own.part(table, {config.layer.vocab_size, config.markov_rank});
    if (!rows.ok()) return rows.status().in(name);
    out.markov_of.emplace(std::move(again), *rows);
    RETURN_IF_ERROR(out.markov_of->keep_at(compute));
  }
  const std::string embedding = tensors.own("embed_tokens.weight");
  const bool has_embedding = tensors.find(embedding) != nullptr;
  RETURN_IF_ERROR(tensors.check_all_used());
  if (has_embedding) {
    ASSIGN_OR_RETURN(TensorFiles again, TensorFiles::open(directory));
    HeadTensors own(again, config.kind, name, format, compute);
    auto rows = own.part(embedding, {config.layer.vocab_size, config.layer.hidden_size});
    if (!rows.ok()) return rows.status().in(name);
    out.tokens.emplace(std::move(again), *rows);
  } else {
    ASSIGN_OR_RETURN(TokenTable table, target_embedding(std::move(target_files), target_map, name,
                                                        target_directory.string(), config.layer.hidden_size));
    out.tokens.emplace(std::move(table));
  }
  for (const BlockLayer& layer : out.layers)
    out.bytes += layer.q.bytes + layer.kv.bytes + layer.o.bytes + layer.mlp.bytes();
  out.bytes += out.head.bytes + config.block_tokens() * out.markov_to.bytes;
  return out;
}

}  // namespace outrider
