#include "heads/head_weights.h"

#include "heads/module_weights.h"
#include "model_files/weight_map.h"

namespace outrider {
namespace {

// Tensors of a Hydra head that are not of the layer which its states go through.
constexpr std::array<std::string_view, 3> kOfBranches{"hydra_mlp.", "hydra_lm_head.", "input_embed_fn."};

class HeadLoader {
 public:
  HeadLoader(const TensorFiles& files, const HeadConfig& config, const std::string& name, WeightFormat format,
             HeadCompute& compute)
      : map_(files, config.kind, name, format, compute), config_(config) {}

  Status load(const ModelConfig& target, HeadWeights& out) {
    RETURN_IF_ERROR(load_inputs(target, out));
    RETURN_IF_ERROR(load_layer(out));
    if (config_.kind != HeadKind::kEagle) {
      ASSIGN_OR_RETURN(out.output_norm, map_.vector(map_.own("norm.weight"), config_.layer.hidden_size));
    }
    if (config_.draft_vocab_size > 0) RETURN_IF_ERROR(load_head(out));
    return {};
  }
  HeadTensors& map() { return map_; }

  // For EAGLE-3 and DFlash.
  Status load_projection(const ModelConfig& target, HiddenStateProjectionWeights& out) {
    const int64_t hidden_states = static_cast<int64_t>(config_.aux_layers.size()) * target.hidden_size;
    const int64_t hidden = config_.layer.hidden_size;
    ASSIGN_OR_RETURN(out.fc,
                     map_.matrix({map_.own("fc") + ".weight"}, {hidden}, hidden_states, MatrixKind::kLayer));
    if (config_.kind == HeadKind::kDFlash) {
      ASSIGN_OR_RETURN(out.projected_norm, map_.vector(map_.own("hidden_norm.weight"), hidden));
      return {};
    }
    return load_hidden_states_norm(target, hidden_states, out);
  }

 private:
  Status load_inputs(const ModelConfig& target, HeadWeights& out) {
    const int64_t hidden = config_.layer.hidden_size;
    if (config_.kind == HeadKind::kEagle3) {
      ASSIGN_OR_RETURN(out.token_norm, map_.vector(map_.layer("input_layernorm.weight"), hidden));
      ASSIGN_OR_RETURN(out.hidden_norm, map_.vector(map_.layer("hidden_norm.weight"), hidden));
      return load_projection(target, out.projection);
    }
    if (config_.kind == HeadKind::kHydra) {  // states alone
      ASSIGN_OR_RETURN(out.attention_norm, map_.vector(map_.layer("input_layernorm.weight"), hidden));
      return {};
    }
    const std::string fc = map_.own("fc");
    ASSIGN_OR_RETURN(out.fc, map_.matrix({fc + ".weight"}, {hidden}, 2 * hidden, MatrixKind::kLayer));
    if (config_.fc_bias) {
      ASSIGN_OR_RETURN(out.fc_bias, map_.vector(fc + ".bias", hidden));
    }
    return {};
  }

  // One vector over all states, or one for each layer's.
  Status load_hidden_states_norm(const ModelConfig& target, int64_t hidden_states,
                                 HiddenStateProjectionWeights& out) {
    if (config_.norm_before_fc) {
      ASSIGN_OR_RETURN(out.norm, map_.vector(map_.own("input_norm.weight"), hidden_states));
    } else if (config_.fc_norm) {
      for (size_t i = 0; i < config_.aux_layers.size(); ++i) {
        ASSIGN_OR_RETURN(HeadVector of_layer,
                         map_.vector(map_.own(fmt::format("fc_norm.{}.weight", i)), target.hidden_size));
        out.aux_layer_norms.push_back(std::move(of_layer));
      }
    }
    return {};
  }

  Status load_layer(HeadWeights& w) {
    const ModelConfig& c = config_.layer;
    const int64_t hidden = c.hidden_size, inputs = config_.kind == HeadKind::kEagle3 ? 2 * hidden : hidden;
    const auto attention = [&](const char* name) { return map_.layer(fmt::format("self_attn.{}", name)); };
    constexpr auto kLayer = MatrixKind::kLayer;
    ASSIGN_OR_RETURN(w.qkv, map_.matrix({attention("q_proj.weight"), attention("k_proj.weight"),
                                         attention("v_proj.weight")},
                                        {c.q_size(), c.kv_size(), c.kv_size()}, inputs, kLayer));
    ASSIGN_OR_RETURN(w.o, map_.matrix({attention("o_proj.weight")}, {hidden}, c.q_size(), kLayer));
    ASSIGN_OR_RETURN(w.mlp, load_head_mlp(map_, c, [&](const char* name) { return map_.layer(name); }));
    if (c.qkv_bias) {
      ASSIGN_OR_RETURN(w.qkv_bias, map_.vectors({attention("q_proj.bias"), attention("k_proj.bias"),
                                                 attention("v_proj.bias")},
                                                {c.q_size(), c.kv_size(), c.kv_size()}));
    }
    if (c.o_bias) {
      ASSIGN_OR_RETURN(w.o_bias, map_.vector(attention("o_proj.bias"), hidden));
    }
    if (c.qk_norm != QkNorm::kNone) {
      ASSIGN_OR_RETURN(w.q_norm, map_.vector(attention("q_norm.weight"), c.head_dim));
      ASSIGN_OR_RETURN(w.k_norm, map_.vector(attention("k_norm.weight"), c.head_dim));
    }
    return {};
  }

