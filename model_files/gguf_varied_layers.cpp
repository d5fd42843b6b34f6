#include "model_files/gguf_varied_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "model_files/gguf_keys.h"
#include "model_files/gguf_model.h"

namespace outrider {
namespace {

using nlohmann::json;

// One number for all layers, or a list of one for each; flags are 0 and 1.
Result<std::vector<int64_t>> by_layer(const GgufKeys& keys, const char* key, int64_t layers) {
  const GgufArray* list = gguf_array(keys.content(), keys.name(key));
  if (list == nullptr) {
    ASSIGN_OR_RETURN(const auto one, keys.integer(key));
    if (!one) return malformed(fmt::format("{}: has no {}", keys.file(), keys.name(key)));
    return std::vector<int64_t>(static_cast<size_t>(layers), *one);
  }
  std::vector<int64_t> out;
  for (uint64_t i = 0; i < std::min(static_cast<uint64_t>(layers), list->count); ++i)
    if (const auto own = list->whole(i)) out.push_back(*own);
  if (out.size() < static_cast<uint64_t>(layers))
    return malformed(fmt::format("{}: {} must be a list of {} whole numbers, one for each layer", keys.file(),
                                 keys.name(key), layers));
  return out;
}

// Keys say the size of heads that see all, and by another name that of the others.
Status read_heads(const GgufKeys& keys, const std::vector<int64_t>& slides, json& config) {
  ASSIGN_OR_RETURN(const auto size, keys.integer("attention.key_length_swa"));
  for (const char* key : {"attention.value_length_swa", "rope.dimension_count_swa"}) {
    ASSIGN_OR_RETURN(const auto same, keys.integer(key));
    if (same.value_or(size.value_or(0)) != size.value_or(0))
      return unsupported(fmt::format("{}: {} is {}, but keys have {}", keys.file(), keys.name(key), *same,
                                     size.value_or(0)));
  }
  const int64_t wide = config["head_dim"];
  config["head_dim"] = size.value_or(wide);
  ASSIGN_OR_RETURN(const auto kv_heads,
                   by_layer(keys, "attention.head_count_kv", static_cast<int64_t>(slides.size())));
  json by = json::object();
  for (size_t i = 0; i < slides.size(); ++i)
    if (slides[i] == 0)
      by[std::to_string(i)] = {{"head_dim", wide}, {"num_key_value_heads", kv_heads[i]}};
    else
      config["num_key_value_heads"] = kv_heads[i];
  if (!config.contains("num_key_value_heads")) config["num_key_value_heads"] = kv_heads.front();
  config["per_layer_config"] = by;
  const auto whole = std::find(slides.begin(), slides.end(), 0) - slides.begin();
  config["attention_k_eq_v"] = !keys.content().tensor(fmt::format("blk.{}.attn_v.weight", whole));
  return {};
}

// MLPs of the last layers, which read the keys of others, may be twice as wide.
Status read_mlps(const GgufKeys& keys, json& config) {
  const int64_t layers = config["num_hidden_layers"];
  const int64_t own = layers - config.value("num_kv_shared_layers", int64_t{0});
  ASSIGN_OR_RETURN(const auto sizes, by_layer(keys, "feed_forward_length", layers));
  const int64_t size = sizes.front();
  const bool doubles = sizes.back() != size;
  for (int64_t i = 0; i < layers; ++i)
    if (sizes[static_cast<size_t>(i)] != (doubles && i >= own ? 2 * size : size))
      return unsupported(fmt::format(
          "{}: {} is {} in layer {}; one size, or twice as much in layers that share keys, is supported",
          keys.file(), keys.name("feed_forward_length"), sizes[static_cast<size_t>(i)], i));
  config["intermediate_size"] = size;
  config["use_double_wide_mlp"] = doubles;
  return {};
}

// The file has a divisor of each frequency of wide heads: 1, or so large that the pair stands still.
Status read_rotations(const GgufKeys& keys, json& config) {
  constexpr float kStill = 1e29F;
  json full{{"rope_type", "default"}}, local{{"rope_type", "default"}};
  if (const TensorInfo* divisors = keys.content().tensor(kGgufRopeFactors)) {
    const auto pairs = config["per_layer_config"].empty()
                           ? 0
                           : (*config["per_layer_config"].begin())["head_dim"].get<int64_t>() / 2;
    if (divisors->dtype != Dtype::kF32 || divisors->shape != std::vector<int64_t>{pairs})
      return malformed(fmt::format("{}: {} is not {} numbers in F32", keys.file(), kGgufRopeFactors, pairs));
    std::vector<float> numbers(static_cast<size_t>(pairs));
    std::memcpy(numbers.data(), divisors->data.data(), divisors->data.size());
    const auto still = std::find_if(numbers.begin(), numbers.end(), [](float x) { return x != 1; });
    if (!std::all_of(still, numbers.end(), [](float x) { return x >= kStill; }))
      return unsupported(
          fmt::format("{}: {} slows rotations; divisors of 1, and of pairs that stand still "
                      "behind them, are supported",
                      keys.file(), kGgufRopeFactors));
    const auto turning = static_cast<double>(still - numbers.begin()), all = static_cast<double>(pairs);
    // A quotient that is rounded down would lose a pair.
    const bool is_short = static_cast<int64_t>(turning / all * 2 * all) < static_cast<int64_t>(2 * turning);
    full["rope_type"] = "proportional";
    full["partial_rotary_factor"] = (is_short ? turning + 0.25 : turning) / all;
  }
  full["rope_theta"] = config.value("rope_theta", 1e6);
  ASSIGN_OR_RETURN(const auto local_theta, keys.number("rope.freq_base_swa"));
  local["rope_theta"] = local_theta.value_or(10000.0);
  config["rope_parameters"] = {{"full_attention", full}, {"sliding_attention", local}};
  config.erase("rope_theta");
  if (config.contains("rope_scaling"))
    return unsupported(
        fmt::format("{}: {} is not supported for gemma4", keys.file(), keys.name("rope.scaling.type")));
  return {};
}

}  // namespace

Status complete_varied_layers(const GgufKeys& keys, json& config) {
  const int64_t layers = config["num_hidden_layers"];
  ASSIGN_OR_RETURN(const auto slides, by_layer(keys, "attention.sliding_window_pattern", layers));
  json types = json::array();
  for (const int64_t flag : slides) types.push_back(flag != 0 ? "sliding_attention" : "full_attention");
  config["layer_types"] = types;
  config["vocab_size_per_layer_input"] = config["vocab_size"];
  if (!config.contains("hidden_size_per_layer_input")) config["hidden_size_per_layer_input"] = 0;
  ASSIGN_OR_RETURN(const auto experts, keys.integer("expert_count"));
  config["enable_moe_block"] = experts.value_or(0) > 0;
  RETURN_IF_ERROR(read_heads(keys, slides, config));
  RETURN_IF_ERROR(read_mlps(keys, config));
  return read_rotations(keys, config);
}

}  // namespace outrider
