#include "heads/head_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/json_text.h"
#include "heads/module_config.h"
#include "model_files/gguf_model.h"
#include "model_files/gguf_parts.h"
#include "model_files/head_mark.h"
#include "model_files/layer_config.h"
#include "model_files/wrapper_config.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr std::array kKindNames{"eagle", "eagle3", "mtp", "medusa", "dflash", "hydra"};
constexpr int64_t kMaxAuxLayers = 16, kMaxBlockLayers = 64, kMostBlockRows = 64, kMaxMarkovRank = 4096,
                  kMaxHydraBranches = 16, kMaxHydraLayers = 16;

// Read here, or of no effect on what a head computes.
constexpr std::array kHeadKeys = std::to_array<std::string_view>({
    "bias",
    "draft_vocab_size",
    "eagle_aux_hidden_state_layer_ids",
    "eagle_config",
    "embed_requires_grad",
    "fc_norm",
    "has_no_defaults_at_init",
    "norm_before_fc",
    "norm_before_residual",
    "norm_output",
    "mtp_num_hidden_layers",
    "num_nextn_predict_layers",
    "parallel_drafting",
    "speculators_config",
    "speculators_model_type",
    "speculators_version",
    "target_hidden_size",
    "target_model_type",
    "transformer_layer_config",
    "use_aux_hidden_state",
});

constexpr std::array kMedusaKeys = std::to_array<std::string_view>(
    {"_name_or_path", "architectures", "base_model_name_or_path", "dtype", "hidden_size", "medusa_fc_bias",
     "medusa_head_dir", "medusa_num_heads", "medusa_num_layers", "model_type", "num_heads",
     "num_hidden_layers", "num_lookahead_tokens", "original_lm_head", "torch_dtype", "transformers_version",
     "truncated_vocab_size", "version", "vocab_size"});

constexpr std::array kHydraKeys = std::to_array<std::string_view>(
    {"_name_or_path", "architectures", "base_model_name_or_path", "dtype", "grounded_heads",
     "hidden_state_offset", "hydra_head_arch", "hydra_num_heads", "hydra_num_layers", "model_type",
     "torch_dtype", "transformers_version"});

// Keys of DFlash and DSpark that are read here, or that do not change drafts.
constexpr std::array kBlockKeys = std::to_array<std::string_view>({
    "architectures",
    "auto_map",
    "aux_hidden_state_layer_ids",
    "block_size",
    "ce_loss_alpha",
    "conv_group_size",
    "conv_kernel_size",
    "confidence_head_alpha",
    "confidence_head_with_markov",
    "dflash_config",
    "draft_vocab_size",
    "dtype",
    "enable_confidence_head",
    "final_logit_softcapping",
    "has_no_defaults_at_init",
    "input_embedding_scale",
    "is_causal",
    "l1_loss_alpha",
    "loss_decay_gamma",
    "markov_head_type",
    "markov_rank",
    "mask_token_id",
    "model_type",
    "num_anchors",
    "num_target_layers",
    "output_multiplier",
    "projector_type",
    "sample_from_anchor",
    "selector_rank",
    "selector_top_k",
    "sliding_window_non_causal",
    "speculators_config",
    "speculators_model_type",
    "speculators_version",
    "target_hidden_size",
    "tie_word_embeddings",
    "torch_dtype",
    "transformer_layer_config",
    "transformers_version",
});

// A file of the speculators library holds the layer in an object of its own.
Status read_layer(const JsonObject& config, HeadConfig& out) {
  if (out.kind == HeadKind::kMtp) return read_module_config(config, out);
  ASSIGN_OR_RETURN(const auto inner, config.object("transformer_layer_config"));
  const JsonObject& layer = inner ? *inner : config;
  ASSIGN_OR_RETURN(const ModelFamily family, family_of(layer, ModelFamily::kLlama));
  const bool is_block = out.kind == HeadKind::kDFlash;
  ASSIGN_OR_RETURN(out.layer, is_block ? read_layer_config(layer, family, kBlockKeys)
                                       : read_layer_config(layer, family, kHeadKeys));
  return {};
}