  Status load_head(HeadWeights& out) {
    const int64_t rows = config_.draft_vocab_size;
    ASSIGN_OR_RETURN(out.head, map_.matrix({"lm_head.weight"}, {rows}, config_.layer.hidden_size,
                                           MatrixKind::kVocabulary));
    ASSIGN_OR_RETURN(out.target_ids, map_.target_ids(rows, config_.layer.vocab_size));
    return {};
  }

  HeadTensors map_;
  const HeadConfig& config_;
};

int64_t bytes_of(const HeadWeights& w) {
  return w.qkv.bytes + w.attention_gate.bytes + w.latent.bytes + w.o.bytes + w.mlp.bytes() + w.experts.bytes +
         w.head.bytes + w.fc.bytes;
}

}  // namespace

Result<HeadMlp> load_head_mlp(HeadTensors& tensors, const ModelConfig& c,
                              const std::function<std::string(const char*)>& name) {
  const int64_t hidden = c.hidden_size, columns = c.intermediate_size;
  HeadMlp w;
  ASSIGN_OR_RETURN(w.gate_up, tensors.matrix({name("mlp.gate_proj.weight"), name("mlp.up_proj.weight")},
                                             {columns, columns}, hidden, MatrixKind::kLayer));
  ASSIGN_OR_RETURN(w.down,
                   tensors.matrix({name("mlp.down_proj.weight")}, {hidden}, columns, MatrixKind::kLayer));
  ASSIGN_OR_RETURN(w.norm, tensors.vector(name("post_attention_layernorm.weight"), hidden));
  if (!c.mlp_bias) return w;
  ASSIGN_OR_RETURN(w.gate_up_bias, tensors.vectors({name("mlp.gate_proj.bias"), name("mlp.up_proj.bias")},
                                                   {columns, columns}));
  ASSIGN_OR_RETURN(w.down_bias, tensors.vector(name("mlp.down_proj.bias"), hidden));
  return w;
}

Result<HeadWeights> load_head_weights(const std::filesystem::path& directory, const HeadConfig& config,
                                      const std::filesystem::path& target_directory,
                                      const ModelConfig& target, WeightFormat format, HeadCompute& compute) {
  if (config.kind == HeadKind::kMtp) {
    ASSIGN_OR_RETURN(HeadWeights module,
                     load_module_weights(directory, config, target_directory, target, format, compute));
    module.bytes = bytes_of(module);
    return module;
  }
  ASSIGN_OR_RETURN(TensorFiles files, TensorFiles::open(directory));
  ASSIGN_OR_RETURN(TensorFiles target_files, TensorFiles::open(target_directory));
  ASSIGN_OR_RETURN(const WeightMap target_map, map_weights(target_files, target, ShardPlan(target, {})));
  HeadWeights out;
  HeadLoader loader(files, config, directory.string(), format, compute);
  if (Status status = loader.load(target, out); !status.ok()) return status.in(directory.string());
  if (config.kind != HeadKind::kEagle3) {
    out.projection.norm = load_final_norm(target_map, target, compute);
    if (config.kind != HeadKind::kHydra) {
      ASSIGN_OR_RETURN(out.head, target_head(target_map, format, compute));
    }
  }
  const std::span<const std::string_view> of_others = config.kind == HeadKind::kHydra
                                                          ? std::span<const std::string_view>(kOfBranches)
                                                          : std::span<const std::string_view>();
  // The embedding last: it takes the files along.
  const std::string own = loader.map().own("embed_tokens.weight");
  if (loader.map().find(own)) {
    ASSIGN_OR_RETURN(const TensorPart rows,
                     loader.map().part(own, {config.layer.vocab_size, config.layer.hidden_size}));
    RETURN_IF_ERROR(loader.map().check_all_used(of_others));
    out.tokens.emplace(std::move(files), rows);
  } else {
    RETURN_IF_ERROR(loader.map().check_all_used(of_others));
    ASSIGN_OR_RETURN(TokenTable table,
                     target_embedding(std::move(target_files), target_map, directory.string(),
                                      target_directory.string(), config.layer.hidden_size));
    out.tokens.emplace(std::move(table));
  }
  // The layer that Hydra's states go through reads no tokens.
  if (config.kind != HeadKind::kHydra) RETURN_IF_ERROR(out.tokens->keep_at(compute));
  out.bytes = bytes_of(out);
  return out;
}

HeadVector load_final_norm(const WeightMap& map, const ModelConfig& target, HeadCompute& compute) {
  return compute.vector(read_norm(map.final_norm, target.norm_adds_one));
}

Result<HiddenStateProjectionWeights> load_hidden_state_projection(
    const std::filesystem::path& directory, const HeadConfig& config,
    const std::filesystem::path& target_directory, const ModelConfig& target, WeightFormat format,
    HeadCompute& compute) {
  HiddenStateProjectionWeights out;
  if (config.kind == HeadKind::kEagle3 || config.kind == HeadKind::kDFlash) {
    ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(directory));
    HeadLoader loader(files, config, directory.string(), format, compute);
    if (Status status = loader.load_projection(target, out); !status.ok())
      return status.in(directory.string());
    return out;
  }
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(target_directory));
  ASSIGN_OR_RETURN(const WeightMap map, map_weights(files, target, ShardPlan(target, {})));
  out.norm = load_final_norm(map, target, compute);
  return out;
}

}  // namespace outrider
