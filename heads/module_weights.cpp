#include "heads/module_weights.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "model_files/tensor_parts.h"
#include "model_files/unused_tensors.h"
#include "model_files/weight_map.h"

namespace outrider {
namespace {

// How a publisher names the tensors beside the layer, and which half of a pair comes first.
struct ModuleNames {
  std::string prefix;        // of all of the module's tensors
  std::string layer_prefix;  // of its layer's
  const char* fc;
  const char* token_norm;
  const char* hidden_norm;
  const char* output_norm;
  bool hidden_state_first = false;
  const char* embedding = nullptr;  // of its own, where the publisher has one
  const char* head = nullptr;
};

ModuleNames mimo_names() {
  const std::string prefix = "model.mtp_layers.0.";
  return {.prefix = prefix,
          .layer_prefix = prefix,
          .fc = "input_proj",
          .token_norm = "token_layernorm",
          .hidden_norm = "hidden_layernorm",
          .output_norm = "final_layernorm",
          .hidden_state_first = true};
}

ModuleNames qwen_names() {
  return {.prefix = "mtp.",
          .layer_prefix = "mtp.layers.0.",
          .fc = "fc",
          .token_norm = "pre_fc_norm_embedding",
          .hidden_norm = "pre_fc_norm_hidden",
          .output_norm = "norm"};
}

ModuleNames deepseek_names(std::string prefix) {
  return {.prefix = prefix,
          .layer_prefix = prefix,
          .fc = "eh_proj",
          .token_norm = "enorm",
          .hidden_norm = "hnorm",
          .output_norm = "shared_head.norm",
          .embedding = "embed_tokens",
          .head = "shared_head.head"};
}

// "model.layers.61." of "model.layers.61.enorm.weight"; empty for other names.
std::string deepseek_prefix(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.", kNorm = ".enorm.weight";
  if (name.size() <= kLayers.size() + kNorm.size() || !name.starts_with(kLayers) || !name.ends_with(kNorm))
    return "";
  const std::string_view number = name.substr(0, name.size() - kNorm.size()).substr(kLayers.size());
  int64_t layer = 0;
  const auto read = std::from_chars(number.data(), number.data() + number.size(), layer);
  if (read.ec != std::errc() || read.ptr != number.data() + number.size()) return "";
  return std::string(name.substr(0, name.size() - kNorm.size() + 1));
}

// Told by a norm, which is quantised nowhere. In the target's own files DeepSeek's module is the layer behind
// the last; one that was put into a file of its own is mostly called layer 0.
Result<ModuleNames> find_module(const TensorFiles& files, const std::string& directory) {
  std::vector<ModuleNames> found;
  for (const std::string_view name : files.names()) {
    if (std::string prefix = deepseek_prefix(name); !prefix.empty())
      found.push_back(deepseek_names(std::move(prefix)));
    if (name == "mtp.pre_fc_norm_embedding.weight") found.push_back(qwen_names());
    if (name == "model.mtp_layers.0.token_layernorm.weight") found.push_back(mimo_names());
  }
  if (found.empty())
    return not_found(fmt::format(
        "{}: no module of multi-token prediction: neither model.layers.N.enorm.weight (DeepSeek), "
        "mtp.pre_fc_norm_embedding.weight (Qwen) nor model.mtp_layers.0.token_layernorm.weight (MiMo) is "
        "there",
        directory));
  if (found.size() > 1)
    return unsupported(fmt::format("{}: holds the modules {}* and {}*; one module is supported", directory,
                                   found[0].prefix, found[1].prefix));
  return std::move(found.front());
}

// Beside a module lies nothing, in a directory of its own; or the target, in the target's files; or the
// target once more, where these files are another copy of it. What is neither would be ignored silently.
Status check_beside(const TensorFiles& files, const ModuleNames& names,
                    const std::filesystem::path& directory, const std::filesystem::path& target) {
  std::error_code none;
  if (std::filesystem::equivalent(directory, target, none)) return {};  // told where the target is loaded
  std::vector<std::string_view> others = files.names();
  if (const auto model = read_model_config(directory); model.ok()) {
    const auto unused = unused_tensors(files, *model);
    const std::string own = names.layer_prefix + "input_layernorm.weight";  // else the "model" is the module
    if (unused.ok() && std::find(unused->begin(), unused->end(), own) != unused->end()) others = *unused;
  }
  for (const std::string_view name : others)
    if (!name.starts_with(names.prefix) && !name.ends_with(".rotary_emb.inv_freq"))
      return unsupported(fmt::format(
          "{}: tensor {} is neither of the module {}* nor of a whole model beside it, and nothing "
          "reads it; remove it from the file",
          files.file_of(name), name, names.prefix));
  return {};
}

bool is_bf16(const MatrixSource& source) {
  return std::all_of(source.parts.begin(), source.parts.end(), [](const TensorPart& part) {
    return part.scales || part.coded || part.tensor->dtype == Dtype::kBF16;
  });
}

class ModuleLoader {
 public:
  ModuleLoader(const TensorFiles& files, const HeadConfig& config, ModuleNames names, WeightFormat format,
               HeadCompute& compute)
      : files_(files),
        config_(config.layer),
        plan_(config_, {}),
        parts_(files, config_, plan_),
        names_(std::move(names)),
        format_(format),
        compute_(compute) {}