Status check_layer(const JsonObject& config, const HeadConfig& head, const ModelConfig& target) {
  ModelConfig rest = head.layer;  // less what heads of this kind may have
  if (head.kind == HeadKind::kDFlash)
    for (LayerKind& layer : rest.layers) layer.window = 0;
  const std::string beyond = head.kind == HeadKind::kMtp ? "" : beyond_plain_layers(rest);
  if (!beyond.empty())
    return unsupported(fmt::format("{}: a head with {} is not supported; those with layers like Llama's are",
                                   config.where(), beyond));
  if (head.kind == HeadKind::kDFlash && head.layer.num_layers > kMaxBlockLayers)
    return config.refused("num_hidden_layers", fmt::format("is {}; a block has {} layers at most",
                                                           head.layer.num_layers, kMaxBlockLayers));
  if (head.kind != HeadKind::kMtp && head.kind != HeadKind::kDFlash && head.layer.num_layers != 1)
    return config.refused(
        "num_hidden_layers",
        fmt::format("is {}; heads of one layer are supported{}", head.layer.num_layers,
                    mark_of_head(config).drafter.empty()
                        ? ", and no key says that this is a head: leave out --drafter if it "
                          "is a language model"
                        : ""));
  if (head.layer.vocab_size != target.vocab_size)
    return config.wrong("vocab_size",
                        fmt::format("is {}, but the target's is {}; this head belongs to another "
                                    "target",
                                    head.layer.vocab_size, target.vocab_size));
  if (head.kind != HeadKind::kEagle3 && head.layer.hidden_size != target.hidden_size)
    return config.wrong("hidden_size",
                        fmt::format("is {}, but the target's is {}; this head belongs to another "
                                    "target",
                                    head.layer.hidden_size, target.hidden_size));
  return {};
}

// Layers as a file lists them, `behind` more than it says.
Result<std::vector<int64_t>> layer_list(const JsonObject& where, const std::string& key, const json& list,
                                        const ModelConfig& target, int64_t behind) {
  if (!list.is_array() || list.empty() || list.size() > kMaxAuxLayers)
    return where.wrong(key, fmt::format("must be a list of 1 to {} layers", kMaxAuxLayers));
  std::vector<int64_t> aux_layers;
  for (const json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > target.num_layers - behind ||
        (!aux_layers.empty() && id.get<int64_t>() + behind <= aux_layers.back()))
      return where.wrong(key, fmt::format("is {}; layers must ascend, and the target has {}",
                                          json_text(list).substr(0, 100), target.num_layers));
    aux_layers.push_back(id.get<int64_t>() + behind);
  }
  return aux_layers;
}

// The layers whose inputs are read. Older files leave them to the reader.
Result<std::vector<int64_t>> read_aux_layers(const JsonObject& config, const ModelConfig& target) {
  const std::string key = "eagle_aux_hidden_state_layer_ids";
  ASSIGN_OR_RETURN(const auto inner, config.object("eagle_config"));
  const JsonObject& where = inner && inner->has(key) ? *inner : config;
  const json* list = where.find(key);
  if (!list) {
    std::vector<int64_t> aux_layers{2, target.num_layers / 2, target.num_layers - 3};
    if (aux_layers[0] < aux_layers[1] && aux_layers[1] < aux_layers[2]) return aux_layers;
    return where.wrong(key,
                       fmt::format("is missing, and a target of {} layers has no such layers by default; "
                                   "add it",
                                   target.num_layers));
  }
  return layer_list(where, key, *list, target, 0);
}

Status read_eagle3(const JsonObject& config, const ModelConfig& target, HeadConfig& out) {
  ASSIGN_OR_RETURN(const std::string type, config.string_or("speculators_model_type", "eagle3"));
  if (type != "eagle3") return config.wrong("speculators_model_type", "is " + type + ", not eagle3");
  ASSIGN_OR_RETURN(out.draft_vocab_size, config.integer("draft_vocab_size", {1, target.vocab_size}));
  ASSIGN_OR_RETURN(const int64_t read_size,
                   config.integer_or("target_hidden_size", target.hidden_size, {1, int64_t{1} << 20}));
  if (read_size != target.hidden_size)
    return config.wrong("target_hidden_size",
                        fmt::format("is {}, but the target's states have {}", read_size, target.hidden_size));
  ASSIGN_OR_RETURN(out.aux_layers, read_aux_layers(config, target));
  ASSIGN_OR_RETURN(out.norm_before_fc, config.boolean_or("norm_before_fc", false));
  ASSIGN_OR_RETURN(out.fc_norm, config.boolean_or("fc_norm", false));
  ASSIGN_OR_RETURN(out.norm_before_residual, config.boolean_or("norm_before_residual", false));
  ASSIGN_OR_RETURN(out.norm_output, config.boolean_or("norm_output", false));
  if (out.norm_before_fc && out.fc_norm)
    return config.wrong("fc_norm", "and \"norm_before_fc\" are both true; keep the right one");
  ASSIGN_OR_RETURN(const bool parallel, config.boolean_or("parallel_drafting", false));
  if (parallel)
    return config.refused("parallel_drafting", "is true; heads that draft token by token are supported");
  return {};
}

