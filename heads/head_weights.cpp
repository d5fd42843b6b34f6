#include "heads/head_weights.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "transformer/files/quantized_file.h"

namespace outrider {
namespace {

// Finds tensors of one head, and knows which were asked for.
class HeadMapper {
 public:
  HeadMapper(const TensorFiles& files, const HeadConfig& config, std::string name)
      : files_(files), config_(config), name_(std::move(name)) {
    all_bf16_ = true;
    for (const std::string_view tensor : files.names()) {
      const TensorInfo& info = *files.find(tensor);
      all_bf16_ &= info.shape.size() != 2 || info.dtype == Dtype::kBF16;
    }
  }

  // Names of the head's layer: published as midlayer, and renamed to layers.0 by others.
  std::string layer(const std::string& tail) const {
    if (config_.kind == HeadKind::kMtp) return "model.mtp_layers.0." + tail;
    for (const char* prefix : {"midlayer.", "layers.0.", "model.midlayer.", "model.layers.0."})
      if (files_.find(prefix + tail)) return prefix + tail;
    return (config_.kind == HeadKind::kEagle3 ? "midlayer." : "layers.0.") + tail;
  }
  std::string own(const std::string& tail) const {
    if (config_.kind == HeadKind::kMtp) return "model.mtp_layers.0." + tail;
    return files_.find("model." + tail) ? "model." + tail : tail;
  }
  const TensorInfo* find(const std::string& name) {
    const TensorInfo* info = files_.find(name);
    if (info) used_.insert(info->name);
    return info;
  }

  Result<TensorPart> part(const std::string& name, const std::vector<int64_t>& shape) {
    ASSIGN_OR_RETURN(const TensorInfo* info, files_.require(name, shape));
    if (!is_weight_dtype(info->dtype))
      return unsupported(fmt::format("{}: tensor {} is {}; a head's weights must be F32, BF16 or F16", name_,
                                     name, dtype_name(info->dtype)));
    used_.insert(info->name);
    const bool is_vector = shape.size() == 1;
    return TensorPart{.tensor = info,
                      .rows = {0, is_vector ? 1 : shape[0]},
                      .columns = {0, is_vector ? shape[0] : shape[1]}};
  }
  Result<std::vector<float>> vector(const std::string& name, int64_t size) {
    ASSIGN_OR_RETURN(const TensorPart found, part(name, {size}));
    return read_vector({found});
  }
  Result<MatrixSource> matrix(const std::vector<std::string>& names, const std::vector<int64_t>& rows,
                              int64_t columns) {
    MatrixSource source;
    for (size_t i = 0; i < names.size(); ++i) {
      ASSIGN_OR_RETURN(const TensorPart found, part(names[i], {rows[i], columns}));
      source.parts.push_back(found);
    }
    return source;
  }
  WeightType numbers() const { return all_bf16_ ? WeightType::kBFloat16 : WeightType::kFloat32; }

  // What else the file holds would be ignored silently.
  Status check_all_used() const {
    for (const std::string_view tensor : files_.names()) {
      if (used_.contains(tensor) || tensor == "t2d" || tensor.ends_with(".rotary_emb.inv_freq")) continue;
      if (config_.kind == HeadKind::kMtp && !tensor.starts_with("model.mtp_layers."))
        continue;  // the target's
      return invalid_argument(fmt::format("{}: tensor {} belongs to no {} head; is it another --drafter's?",
                                          name_, tensor, head_kind_name(config_.kind)));
    }
    return {};
  }

 private:
  const TensorFiles& files_;
  const HeadConfig& config_;
  std::string name_;
  bool all_bf16_ = false;
  std::set<std::string_view> used_;
};

class HeadLoader {
 public:
  HeadLoader(const TensorFiles& files, const HeadConfig& config, const std::string& name, WeightFormat format,
             ThreadPool& pool)
      : map_(files, config, name), config_(config), format_(format), pool_(pool) {}