  Status load(HeadWeights& out) {
    RETURN_IF_ERROR(map(out));
    RETURN_IF_ERROR(check_all_used());
    return read(out);
  }
  // The module's own embedding and output head. A missing one is not an error.
  const std::optional<TensorPart>& embedding() const { return embedding_; }

 private:
  std::string own(const char* name) const { return names_.prefix + name + ".weight"; }

  // Finds everything, and reads nothing.
  Status map(HeadWeights& out) {
    const int64_t hidden = config_.hidden_size;
    out.hidden_state_first = names_.hidden_state_first;
    ASSIGN_OR_RETURN(fc_, whole(own(names_.fc), hidden, 2 * hidden));
    ASSIGN_OR_RETURN(layer_, map_layer(files_, config_, plan_, names_.layer_prefix, config_.layer(0)));
    for (const auto& [name, to] : {std::pair{names_.token_norm, &token_norm_},
                                   {names_.hidden_norm, &hidden_norm_},
                                   {names_.output_norm, &output_norm_}}) {
      ASSIGN_OR_RETURN(const TensorPart norm, parts_.vector(own(name), hidden, {0, hidden}));
      *to = {norm};
    }
    if (names_.head && files_.find(own(names_.head))) {
      ASSIGN_OR_RETURN(head_, whole(own(names_.head), config_.vocab_size, hidden));
    }
    if (names_.embedding && files_.find(own(names_.embedding))) {
      ASSIGN_OR_RETURN(const MatrixSource rows, whole(own(names_.embedding), config_.vocab_size, hidden));
      embedding_ = rows.parts.front();
      if (embedding_->scales)
        return unsupported(own(names_.embedding) + " is quantised by outrider; use the original model");
    }
    bool all_bf16 = is_bf16(fc_) && is_bf16(head_);
    for (const MatrixSource* matrix : layer_.matrices()) all_bf16 = all_bf16 && is_bf16(*matrix);
    numbers_ = all_bf16 ? WeightType::kBFloat16 : WeightType::kFloat32;
    return {};
  }

  Result<MatrixSource> whole(const std::string& name, int64_t rows, int64_t columns) const {
    ASSIGN_OR_RETURN(const TensorPart part, parts_.matrix(name, {rows, columns}, {0, rows}, {0, columns}));
    return MatrixSource{{part}, {}};
  }

  // Refuses tensors of the module that are not used, since they would be ignored silently.
  Status check_all_used() const {
    std::set<const TensorInfo*> used;
    add_used(layer_, used);
    for (const VectorSource* norm : {&token_norm_, &hidden_norm_, &output_norm_}) add_used(*norm, used);
    for (const MatrixSource* matrix : {&fc_, &head_}) add_used(matrix->parts, used);
    if (embedding_) add_used(std::vector{*embedding_}, used);
    for (const std::string_view name : files_.names())
      if (name.starts_with(names_.prefix) && !used.contains(files_.find(name)) &&
          !is_shape_of_used(files_, name, used) && !name.ends_with(".rotary_emb.inv_freq"))
        return unsupported(
            fmt::format("{}: tensor {} is of no part of such a module that is understood; one layer of {} is",
                        files_.file_of(name), name, family_name(config_.family)));
    return {};
  }