// Refuses keys that are not read here, unless their values change nothing.
Status check_block_keys(const JsonObject& config) {
  constexpr std::array kRead{
      "target_layer_ids", "mask_token_id",         "block_size",        "is_causal",
      "causal",           "conv_kernel_size",      "conv_group_size",   "selector_rank",
      "selector_top_k",   "input_embedding_scale", "output_multiplier", "final_logit_softcapping"};
  ASSIGN_OR_RETURN(const auto own, config.object("dflash_config"));
  const auto changes_nothing = [](const std::string& key, const json& value) {
    return value.is_null() || value == false ||
           (value == 1.0 && (key.ends_with("_scale") || key == "output_multiplier"));
  };
  if (own)
    for (const auto& [key, value] : own->members().items())
      if (std::find(kRead.begin(), kRead.end(), key) == kRead.end() && !changes_nothing(key, value))
        return own->refused(key, fmt::format("is {}, which is not understood of a DFlash head",
                                             json_text(value).substr(0, 100)));
  if (config.has("transformer_layer_config"))
    for (const auto& [key, value] : config.members().items())
      if (std::find(kBlockKeys.begin(), kBlockKeys.end(), key) == kBlockKeys.end() &&
          !changes_nothing(key, value))
        return config.refused(key,
                              fmt::format("is {}, which is not understood of a DFlash head; if it changes "
                                          "nothing, remove it",
                                          json_text(value).substr(0, 100)));
  ASSIGN_OR_RETURN(const std::string projector, config.string_or("projector_type", "dflash"));
  if (projector != "dflash") return config.refused("projector_type", "is " + projector + ", not dflash");
  return {};
}

Status read_markov(const JsonObject& config, bool is_dspark, HeadConfig& out) {
  ASSIGN_OR_RETURN(out.markov_rank, config.integer_or("markov_rank", 0, {0, kMaxMarkovRank}));
  ASSIGN_OR_RETURN(const std::string type, config.string_or("markov_head_type", "vanilla"));
  if (out.markov_rank > 0 && type != "vanilla")
    return config.refused("markov_head_type", "is " + type + "; vanilla is supported");
  ASSIGN_OR_RETURN(out.from_anchor, config.boolean_or("sample_from_anchor", is_dspark));
  return {};
}

// In a causal layer no row of a block sees a later one. Where the file does not say it of all layers, the
// layers with windows are causal in the authors' layout; in the speculators library's another key tells.
Result<std::vector<bool>> read_causality(const JsonObject& config, const ModelConfig& layer) {
  constexpr const char* kOfWindows = "sliding_window_non_causal";
  const auto layers = static_cast<size_t>(layer.num_layers);
  ASSIGN_OR_RETURN(const auto own, config.object("dflash_config"));
  for (const JsonObject* holder : {own ? &*own : &config, &config})
    for (const char* key : {"is_causal", "causal"})
      if (holder->has(key)) {
        ASSIGN_OR_RETURN(const bool all, holder->boolean_or(key, false));
        return std::vector<bool>(layers, all);
      }
  ASSIGN_OR_RETURN(const auto inner, config.object("transformer_layer_config"));
  const json* const types = (inner ? *inner : config).find("layer_types");
  std::vector<bool> slides;
  for (size_t i = 0; i < layers; ++i)  // a window as long as every text is none, and yet such a layer
    slides.push_back(types ? (*types)[i] == "sliding_attention"
                           : layer.layer(static_cast<int64_t>(i)).window > 0);
  if (!inner || std::find(slides.begin(), slides.end(), true) == slides.end()) return slides;
  if (!config.has(kOfWindows))
    return config.wrong(kOfWindows,
                        "is missing, and \"layer_types\" has sliding_attention; it says whether "
                        "rows of a block see later ones there");
  ASSIGN_OR_RETURN(const bool looks_ahead, config.boolean_or(kOfWindows, false));
  return looks_ahead ? std::vector<bool>(layers, false) : slides;
}