  Status load(const ModelConfig& target, HeadWeights& out) {
    RETURN_IF_ERROR(load_inputs(target, out));
    RETURN_IF_ERROR(load_layer(out.layer));
    if (config_.kind != HeadKind::kEagle) {
      ASSIGN_OR_RETURN(
          out.output_norm,
          map_.vector(map_.own(config_.kind == HeadKind::kMtp ? "final_layernorm.weight" : "norm.weight"),
                      config_.layer.hidden_size));
    }
    if (config_.draft_vocab_size > 0) RETURN_IF_ERROR(load_head(out));
    return {};
  }
  HeadMapper& map() { return map_; }

  // Of EAGLE-3.
  Status load_projection(const ModelConfig& target, StateProjectionWeights& out) {
    const int64_t states = static_cast<int64_t>(config_.taps.size()) * target.hidden_size;
    ASSIGN_OR_RETURN(const MatrixSource source,
                     map_.matrix({map_.own("fc") + ".weight"}, {config_.layer.hidden_size}, states));
    ASSIGN_OR_RETURN(out.fc, packed(source, MatrixKind::kLayer));
    return load_states_norm(target, states, out);
  }

 private:
  Result<PackedMatrix> packed(const MatrixSource& source, MatrixKind kind) {
    ASSIGN_OR_RETURN(const WeightType type, weight_type(source, format_, kind, map_.numbers()));
    if (type == WeightType::kFloat8)
      return unsupported("--draft-weight-format fp8: heads run on the CPU; use int8");
    return pack_matrix(source, type, pool_);
  }

  Status load_inputs(const ModelConfig& target, HeadWeights& out) {
    const int64_t hidden = config_.layer.hidden_size;
    if (config_.kind == HeadKind::kEagle3) {
      ASSIGN_OR_RETURN(out.token_norm, map_.vector(map_.layer("input_layernorm.weight"), hidden));
      ASSIGN_OR_RETURN(out.hidden_norm, map_.vector(map_.layer("hidden_norm.weight"), hidden));
      return load_projection(target, out.projection);
    }
    const bool is_mtp = config_.kind == HeadKind::kMtp;
    const std::string fc = is_mtp ? map_.own("input_proj") : map_.own("fc");
    ASSIGN_OR_RETURN(const MatrixSource source, map_.matrix({fc + ".weight"}, {hidden}, 2 * hidden));
    ASSIGN_OR_RETURN(out.fc, packed(source, MatrixKind::kLayer));
    if (config_.fc_bias) {
      ASSIGN_OR_RETURN(out.fc_bias, map_.vector(fc + ".bias", hidden));
    }
    if (!is_mtp) return {};
    ASSIGN_OR_RETURN(out.token_norm, map_.vector(map_.own("token_layernorm.weight"), hidden));
    ASSIGN_OR_RETURN(out.hidden_norm, map_.vector(map_.own("hidden_layernorm.weight"), hidden));
    ASSIGN_OR_RETURN(out.attention_norm, map_.vector(map_.own("input_layernorm.weight"), hidden));
    return {};
  }

  // One vector over all states, or one for each layer's.
  Status load_states_norm(const ModelConfig& target, int64_t states, StateProjectionWeights& out) {
    if (config_.norm_before_fc) {
      const std::string name = map_.own("input_norm.weight");
      ASSIGN_OR_RETURN(out.norm, map_.vector(name, states));
    } else if (config_.fc_norm) {
      for (size_t i = 0; i < config_.taps.size(); ++i) {
        ASSIGN_OR_RETURN(const auto of_layer,
                         map_.vector(map_.own(fmt::format("fc_norm.{}.weight", i)), target.hidden_size));
        out.norm.insert(out.norm.end(), of_layer.begin(), of_layer.end());
      }
    }
    return {};
  }

