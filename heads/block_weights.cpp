#include "heads/block_weights.h"

#include "heads/head_weights.h"
#include "model_files/weight_map.h"

namespace outrider {
namespace {

class BlockLoader {
 public:
  BlockLoader(HeadTensors& tensors, const HeadConfig& config)
      : tensors_(tensors), config_(config), c_(config.layer) {}

  Result<BlockLayer> load(int64_t index) {
    prefix_ = fmt::format("layers.{}.", index);
    BlockLayer w;
    ASSIGN_OR_RETURN(w.attention_norm, vector("input_layernorm.weight", c_.hidden_size));
    RETURN_IF_ERROR(load_attention(w));
    ASSIGN_OR_RETURN(w.mlp, load_head_mlp(tensors_, c_, [&](const char* tail) { return name(tail); }));
    if (config_.conv_taps == 0) return w;
    RETURN_IF_ERROR(load_convolutions("attention_conv", w.attention_conv));
    RETURN_IF_ERROR(load_convolutions("mlp_conv", w.mlp_conv));
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

  Status load_convolutions(const char* block, BlockConvolutions& w) {
    const int64_t taps = config_.conv_taps, each = taps * c_.hidden_size;
    const std::string base = name(block) + ".base_kernel";
    for (const auto& [first, to] : {std::pair{int64_t{0}, &w.before}, {each, &w.behind}}) {
      ASSIGN_OR_RETURN(*to, tensors_.numbers(base, {2, taps, c_.hidden_size}, first, each));
    }
    const int64_t coefficients = 2 * taps * (c_.hidden_size / config_.conv_group);
    ASSIGN_OR_RETURN(w.coefficients, tensors_.matrix({name(block) + ".kernel_projection.weight"},
                                                     {coefficients}, c_.hidden_size, MatrixKind::kLayer));
    return {};
  }

  HeadTensors& tensors_;
  const HeadConfig& config_;
  const ModelConfig& c_;
  std::string prefix_;
};

// Loads the weights in the head's own files.
Status load_own(HeadTensors& tensors, const HeadConfig& config, BlockWeights& out) {
  const ModelConfig& c = config.layer;
  BlockLoader loader(tensors, config);
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

// A table of a head's own files, which it takes along.
Result<TokenTable> open_table(const std::filesystem::path& directory, const HeadConfig& config,
                              const std::string& name, int64_t width, WeightFormat format,
                              HeadCompute& compute) {
  ASSIGN_OR_RETURN(TensorFiles files, TensorFiles::open(directory));
  HeadTensors own(files, config.kind, directory.string(), format, compute);
  auto rows = own.part(name, {config.layer.vocab_size, width});
  if (!rows.ok()) return rows.status().in(directory.string());
  return TokenTable(std::move(files), *rows);
}

// DFlash 2's. transformers writes its codebooks with ".weight", their authors without.
Status load_selector(const std::filesystem::path& directory, const HeadConfig& config, HeadTensors& tensors,
                     WeightFormat format, HeadCompute& compute, SelectorWeights& out) {
  const std::string prefix = tensors.own("candidate_selector.");
  out.candidates = config.selector_candidates;
  ASSIGN_OR_RETURN(out.projection,
                   tensors.matrix({prefix + "hidden_projection.weight"}, {config.selector_rank},
                                  config.layer.hidden_size, MatrixKind::kLayer));
  for (const auto& [codebook, to] :
       {std::pair{"predecessor_codebook", &out.predecessor}, {"successor_codebook", &out.successor}}) {
    std::string name = prefix + codebook;
    if (!tensors.find(name)) name += ".weight";
    tensors.find(name);
    ASSIGN_OR_RETURN(TokenTable table,
                     open_table(directory, config, name, config.selector_rank, format, compute));
    to->emplace(std::move(table));
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
    const std::string table = tensors.own("markov_head.markov_w1.weight");
    tensors.find(table);
    ASSIGN_OR_RETURN(TokenTable rows,
                     open_table(directory, config, table, config.markov_rank, format, compute));
    out.markov_of.emplace(std::move(rows));
    RETURN_IF_ERROR(out.markov_of->keep_at(compute));
  }
  if (config.selector_rank > 0)
    if (Status status = load_selector(directory, config, tensors, format, compute, out.selector);
        !status.ok())
      return status.in(name);
  const std::string embedding = tensors.own("embed_tokens.weight");
  const bool has_embedding = tensors.find(embedding) != nullptr;
  RETURN_IF_ERROR(tensors.check_all_used());
  if (has_embedding) {
    ASSIGN_OR_RETURN(TokenTable rows,
                     open_table(directory, config, embedding, config.layer.hidden_size, format, compute));
    out.tokens.emplace(std::move(rows));
  } else {
    ASSIGN_OR_RETURN(TokenTable table, target_embedding(std::move(target_files), target_map, name,
                                                        target_directory.string(), config.layer.hidden_size));
    out.tokens.emplace(std::move(table));
  }
  for (const BlockLayer& layer : out.layers)
    out.bytes += layer.q.bytes + layer.kv.bytes + layer.o.bytes + layer.mlp.bytes() +
                 layer.attention_conv.coefficients.bytes + layer.mlp_conv.coefficients.bytes;
  out.bytes += out.selector.projection.bytes + out.head.bytes + config.block_tokens() * out.markov_to.bytes;
  return out;
}

}  // namespace outrider