Status check_windows(const JsonObject& config, const HeadConfig& head) {
  for (int64_t i = 0; i < head.layer.num_layers; ++i)
    if (const int64_t window = head.layer.layer(i).window;
        window > 0 && window < head.block_size && !head.causal_layers[static_cast<size_t>(i)])
      return config.refused("sliding_window",
                            fmt::format("is {}, less than the {} rows of a block that sees all of itself",
                                        window, head.block_size));
  return {};
}

// Sizes of DFlash 2, all of which its files have, and factors that the files of DFlash may have, too.
Status read_dflash2(const JsonObject& config, HeadConfig& out) {
  ASSIGN_OR_RETURN(const auto own, config.object("dflash_config"));
  const auto holder = [&](const char* key) -> const JsonObject& {
    return own && own->has(key) ? *own : config;
  };
  constexpr double kMost = 1e6;
  for (const auto& [key, to] : {std::pair{"input_embedding_scale", &out.embedding_scale},
                                {"output_multiplier", &out.logit_factor},
                                {"final_logit_softcapping", &out.logit_cap}}) {
    ASSIGN_OR_RETURN(*to, holder(key).number_or(key, *to, 0, kMost));
  }
  constexpr std::array kSizes{"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"};
  if (std::none_of(kSizes.begin(), kSizes.end(), [&](const char* key) { return holder(key).has(key); }))
    return {};
  const int64_t hidden = out.layer.hidden_size;
  const auto read = [&](const char* key, int64_t most) { return holder(key).integer(key, {1, most}); };
  ASSIGN_OR_RETURN(out.conv_taps, read("conv_kernel_size", out.block_size));
  ASSIGN_OR_RETURN(out.conv_group, read("conv_group_size", hidden));
  ASSIGN_OR_RETURN(out.selector_rank, read("selector_rank", kMaxMarkovRank));
  ASSIGN_OR_RETURN(out.selector_candidates, read("selector_top_k", out.layer.vocab_size));
  if (out.draft_vocab_size > 0 && out.draft_vocab_size < out.layer.vocab_size)
    return config.refused(
        "draft_vocab_size",
        fmt::format("is {}; a DFlash 2 head with all tokens is supported", out.draft_vocab_size));
  if (out.from_anchor || out.markov_rank > 0)
    return config.refused(out.from_anchor ? "sample_from_anchor" : "markov_rank",
                          "is set, which is DSpark's; this file is DFlash 2's");
  if (hidden % out.conv_group != 0)
    return holder("conv_group_size")
        .wrong("conv_group_size",
               fmt::format("is {}, and no divisor of \"hidden_size\", {}", out.conv_group, hidden));
  return {};
}

// In the layouts of its authors, who name layers whose outputs are read, and of the speculators library,
// which names those whose inputs are.
Status read_block(const JsonObject& config, const ModelConfig& target, HeadConfig& out) {
  RETURN_IF_ERROR(check_block_keys(config));
  ASSIGN_OR_RETURN(const std::string type, config.string_or("speculators_model_type", "dflash"));
  if (type != "dflash" && type != "dflash2" && type != "dspark")
    return config.wrong("speculators_model_type", "is " + type + ", none of dflash, dflash2 and dspark");
  ASSIGN_OR_RETURN(const auto own, config.object("dflash_config"));
  const auto holder = [&](const char* key) -> const JsonObject& {
    return own && own->has(key) ? *own : config;
  };
  ASSIGN_OR_RETURN(out.block_size, holder("block_size").integer("block_size", {1, kMostBlockRows}));
  ASSIGN_OR_RETURN(const int64_t mask,
                   holder("mask_token_id").integer("mask_token_id", {0, target.vocab_size - 1}));
  out.mask_token = TokenId(static_cast<int32_t>(mask));
  ASSIGN_OR_RETURN(out.causal_layers, read_causality(config, out.layer));
  RETURN_IF_ERROR(check_windows(config, out));
  RETURN_IF_ERROR(read_markov(config, type == "dspark", out));
  if (out.block_tokens() < 1)
    return config.wrong("block_size",
                        "is 1, and \"sample_from_anchor\" is false: such a block says no token");
  ASSIGN_OR_RETURN(const int64_t layers,
                   config.integer_or("num_target_layers", target.num_layers, {1, int64_t{1} << 20}));
  if (layers != target.num_layers)
    return config.wrong("num_target_layers",
                        fmt::format("is {}, but the target has {}; this head belongs to another "
                                    "target",
                                    layers, target.num_layers));
  ASSIGN_OR_RETURN(const int64_t read_size,
                   config.integer_or("target_hidden_size", target.hidden_size, {1, int64_t{1} << 20}));
  if (read_size != target.hidden_size)
    return config.wrong("target_hidden_size",
                        fmt::format("is {}, but the target's states have {}", read_size, target.hidden_size));
  ASSIGN_OR_RETURN(out.draft_vocab_size, config.integer_or("draft_vocab_size", 0, {1, target.vocab_size}));
  RETURN_IF_ERROR(read_dflash2(config, out));
  const std::string inputs = "aux_hidden_state_layer_ids", outputs = "target_layer_ids";
  if (const json* const list = config.find(inputs)) {
    ASSIGN_OR_RETURN(out.aux_layers, layer_list(config, inputs, *list, target, 0));
  } else if (const json* const behind = holder(outputs.c_str()).find(outputs)) {
    ASSIGN_OR_RETURN(out.aux_layers, layer_list(holder(outputs.c_str()), outputs, *behind, target, 1));
  } else {
    return config.wrong("dflash_config",
                        "has no \"target_layer_ids\", the layers whose states are read; add them");
  }
  return {};
}