  Status load_layer(LayerWeights& w) {
    const ModelConfig& c = config_.layer;
    const int64_t hidden = c.hidden_size, inputs = config_.kind == HeadKind::kEagle3 ? 2 * hidden : hidden;
    const auto attention = [&](const char* name) { return map_.layer(fmt::format("self_attn.{}", name)); };
    const auto mlp = [&](const char* name) { return map_.layer(fmt::format("mlp.{}", name)); };
    ASSIGN_OR_RETURN(
        const MatrixSource qkv,
        map_.matrix({attention("q_proj.weight"), attention("k_proj.weight"), attention("v_proj.weight")},
                    {c.q_size(), c.kv_size(), c.kv_size()}, inputs));
    ASSIGN_OR_RETURN(w.qkv, packed(qkv, MatrixKind::kLayer));
    ASSIGN_OR_RETURN(const MatrixSource o, map_.matrix({attention("o_proj.weight")}, {hidden}, c.q_size()));
    ASSIGN_OR_RETURN(w.o, packed(o, MatrixKind::kLayer));
    ASSIGN_OR_RETURN(const MatrixSource gate_up,
                     map_.matrix({mlp("gate_proj.weight"), mlp("up_proj.weight")},
                                 {c.intermediate_size, c.intermediate_size}, hidden));
    ASSIGN_OR_RETURN(w.dense().gate_up, packed(gate_up, MatrixKind::kLayer));
    ASSIGN_OR_RETURN(const MatrixSource down,
                     map_.matrix({mlp("down_proj.weight")}, {hidden}, c.intermediate_size));
    ASSIGN_OR_RETURN(w.dense().down, packed(down, MatrixKind::kLayer));
    ASSIGN_OR_RETURN(w.mlp_norm, map_.vector(map_.layer("post_attention_layernorm.weight"), hidden));
    if (c.qkv_bias)
      for (const char* name : {"q_proj.bias", "k_proj.bias", "v_proj.bias"}) {
        ASSIGN_OR_RETURN(const auto bias,
                         map_.vector(attention(name), name[0] == 'q' ? c.q_size() : c.kv_size()));
        w.qkv_bias.insert(w.qkv_bias.end(), bias.begin(), bias.end());
      }
    if (c.o_bias) {
      ASSIGN_OR_RETURN(w.o_bias, map_.vector(attention("o_proj.bias"), hidden));
    }
    if (c.mlp_bias) {
      for (const char* name : {"gate_proj.bias", "up_proj.bias"}) {
        ASSIGN_OR_RETURN(const auto bias, map_.vector(mlp(name), c.intermediate_size));
        w.dense().gate_up_bias.insert(w.dense().gate_up_bias.end(), bias.begin(), bias.end());
      }
      ASSIGN_OR_RETURN(w.dense().down_bias, map_.vector(mlp("down_proj.bias"), hidden));
    }
    if (c.qk_norm != QkNorm::kNone) {
      ASSIGN_OR_RETURN(w.q_norm, map_.vector(attention("q_norm.weight"), c.head_dim));
      ASSIGN_OR_RETURN(w.k_norm, map_.vector(attention("k_norm.weight"), c.head_dim));
    }
    return {};
  }

  Status load_head(HeadWeights& out) {
    const int64_t rows = config_.draft_vocab_size;
    ASSIGN_OR_RETURN(const MatrixSource head,
                     map_.matrix({"lm_head.weight"}, {rows}, config_.layer.hidden_size));
    ASSIGN_OR_RETURN(out.head, packed(head, MatrixKind::kVocabulary));
    const TensorInfo* d2t = map_.find("d2t");
    if (!d2t && rows == config_.layer.vocab_size) return {};
    if (!d2t)
      return not_found(fmt::format("tensor d2t is missing: draft_vocab_size is {} of {}, and it says which",
                                   rows, config_.layer.vocab_size));
    if (d2t->dtype != Dtype::kI64 || d2t->shape != std::vector<int64_t>{rows})
      return malformed(fmt::format("tensor d2t is {} of {} dimensions; it must be I64 [{}]",
                                   dtype_name(d2t->dtype), d2t->shape.size(), rows));
    std::set<int64_t> seen;
    for (int64_t i = 0; i < rows; ++i) {
      int64_t offset = 0;
      std::memcpy(&offset, d2t->data.data() + i * static_cast<int64_t>(sizeof offset), sizeof offset);
      const int64_t vocab = config_.layer.vocab_size;
      const int64_t id = offset >= -vocab && offset <= vocab ? i + offset : -1;
      if (id < 0 || id >= vocab || !seen.insert(id).second)
        return malformed(
            fmt::format("tensor d2t: entry {} gives token {}, which is outside the vocabulary of {} or "
                        "there twice",
                        i, id, vocab));
      out.target_ids.emplace_back(static_cast<int32_t>(id));
    }
    return {};
  }

