#include "model_files/layer_kinds.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "model_files/config_limits.h"

namespace outrider {
namespace {

using nlohmann::json;

// Which layers "layer_types" declares to see a window. Nothing: there is no such key.
Result<std::optional<std::vector<bool>>> read_layer_types(const JsonObject& config, const ModelConfig& out) {
  const json* types = config.find("layer_types");
  if (types == nullptr) return std::optional<std::vector<bool>>();
  if (!types->is_array()) return config.wrong("layer_types", "must be a list");
  std::vector<bool> slides;
  for (const json& type : *types) {
    if (type != "sliding_attention" && type != "full_attention")
      return config.refused("layer_types", "has " + json_text(type).substr(0, 100) +
                                               "; supported are full_attention and sliding_attention");
    slides.push_back(type == "sliding_attention");
  }
  if (types->size() != static_cast<size_t>(out.num_layers))
    return config.wrong("layer_types",
                        fmt::format("has {} entries for {} layers", types->size(), out.num_layers));
  return std::optional(std::move(slides));
}

// 0: none.
Result<int64_t> read_window(const JsonObject& config, const FamilyTraits& traits, const ModelConfig& out) {
  const auto found = config.members().find("sliding_window");
  if (found != config.members().end() && found->is_null()) return int64_t{0};
  if (!config.has("sliding_window") && traits.defaults.window == 0) return int64_t{0};
  ASSIGN_OR_RETURN(const int64_t window,
                   config.integer_or("sliding_window", traits.defaults.window, {1, kMaxPositions}));
  return window >= out.max_position_embeddings ? 0 : window;
}

Result<bool> uses_windows(const JsonObject& config) { return config.boolean_or("use_sliding_window", false); }

bool any(const std::vector<bool>& layers) {
  return std::find(layers.begin(), layers.end(), true) != layers.end();
}

template <class Slides>
std::vector<bool> by_index(const ModelConfig& out, Slides slides) {
  std::vector<bool> layers;
  for (int64_t i = 0; i < out.num_layers; ++i) layers.push_back(slides(i));
  return layers;
}

// Gemma 3: every n-th layer attends to the whole text; returns n.
Result<int64_t> read_pattern(const JsonObject& config, const FamilyTraits& traits) {
  const std::string key =
      config.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  return config.integer_or(key, traits.defaults.full_every, {1, kMaxLayers});
}

// Which layers slide, where there is a window at all.
Result<std::vector<bool>> read_sliding(const JsonObject& config, const FamilyTraits& traits,
                                       const ModelConfig& out, const std::vector<bool>& turns) {
  // There, "layer_types" says which layers have a gated delta net (delta_net_config.cpp).
  if (traits.delta_nets != DeltaNets::kNone)
    return by_index(out, [&](int64_t) { return config.has("sliding_window"); });
  ASSIGN_OR_RETURN(const auto declared, read_layer_types(config, out));
  switch (traits.windows) {
    case Windows::kEveryLayer:
      return by_index(out, [](int64_t) { return true; });
    case Windows::kNone:
      if (declared && any(*declared))
        return config.refused(
            "layer_types",
            fmt::format("has sliding_attention, which {} does not read; remove it", traits.architecture));
      return by_index(out, [&](int64_t) { return config.has("sliding_window"); });
    case Windows::kOffOnly: {
      ASSIGN_OR_RETURN(const bool use, uses_windows(config));
      if (use)
        return config.refused("use_sliding_window",
                              fmt::format("is true; windows of {} are not supported", traits.architecture));
      return declared.value_or(by_index(out, [](int64_t) { return false; }));
    }
    case Windows::kUpperLayers: {
      ASSIGN_OR_RETURN(const bool use, uses_windows(config));
      ASSIGN_OR_RETURN(const int64_t full, config.integer_or("max_window_layers", 28, {0, kMaxLayers}));
      if (declared && any(*declared) && !use)
        return config.wrong("use_sliding_window", "is not true, but \"layer_types\" has sliding_attention");
      return declared.value_or(by_index(out, [&](int64_t i) { return use && i >= full; }));
    }
    case Windows::kEveryOther:
      return declared.value_or(by_index(out, [](int64_t i) { return i % 2 == 0; }));
    case Windows::kByPattern: {
      ASSIGN_OR_RETURN(const int64_t pattern, read_pattern(config, traits));
      return declared.value_or(by_index(out, [&](int64_t i) { return (i + 1) % pattern != 0; }));
    }
    case Windows::kWithoutRope: {
      ASSIGN_OR_RETURN(const bool use, uses_windows(config));
      if (!use) return by_index(out, [](int64_t) { return false; });
      return declared.value_or(by_index(out, [&](int64_t i) { return !turns[static_cast<size_t>(i)]; }));
    }
  }
  CHECK(false, "windows {}", static_cast<int>(traits.windows));
}

// A list of 1 for layers that turn and 0 for those that do not.
Result<std::vector<bool>> read_turns(const JsonObject& config, const FamilyTraits& traits,
                                     const ModelConfig& out) {
  if (!traits.rotates_by_layer) return by_index(out, [](int64_t) { return true; });
  const json* list = config.find("no_rope_layers");
  if (list == nullptr) {
    ASSIGN_OR_RETURN(const int64_t interval, config.integer_or("no_rope_layer_interval", 4, {1, kMaxLayers}));
    return by_index(out, [&](int64_t i) { return (i + 1) % interval != 0; });
  }
  std::vector<bool> turns;
  if (list->is_array())
    for (const json& entry : *list)
      if (entry == 0 || entry == 1) turns.push_back(entry == 1);
  if (!list->is_array() || turns.size() != list->size() || list->size() < static_cast<size_t>(out.num_layers))
    return config.wrong(
        "no_rope_layers",
        fmt::format("must be a list of a 1 (turns) or 0 for each of the {} layers", out.num_layers));
  return turns;
}

Result<std::vector<bool>> read_expert_layers(const JsonObject& config, const FamilyTraits& traits,
                                             const ModelConfig& out) {
  if (traits.experts != nullptr && traits.experts->dense_layers_first) {
    ASSIGN_OR_RETURN(const int64_t dense, config.integer("first_k_dense_replace", {0, kMaxLayers}));
    return by_index(out, [&](int64_t i) { return i >= dense; });
  }
  if (traits.experts != nullptr && traits.experts->layers_by_range) {
    ASSIGN_OR_RETURN(const int64_t start, config.integer_or("moe_layer_start_index", 1, {0, kMaxLayers}));
    ASSIGN_OR_RETURN(const int64_t end, config.integer_or("moe_layer_end_index", -1, {-1, kMaxLayers}));
    ASSIGN_OR_RETURN(const int64_t interval, config.integer_or("moe_layer_interval", 1, {1, kMaxLayers}));
    return by_index(
        out, [&](int64_t i) { return i >= start && (end == -1 || i <= end) && (i + 1) % interval == 0; });
  }
  if (traits.experts == nullptr || !traits.experts->may_skip_layers)
    return by_index(out, [&](int64_t) { return out.experts.has_value(); });
  ASSIGN_OR_RETURN(const int64_t step, config.integer_or("decoder_sparse_step", 1, {1, kMaxLayers}));
  std::vector<bool> layers = by_index(out, [&](int64_t i) { return (i + 1) % step == 0; });
  if (const json* list = config.find("mlp_only_layers")) {
    if (!list->is_array()) return config.wrong("mlp_only_layers", "must be a list of layers");
    for (const json& layer : *list) {
      if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= layers.size())
        return config.wrong("mlp_only_layers", fmt::format("has {}; there are {} layers",
                                                           json_text(layer).substr(0, 100), out.num_layers));
      layers[layer.get<size_t>()] = false;
    }
  }
  return layers;
}

}  // namespace

Status read_layer_kinds(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out) {
  ASSIGN_OR_RETURN(const std::vector<bool> turns, read_turns(config, traits, out));
  ASSIGN_OR_RETURN(const std::vector<bool> slides, read_sliding(config, traits, out, turns));
  ASSIGN_OR_RETURN(const std::vector<bool> experts, read_expert_layers(config, traits, out));
  ASSIGN_OR_RETURN(const int64_t window, any(slides) ? read_window(config, traits, out) : Result<int64_t>(0));
  if (window > 0 && (traits.windows == Windows::kNone || traits.windows == Windows::kOffOnly))
    return config.refused("sliding_window", fmt::format("is {}, which {} does not read; remove it", window,
                                                        traits.architecture));
  const bool turns_locally = traits.windows == Windows::kByPattern;
  for (size_t i = 0; i < static_cast<size_t>(out.num_layers); ++i)
    out.layers.push_back({.window = slides[i] ? window : 0,
                          .rope = !turns[i]                    ? LayerRope::kNone
                                  : turns_locally && slides[i] ? LayerRope::kLocal
                                                               : LayerRope::kMain,
                          .has_experts = experts[i]});
  return {};
}

}  // namespace outrider