// Checks the keys of heads whose config has no layer.
Status check_keys(const JsonObject& config, std::span<const std::string_view> understood, const char* head) {
  for (const auto& [key, value] : config.members().items())
    if (std::find(understood.begin(), understood.end(), key) == understood.end())
      return config.refused(
          key, fmt::format("is {}, which is not understood of a {} head; if it changes nothing, remove it",
                           json_text(value).substr(0, 100), head));
  return {};
}

// How many branches and layers there are, the file says: configs count wrongly.
Result<HeadConfig> read_medusa(const JsonObject& config, const ModelConfig& target) {
  RETURN_IF_ERROR(check_keys(config, kMedusaKeys, "Medusa"));
  for (const auto& [key, expected] :
       {std::pair("hidden_size", target.hidden_size), std::pair("vocab_size", target.vocab_size)}) {
    ASSIGN_OR_RETURN(const int64_t size, config.integer_or(key, expected, {1, int64_t{1} << 24}));
    if (size != expected)
      return config.wrong(
          key,
          fmt::format("is {}, but the target's is {}; this head belongs to another target", size, expected));
  }
  HeadConfig out{.kind = HeadKind::kMedusa, .layer = target, .aux_layers = {target.num_layers}};
  ASSIGN_OR_RETURN(const int64_t known,
                   config.integer_or("truncated_vocab_size", target.vocab_size, {1, target.vocab_size}));
  if (known < target.vocab_size) out.draft_vocab_size = known;
  ASSIGN_OR_RETURN(out.shared_head, config.boolean_or("original_lm_head", false));
  return out;
}

// Everything that its authors' program needs is in the file, whatever its defaults are.
Result<HeadConfig> read_hydra(const JsonObject& config, const ModelConfig& target) {
  RETURN_IF_ERROR(check_keys(config, kHydraKeys, "Hydra"));
  HeadConfig out{.kind = HeadKind::kHydra, .layer = target, .aux_layers = {target.num_layers}};
  ASSIGN_OR_RETURN(out.branches, config.integer("hydra_num_heads", {1, kMaxHydraBranches}));
  ASSIGN_OR_RETURN(out.branch_layers, config.integer("hydra_num_layers", {1, kMaxHydraLayers}));
  if (!config.has("grounded_heads"))
    return config.wrong("grounded_heads", "is missing; it says whether branches read the drafted tokens");
  ASSIGN_OR_RETURN(out.grounded, config.boolean_or("grounded_heads", false));
  ASSIGN_OR_RETURN(const std::string arch, config.string("hydra_head_arch"));
  if (arch != "mlp" && arch != "prefix-mlp")
    return config.refused("hydra_head_arch", "is " + arch + "; mlp and prefix-mlp are supported");
  ASSIGN_OR_RETURN(const int64_t offset, config.integer_or("hidden_state_offset", 0, {0, int64_t{1} << 20}));
  if (offset != 0)
    return config.refused(
        "hidden_state_offset",
        fmt::format("is {}; heads that read the last layer's output, 0, are supported", offset));
  out.has_prefix = arch == "prefix-mlp";
  if (!out.has_prefix) return out;
  // Its layer is one of Llama's, with the target's sizes.
  if (const std::string beyond = beyond_plain_layers(target); !beyond.empty())
    return unsupported(
        fmt::format("{}: hydra_head_arch prefix-mlp has a layer like the target's, and the target "
                    "has {}",
                    config.where(), beyond));
  out.layer.num_layers = 1;
  out.layer.qk_norm = QkNorm::kNone;
  out.layer.qkv_bias = out.layer.o_bias = out.layer.mlp_bias = false;
  out.norm_output = true;
  return out;
}