  HeadMapper map_;
  const HeadConfig& config_;
  WeightFormat format_;
  ThreadPool& pool_;
};

int64_t bytes_of(const HeadWeights& w) {
  return static_cast<int64_t>(w.layer.bytes() + w.head.bytes() + w.fc.bytes());
}

}  // namespace

void TokenTable::read(TokenId id, std::span<float> to) const {
  read_floats(source_row(rows_, id.value()), 0, to);
}

Result<HeadWeights> load_head_weights(const std::filesystem::path& directory, const HeadConfig& config,
                                      const std::filesystem::path& target_directory,
                                      const ModelConfig& target, WeightFormat format, ThreadPool& pool) {
  ASSIGN_OR_RETURN(TensorFiles files, TensorFiles::open(directory));
  ASSIGN_OR_RETURN(TensorFiles target_files, TensorFiles::open(target_directory));
  ASSIGN_OR_RETURN(const WeightMap target_map, map_weights(target_files, target, ShardPlan(target, {})));
  HeadWeights out;
  HeadLoader loader(files, config, directory.string(), format, pool);
  if (Status status = loader.load(target, out); !status.ok()) return status.in(directory.string());
  if (config.kind != HeadKind::kEagle3) {
    out.projection.norm = read_vector(target_map.final_norm);
    const WeightType numbers = target_map.all_bf16 ? WeightType::kBFloat16 : WeightType::kFloat32;
    ASSIGN_OR_RETURN(const WeightType type,
                     weight_type(target_map.head, format, MatrixKind::kVocabulary, numbers));
    if (type == WeightType::kFloat8) return unsupported("the target's output head is stored in fp8");
    out.head = pack_matrix(target_map.head, type, pool);
  }
  // The embedding last: it takes the files along.
  const std::string own = loader.map().own("embed_tokens.weight");
  if (loader.map().find(own)) {
    ASSIGN_OR_RETURN(const TensorPart rows,
                     loader.map().part(own, {config.layer.vocab_size, config.layer.hidden_size}));
    RETURN_IF_ERROR(loader.map().check_all_used());
    out.tokens.emplace(std::move(files), rows);
  } else {
    RETURN_IF_ERROR(loader.map().check_all_used());
    const TensorPart rows = (target_map.embedding ? *target_map.embedding : target_map.head).parts.front();
    if (rows.scales)
      return unsupported(
          fmt::format("{}: the head reads {}, which is stored quantised; name the original target",
                      target_directory.string(), rows.tensor->name));
    if (config.layer.hidden_size != target.hidden_size)
      return not_found(
          fmt::format("{}: embed_tokens.weight is missing, and the target's rows have {} columns, not "
                      "{}",
                      directory.string(), target.hidden_size, config.layer.hidden_size));
    out.tokens.emplace(std::move(target_files), rows);
  }
  out.bytes = bytes_of(out);
  return out;
}

Result<StateProjectionWeights> load_state_projection(const std::filesystem::path& directory,
                                                     const HeadConfig& config,
                                                     const std::filesystem::path& target_directory,
                                                     const ModelConfig& target, WeightFormat format,
                                                     ThreadPool& pool) {
  StateProjectionWeights out;
  if (config.kind == HeadKind::kEagle3) {
    ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(directory));
    HeadLoader loader(files, config, directory.string(), format, pool);
    if (Status status = loader.load_projection(target, out); !status.ok())
      return status.in(directory.string());
    return out;
  }
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(target_directory));
  ASSIGN_OR_RETURN(const WeightMap map, map_weights(files, target, ShardPlan(target, {})));
  out.norm = read_vector(map.final_norm);
  return out;
}

}  // namespace outrider
