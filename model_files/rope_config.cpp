#include "model_files/rope_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "model_files/config_limits.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr double kMaxFactor = 1e6;

// Keys beside the type and those of every rotation.
struct RopeKind {
  std::string_view type;
  std::span<const std::string_view> keys;
};
using Keys = std::string_view;
constexpr std::array kAlways =
    std::to_array<Keys>({"rope_type", "type", "rope_theta", "partial_rotary_factor"});
// Images use these keys. Text has the same position in all sections.
constexpr std::array kImageKeys = std::to_array<Keys>({"mrope_section", "mrope_interleaved"});
constexpr std::array kFactorKeys = std::to_array<Keys>({"factor"});
// Hunyuan's scaling. With "alpha", its class in transformers reads no other key.
constexpr std::array kAlphaKeys =
    std::to_array<Keys>({"alpha", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"});
constexpr std::array kLlama3Keys = std::to_array<Keys>(
    {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
constexpr std::array kYarnKeys =
    std::to_array<Keys>({"factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
                         "beta_slow", "mscale", "mscale_all_dim", "truncate"});
constexpr std::array kLongKeys = std::to_array<Keys>(
    {"factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"});
constexpr std::array kKinds = {
    RopeKind{"default", {}},
    RopeKind{"linear", kFactorKeys},
    RopeKind{"dynamic", kFactorKeys},
    RopeKind{"llama3", kLlama3Keys},
    RopeKind{"yarn", kYarnKeys},
    RopeKind{"longrope", kLongKeys},
    RopeKind{"su", kLongKeys},  // longrope in the first files of Phi-3
    RopeKind{"proportional", kFactorKeys},
};

const RopeKind* find_kind(std::string_view type) {
  for (const RopeKind& kind : kKinds)
    if (kind.type == type) return &kind;
  return nullptr;
}

bool holds(std::span<const Keys> keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// Older files say "type", newer ones "rope_type". Nothing: neither does.
Result<std::optional<std::string>> read_rope_type(const JsonObject& rope, const FamilyTraits& traits) {
  if (!rope.has("rope_type") && !rope.has("type")) return std::optional<std::string>();
  const std::string key = rope.has("rope_type") ? "rope_type" : "type";
  ASSIGN_OR_RETURN(const std::string type, rope.string(key));
  ASSIGN_OR_RETURN(const std::string old_name, rope.string_or("type", type));
  if (old_name != type)
    return rope.wrong("type",
                      fmt::format("is {}, but \"rope_type\" is {}; keep the right one", old_name, type));
  if (find_kind(type) == nullptr || (type == "proportional" && !traits.varied_layers))
    return rope.refused(key,
                        "is " + type +
                            "; supported are default, linear, dynamic, llama3, yarn and longrope. Where the "
                            "scaling only extends the trained context, remove it and set "
                            "\"max_position_embeddings\" to the trained length");
  if (traits.long_rope_only && type != "default" && type != "longrope" && type != "su")
    return rope.refused(key,
                        fmt::format("is {}; {} reads only default and longrope", type, traits.architecture));
  return std::optional(type == "su" ? "longrope" : type);
}

// Refuses keys that the rotation does not read, since they would be ignored silently.
Status check_rope_keys(const JsonObject& rope, const std::optional<std::string>& type,
                       const FamilyTraits& traits, const ModelConfig& out) {
  const bool has_alpha = traits.has_ntk_alpha && type == "dynamic";
  const auto keys = has_alpha ? kAlphaKeys : type ? find_kind(*type)->keys : std::span<const Keys>();
  for (const auto& [key, value] : rope.members().items()) {
    if (value.is_null() || holds(kAlways, key) || holds(keys, key)) continue;
    if (key == "factor" && value == 1) continue;
    if (traits.delta_nets == DeltaNets::kSplit && holds(kImageKeys, key)) continue;
    if (key == "original_max_position_embeddings" && value == out.max_position_embeddings) continue;
    const std::string shown = json_text(value).substr(0, 100);
    return rope.refused(
        key, type ? fmt::format("is {}, which rope_type {} does not read; remove one of them", shown, *type)
                  : fmt::format("is {}, but there is no \"rope_type\"; add it, or remove the key", shown));
  }
  return {};
}

Result<RopeScaling> read_ntk_alpha(const JsonObject& rope, const ModelConfig& out) {
  NtkAlphaRopeScaling scaling;
  ASSIGN_OR_RETURN(scaling.alpha, rope.number("alpha", 1, kMaxFactor));
  if (out.head_dim <= 2) return rope.wrong("alpha", "needs heads of more than two dimensions");
  return RopeScaling(scaling);
}

Result<RopeScaling> read_llama3(const JsonObject& rope) {
  Llama3RopeScaling out;
  ASSIGN_OR_RETURN(out.factor, rope.number("factor", 1, kMaxFactor));
  ASSIGN_OR_RETURN(out.low_freq_factor, rope.number("low_freq_factor", 1e-6, kMaxFactor));
  ASSIGN_OR_RETURN(out.high_freq_factor, rope.number("high_freq_factor", 1e-6, kMaxFactor));
  ASSIGN_OR_RETURN(out.original_max_position_embeddings,
                   rope.integer("original_max_position_embeddings", {1, kMaxPositions}));
  if (out.high_freq_factor <= out.low_freq_factor)
    return rope.wrong("high_freq_factor", "must be larger than \"low_freq_factor\"");
  return RopeScaling(out);
}

// The growth of scores that YaRN recommends for a context `factor` times as long.
double yarn_amplitude(double factor, double mscale = 1) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

Result<double> read_yarn_amplitude(const JsonObject& rope, double factor) {
  if (rope.has("attention_factor")) return rope.number("attention_factor", 1e-6, kMaxFactor);
  ASSIGN_OR_RETURN(const double mscale, rope.number_or("mscale", 0, 0, kMaxFactor));
  ASSIGN_OR_RETURN(const double all_dim, rope.number_or("mscale_all_dim", 0, 0, kMaxFactor));
  if (mscale == 0 || all_dim == 0) return yarn_amplitude(factor);
  return yarn_amplitude(factor, mscale) / yarn_amplitude(factor, all_dim);
}

Status read_yarn(const JsonObject& rope, const ModelConfig& out, RopeConfig& to) {
  YarnRopeScaling yarn;
  ASSIGN_OR_RETURN(yarn.factor, rope.number("factor", 1, kMaxFactor));
  ASSIGN_OR_RETURN(yarn.beta_fast, rope.number_or("beta_fast", 32, 1e-6, kMaxFactor));
  ASSIGN_OR_RETURN(yarn.beta_slow, rope.number_or("beta_slow", 1, 1e-6, kMaxFactor));
  ASSIGN_OR_RETURN(yarn.truncate, rope.boolean_or("truncate", true));
  ASSIGN_OR_RETURN(
      yarn.original_max_position_embeddings,
      rope.integer_or("original_max_position_embeddings", out.max_position_embeddings, {1, kMaxPositions}));
  ASSIGN_OR_RETURN(to.amplitude, read_yarn_amplitude(rope, yarn.factor));
  if (out.latent) {
    ASSIGN_OR_RETURN(const double all_dim, rope.number_or("mscale_all_dim", 0, 0, kMaxFactor));
    if (all_dim != 0) to.of_scores = std::pow(yarn_amplitude(yarn.factor, all_dim), 2);
  }
  to.scaling = yarn;
  return {};
}

Result<std::vector<double>> read_divisors(const JsonObject& rope, const std::string& key, int64_t pairs) {
  std::vector<double> divisors;
  if (const json* list = rope.find(key); list != nullptr && list->is_array())
    for (const json& entry : *list)
      if (entry.is_number() && entry > 0 && entry < kMaxFactor) divisors.push_back(entry.get<double>());
  if (divisors.size() != static_cast<size_t>(pairs))
    return rope.wrong(key, fmt::format("must be a list of {} factors, one for each pair that turns", pairs));
  return divisors;
}

// Beyond the trained length every position would turn otherwise, those in the cache too: bits would depend on
// the longest text so far. So the trained length is the model's.
Status read_long_rope(const JsonObject& config, const JsonObject& rope, ModelConfig& out, RopeConfig& to) {
  const std::string key = "original_max_position_embeddings";
  const JsonObject& where = config.has(key) ? config : rope;
  ASSIGN_OR_RETURN(const int64_t trained, where.integer(key, {2, kMaxPositions}));
  const double ratio = static_cast<double>(out.max_position_embeddings) / static_cast<double>(trained);
  ASSIGN_OR_RETURN(const double factor, rope.number_or("factor", ratio, 1e-6, kMaxFactor));
  if (factor != ratio)
    return rope.wrong("factor",
                      fmt::format("is {}, but \"max_position_embeddings\" is {} times \"{}\"; programs "
                                  "differ in which one they read",
                                  factor, ratio, key));
  const double recommended =
      ratio <= 1 ? 1 : std::sqrt(1 + std::log(ratio) / std::log(static_cast<double>(trained)));
  ASSIGN_OR_RETURN(to.amplitude, rope.number_or("attention_factor", recommended, 1e-6, kMaxFactor));
  LongRopeScaling scaling;
  ASSIGN_OR_RETURN(scaling.factors, read_divisors(rope, "short_factor", to.dims / 2));
  ASSIGN_OR_RETURN(const auto beyond, read_divisors(rope, "long_factor", to.dims / 2));
  (void)beyond;
  to.scaling = std::move(scaling);
  out.max_position_embeddings = std::min(out.max_position_embeddings, trained);
  return {};
}

// Llama's class and most others turn whole heads, whatever the key says.
Status read_turning_dims(const JsonObject& object, const FamilyTraits& traits, const ModelConfig& out,
                         RopeConfig& to) {
  if (!object.has("partial_rotary_factor")) return {};
  ASSIGN_OR_RETURN(const double share, object.number("partial_rotary_factor", 0, 1));
  if (share != 1 && !traits.partial_rotation)
    return object.refused("partial_rotary_factor",
                          fmt::format("is {}; {} rotates whole heads", share, traits.architecture));
  to.dims = static_cast<int64_t>(static_cast<double>(out.head_dim) * share);
  if (to.dims < 2 || to.dims % 2 != 0)
    return object.wrong("partial_rotary_factor",
                        fmt::format("is {}, which makes {} of {} dimensions turn; their number must be even",
                                    share, to.dims, out.head_dim));
  return {};
}

// Reads one config object that describes a rotation into `to`.
Status read_rotation(const JsonObject& config, const JsonObject& rope, const FamilyTraits& traits,
                     ModelConfig& out, RopeConfig& to) {
  ASSIGN_OR_RETURN(const auto type, read_rope_type(rope, traits));
  RETURN_IF_ERROR(check_rope_keys(rope, type, traits, out));
  if (type != "proportional") RETURN_IF_ERROR(read_turning_dims(rope, traits, out, to));
  if (rope.has("rope_theta")) {
    ASSIGN_OR_RETURN(to.theta, rope.number("rope_theta", 1, 1e12));
  }
  if (type == "llama3") {
    ASSIGN_OR_RETURN(to.scaling, read_llama3(rope));
  } else if (type == "linear") {
    LinearRopeScaling linear;
    ASSIGN_OR_RETURN(linear.factor, rope.number("factor", 1, kMaxFactor));
    to.scaling = linear;
  } else if (type == "dynamic" && traits.has_ntk_alpha && rope.has("alpha")) {
    ASSIGN_OR_RETURN(to.scaling, read_ntk_alpha(rope, out));
  } else if (type == "dynamic") {  // changes nothing within max_position_embeddings, where texts end here
    RETURN_IF_ERROR(rope.number("factor", 1, kMaxFactor).status());
  } else if (type == "proportional") {
    ProportionalRopeScaling scaling;
    ASSIGN_OR_RETURN(scaling.share, rope.number_or("partial_rotary_factor", 1, 0, 1));
    ASSIGN_OR_RETURN(scaling.factor, rope.number_or("factor", 1, 1, kMaxFactor));
    to.scaling = scaling;
  } else if (type == "yarn") {
    return read_yarn(rope, out, to);
  } else if (type == "longrope") {
    return read_long_rope(config, rope, out, to);
  }
  return {};
}

// transformers prefers the length beside the rotation to the one in it. `key` is one of its names.
Status check_original_positions(const JsonObject& config, const std::string& key, const ModelConfig& out) {
  if (!config.has(key)) return {};
  ASSIGN_OR_RETURN(const int64_t beside, config.integer(key, {1, kMaxPositions}));
  int64_t inside = beside;
  if (const auto* llama3 = std::get_if<Llama3RopeScaling>(&out.rope.scaling))
    inside = llama3->original_max_position_embeddings;
  if (const auto* yarn = std::get_if<YarnRopeScaling>(&out.rope.scaling))
    inside = yarn->original_max_position_embeddings;
  if (beside == inside) return {};
  return config.wrong(key, fmt::format("is {}, but {} in the rotation; keep the right one", beside, inside));
}

// One of the two objects, or nothing where it is empty.
Result<std::optional<JsonObject>> rope_object(const JsonObject& config, const std::string& key) {
  ASSIGN_OR_RETURN(auto rope, config.object(key));
  if (!rope || rope->members().empty()) return std::optional<JsonObject>();
  return rope;
}

bool is_by_layer_type(const JsonObject& rope) {
  return rope.has("full_attention") || rope.has("sliding_attention");
}

// Gemma 3. Older files: rope_theta and rope_scaling for layers that see all, rope_local_base_freq for the
// others. Newer ones: an object for each.
Status read_two_rotations(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out) {
  ASSIGN_OR_RETURN(out.rope.theta, config.number_or("rope_theta", out.rope.theta, 1, 1e12));
  if (traits.defaults.local_theta == 0) {
    if (out.rope.theta != traits.defaults.rope_theta)
      return config.refused("rope_theta",
                            fmt::format("is {}, and versions of {} differ in whether layers with a "
                                        "window read it; give rope_parameters by layer type",
                                        out.rope.theta, traits.architecture));
    out.local_rope.theta = out.rope.theta;
  } else {
    ASSIGN_OR_RETURN(out.local_rope.theta,
                     config.number_or("rope_local_base_freq", traits.defaults.local_theta, 1, 1e12));
  }
  ASSIGN_OR_RETURN(const auto older, rope_object(config, "rope_scaling"));
  ASSIGN_OR_RETURN(const auto newer, rope_object(config, "rope_parameters"));
  if (older && newer)
    return config.wrong("rope_scaling",
                        "and \"rope_parameters\" are both there; keep the newer, rope_parameters");
  if (older) RETURN_IF_ERROR(read_rotation(config, *older, traits, out, out.rope));
  if (!newer) return {};
  for (const auto& [key, value] : newer->members().items())
    if (key != "full_attention" && key != "sliding_attention" && !value.is_null())
      return newer->refused(
          key, "is not understood; an object for full_attention and one for sliding_attention are");
  for (const auto& [key, to] : {std::pair<const char*, RopeConfig*>{"full_attention", &out.rope},
                                {"sliding_attention", &out.local_rope}}) {
    ASSIGN_OR_RETURN(const auto rope, rope_object(*newer, key));
    if (rope) RETURN_IF_ERROR(read_rotation(config, *rope, traits, out, *to));
  }
  return {};
}

// Older files: rope_theta and rope_scaling. Newer ones: both inside rope_parameters. Where a file has both,
// they must agree: programs differ in which one they read.
Status read_one_rotation(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out) {
  ASSIGN_OR_RETURN(out.rope.theta, config.number_or("rope_theta", out.rope.theta, 1, 1e12));
  std::optional<RopeConfig> first;
  const int64_t positions = out.max_position_embeddings;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    ASSIGN_OR_RETURN(const auto rope, rope_object(config, key));
    if (!rope) continue;
    if (is_by_layer_type(*rope))
      return config.refused(key, "differ by layer type; one rotation for all layers is supported");
    RopeConfig read = out.rope;
    ModelConfig sizes = out;
    sizes.max_position_embeddings = positions;
    RETURN_IF_ERROR(read_rotation(config, *rope, traits, sizes, read));
    if (config.has("rope_theta") && read.theta != out.rope.theta)
      return config.wrong("rope_theta",
                          fmt::format("is {}, but {} beside the rotation's type; keep the right one",
                                      out.rope.theta, read.theta));
    if (first && first->scaling != read.scaling)
      return config.wrong("rope_scaling",
                          "and \"rope_parameters\" say different things; remove the wrong one");
    if (first && !rope->has("rope_theta")) read.theta = first->theta;
    out.max_position_embeddings = sizes.max_position_embeddings;
    first = read;
  }
  if (!first && traits.rotation_must_be_given)
    return config.refused("rope_scaling", "is missing, and versions of " + std::string(traits.architecture) +
                                              " differ in what they assume; add it, or rope_parameters");
  if (first) out.rope = *first;
  RETURN_IF_ERROR(check_original_positions(config, "original_max_position_embeddings", out));
  return check_original_positions(config, "initial_context_length", out);
}

}  // namespace

Status read_rope(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out) {
  out.rope = {.theta = traits.defaults.rope_theta, .dims = out.latent ? out.latent->rope_dim : out.head_dim};
  out.rope.interleaved = traits.rotates_neighbours;
  out.local_rope = {.dims = out.head_dim};
  if (traits.defaults.rotated_share != 1)
    out.rope.dims =
        static_cast<int64_t>(static_cast<double>(out.head_dim) * traits.defaults.rotated_share) / 2 * 2;
  if (std::find(traits.keys.begin(), traits.keys.end(), "rotary_dim") != traits.keys.end()) {
    ASSIGN_OR_RETURN(out.rope.dims, config.integer_or("rotary_dim", out.head_dim, {2, out.head_dim}));
    if (out.rope.dims % 2 != 0)
      return config.wrong("rotary_dim", fmt::format("is {}; must be even", out.rope.dims));
  }
  RETURN_IF_ERROR(read_turning_dims(config, traits, out, out.rope));
  return traits.windows == Windows::kByPattern ? read_two_rotations(config, traits, out)
                                               : read_one_rotation(config, traits, out);
}

}  // namespace outrider