  Status read(HeadWeights& w) {
    constexpr auto kLayer = MatrixKind::kLayer;
    ASSIGN_OR_RETURN(w.fc, matrix(fc_, kLayer));
    w.token_norm = norm(token_norm_);
    w.hidden_norm = norm(hidden_norm_);
    w.output_norm = norm(output_norm_);
    w.attention_norm = norm(layer_.attention_norm);
    w.mlp.norm = norm(layer_.mlp_norm);
    const HeadPartTypes types{format_, numbers_};
    if (layer_.latent) {
      ASSIGN_OR_RETURN(w.latent, compute_.latent(*layer_.latent, config_, types));
    } else {
      RETURN_IF_ERROR(read_projections(w));
      w.qkv_bias = vector(layer_.qkv_bias);
      w.q_norm = norm(layer_.q_norm);
      w.k_norm = norm(layer_.k_norm);
    }
    ASSIGN_OR_RETURN(w.o, matrix(layer_.o, kLayer));
    w.o_bias = vector(layer_.o_bias);
    if (const ExpertSources* const mixture = layer_.mixture()) {
      ASSIGN_OR_RETURN(w.experts, compute_.experts(*mixture, config_, types));
    } else {
      ASSIGN_OR_RETURN(w.mlp.gate_up, matrix(layer_.dense().gate_up, kLayer));
      w.mlp.gate_up_bias = vector(layer_.dense().gate_up_bias);
      ASSIGN_OR_RETURN(w.mlp.down, matrix(layer_.dense().down, kLayer));
      w.mlp.down_bias = vector(layer_.dense().down_bias);
    }
    if (!head_.parts.empty()) {
      ASSIGN_OR_RETURN(w.head, matrix(head_, MatrixKind::kVocabulary));
    }
    return {};
  }

  // Gates of query heads are the last parts of what a layer's input is multiplied by. Here they are a matrix
  // of their own, so that queries, keys and values are rows as in other layers.
  Status read_projections(HeadWeights& w) {
    MatrixSource qkv = layer_.qkv, gate;
    if (config_.attention_gate) {
      const auto first = qkv.parts.end() - static_cast<std::ptrdiff_t>(config_.num_heads);
      gate.parts.assign(first, qkv.parts.end());
      qkv.parts.erase(first, qkv.parts.end());
      ASSIGN_OR_RETURN(w.attention_gate, matrix(gate, MatrixKind::kLayer));
    }
    ASSIGN_OR_RETURN(w.qkv, matrix(qkv, MatrixKind::kLayer));
    return {};
  }

  HeadVector vector(const VectorSource& source) { return compute_.vector(read_vector(source)); }
  HeadVector norm(const VectorSource& source) {
    return compute_.vector(read_norm(source, config_.norm_adds_one));
  }
  Result<HeadMatrix> matrix(const MatrixSource& source, MatrixKind kind) {
    ASSIGN_OR_RETURN(const WeightType type, weight_type(source, format_, kind, numbers_));
    return compute_.matrix(source, type);
  }

  const TensorFiles& files_;
  const ModelConfig& config_;
  const ShardPlan plan_;
  const TensorParts parts_;
  const ModuleNames names_;
  const WeightFormat format_;
  HeadCompute& compute_;
  WeightType numbers_ = WeightType::kFloat32;
  MatrixSource fc_, head_;
  VectorSource token_norm_, hidden_norm_, output_norm_;
  LayerSources layer_;
  std::optional<TensorPart> embedding_;
};

}  // namespace

std::string module_prefix(const TensorFiles& files) {
  const auto names = find_module(files, "");
  return names.ok() ? names->prefix : "";
}

Result<HeadWeights> load_module_weights(const std::filesystem::path& directory, const HeadConfig& config,
                                        const std::filesystem::path& target_directory,
                                        const ModelConfig& target, WeightFormat format,
                                        HeadCompute& compute) {
  ASSIGN_OR_RETURN(TensorFiles files, TensorFiles::open(directory));
  ASSIGN_OR_RETURN(TensorFiles target_files, TensorFiles::open(target_directory));
  ASSIGN_OR_RETURN(const WeightMap target_map, map_weights(target_files, target, ShardPlan(target, {})));
  ASSIGN_OR_RETURN(ModuleNames names, find_module(files, directory.string()));
  if (Status status = check_beside(files, names, directory, target_directory); !status.ok())
    return status.in(directory.string());
  HeadWeights out;
  ModuleLoader loader(files, config, std::move(names), format, compute);
  if (Status status = loader.load(out); !status.ok()) return status.in(directory.string());
  out.projection.norm = load_final_norm(target_map, target, compute);
  if (out.head.n == 0) {
    ASSIGN_OR_RETURN(out.head, target_head(target_map, format, compute));
  }
  // The embedding last: it takes the files along.
  if (loader.embedding()) {
    const TensorPart rows = *loader.embedding();
    out.tokens.emplace(std::move(files), rows);
  } else {
    ASSIGN_OR_RETURN(TokenTable table,
                     target_embedding(std::move(target_files), target_map, directory.string(),
                                      target_directory.string(), config.layer.hidden_size));
    out.tokens.emplace(std::move(table));
  }
  RETURN_IF_ERROR(out.tokens->keep_at(compute));
  return out;
}

}  // namespace outrider