struct HeadFile {
  json root;
  std::string name;
  bool norms_hold_one = false;  // as a GGUF file's do
};

// Modules of multi-token prediction may be in a GGUF file, or in a checkpoint that also reads images.
Result<HeadFile> read_head_file(const std::filesystem::path& directory, HeadKind kind) {
  HeadFile out;
  if (is_gguf_path(directory)) {
    out.name = directory.string();
    if (kind != HeadKind::kMtp)
      return unsupported(
          fmt::format("{}: GGUF files are read for --drafter mtp, not for --drafter {}; leave it out "
                      "if this is a language model",
                      out.name, head_kind_name(kind)));
    ASSIGN_OR_RETURN(const GgufParts parts, open_gguf(directory));
    ASSIGN_OR_RETURN(out.root, gguf_config(parts.content, out.name));
    out.norms_hold_one = gguf_norms_hold_one(parts.content);
    return out;
  }
  out.name = (directory / "config.json").string();
  ASSIGN_OR_RETURN(out.root, read_json_file(out.name));
  if (kind != HeadKind::kMtp) return out;
  ASSIGN_OR_RETURN(const JsonObject whole, JsonObject::view(out.root, out.name));
  ASSIGN_OR_RETURN(std::optional<json> text, text_model_config(whole));
  if (!text) return out;
  out.root = std::move(*text);
  out.name += ": text_config";
  return out;
}

}  // namespace

std::optional<HeadKind> head_kind_of(std::string_view drafter) {
  for (size_t i = 0; i < kKindNames.size(); ++i)
    if (drafter == kKindNames[i]) return static_cast<HeadKind>(i);
  return std::nullopt;
}

std::string_view head_kind_name(HeadKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

Result<HeadConfig> read_head_config(const std::filesystem::path& directory, HeadKind kind,
                                    const ModelConfig& target) {
  ASSIGN_OR_RETURN(const HeadFile file, read_head_file(directory, kind));
  ASSIGN_OR_RETURN(const JsonObject config, JsonObject::view(file.root, file.name));
  // A head reads the target's hidden states, embedding and output as they are.
  if (target.scales.embedding != 1 || target.scales.logit_divisor != 1 || target.scales.logit_cap > 0)
    return unsupported(
        fmt::format("{}: heads for {}, whose embeddings or logits are scaled, are not supported; use "
                    "--draft-model without --drafter {}",
                    file.name, architecture_name(target.family), head_kind_name(kind)));
  HeadConfig out{.kind = kind};
  if (const HeadMark mark = mark_of_head(config);
      !mark.drafter.empty() && mark.drafter != head_kind_name(kind))
    return config.wrong(mark.key, fmt::format("is of another head; use --drafter {} in place of {}",
                                              mark.drafter, head_kind_name(kind)));
  if (kind == HeadKind::kMedusa) return read_medusa(config, target);
  if (kind == HeadKind::kHydra) return read_hydra(config, target);
  RETURN_IF_ERROR(read_layer(config, out));
  RETURN_IF_ERROR(check_layer(config, out, target));
  if (kind == HeadKind::kEagle3) {
    RETURN_IF_ERROR(read_eagle3(config, target, out));
    return out;
  }
  if (kind == HeadKind::kDFlash) {
    RETURN_IF_ERROR(read_block(config, target, out));
    return out;
  }
  out.aux_layers = {target.num_layers};
  if (file.norms_hold_one) out.layer.norm_adds_one = false;
  if (kind == HeadKind::kMtp) return out;
  ASSIGN_OR_RETURN(out.fc_bias, config.boolean_or("bias", true));
  return out;
}

}  // namespace outrider
