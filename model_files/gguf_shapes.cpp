#include "model_files/gguf_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/model_download.h"
#include "base/printable.h"
#include "model_files/config_limits.h"

namespace outrider {
namespace {

// "blk.3.ffn_down.weight": layer 3, part "ffn_down.weight". A layer of -1: of no layer.
struct LayerTensor {
  int64_t layer = -1;
  std::string_view part;
};

LayerTensor layer_tensor(std::string_view name) {
  constexpr std::string_view kLayers = "blk.";
  if (!name.starts_with(kLayers)) return {};
  int64_t layer = 0;
  const char* const end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + kLayers.size(), end, layer);
  if (read.ec != std::errc() || layer < 0 || read.ptr == end || *read.ptr != '.') return {};
  return {layer, name.substr(static_cast<size_t>(read.ptr + 1 - name.data()))};
}

// The key's number for a layer, where the file has one number for all or a list.
std::optional<int64_t> number_of_layer(const GgufKeys& keys, std::string_view key, int64_t layer) {
  const GgufArray* list = gguf_array(keys.content(), keys.name(key));
  if (list) {
    if (static_cast<uint64_t>(layer) >= list->count) return {};
    return list->whole(static_cast<uint64_t>(layer));
  }
  const auto one = keys.integer(key);
  return one.ok() ? *one : std::nullopt;
}

Status contradicts(const GgufKeys& keys, std::string_view key, int64_t number, const std::string& but) {
  return malformed(fmt::format("{}: {} is {}, but {}; a key is wrong, or the file is damaged: {}",
                               keys.file(), keys.name(key), number, but, download_again(keys.file())));
}

// Layers behind the last are of modules of multi-token prediction, which a file may leave out.
Status check_layers(const GgufKeys& keys) {
  ASSIGN_OR_RETURN(const auto said, keys.integer("block_count"));
  ASSIGN_OR_RETURN(const auto modules, keys.integer("nextn_predict_layers"));
  int64_t layers = 0;
  for (const TensorInfo& tensor : keys.content().tensors)
    layers = std::max(layers, std::min(layer_tensor(tensor.name).layer, kMaxLayers) + 1);
  if (!said || layers == 0 || (layers <= *said && *said - layers <= modules.value_or(0))) return {};
  return contradicts(keys, "block_count", *said,
                     fmt::format("its tensors are of {} layer{}, blk.0 to blk.{}", layers,
                                 layers == 1 ? "" : "s", layers - 1));
}

// Which dimension of a layer's tensor a key says.
struct SizeRule {
  std::string_view key, part;
  bool is_inner = false;         // the last dimension; else the first
  std::string_view unless = {};  // another key, which says it where there is one
};
constexpr SizeRule kSizeRules[]{
    {"feed_forward_length", "ffn_down.weight", true},
    {"expert_feed_forward_length", "ffn_down_exps.weight", true},
    {"feed_forward_length", "ffn_down_exps.weight", true, "expert_feed_forward_length"},
    {"expert_shared_feed_forward_length", "ffn_down_shexp.weight", true, "expert_shared_count"},
    {"expert_count", "ffn_gate_inp.weight"},
    {"expert_count", "ffn_down_exps.weight"},
    {"embedding_length", "attn_norm.weight"},
};

std::string shape_of(const TensorInfo& tensor) {
  return fmt::format("{} has the shape [{}]", printable(tensor.name), fmt::join(tensor.shape, ", "));
}

Status check_size(const GgufKeys& keys, const TensorInfo& tensor, const LayerTensor& place,
                  const SizeRule& rule) {
  if (place.part != rule.part || tensor.shape.empty()) return {};
  if (!rule.unless.empty() && keys.has(rule.unless)) return {};
  const auto said = number_of_layer(keys, rule.key, place.layer);
  const int64_t size = rule.is_inner ? tensor.shape.back() : tensor.shape.front();
  if (!said || *said == size) return {};
  return contradicts(keys, rule.key, *said, fmt::format("{}, so {}", shape_of(tensor), size));
}

Status check_embedding(const GgufKeys& keys) {
  const TensorInfo* tensor = keys.content().tensor("token_embd.weight");
  if (!tensor || tensor->shape.size() != 2) return {};
  const int64_t rows = tensor->shape[0], size = tensor->shape[1];
  ASSIGN_OR_RETURN(const auto said, keys.integer("embedding_length"));
  if (said && *said != size)
    return contradicts(keys, "embedding_length", *said, fmt::format("{}, so {}", shape_of(*tensor), size));
  // The matrix may be padded to a round number of rows. The rows count, as they do in a model directory.
  ASSIGN_OR_RETURN(const auto tokens, keys.integer("vocab_size"));
  if (tokens && (*tokens < 1 || *tokens > rows))
    return contradicts(keys, "vocab_size", *tokens, fmt::format("{}, so {}", shape_of(*tensor), rows));
  return {};
}

// A dimension of a tensor that all heads share.
Status check_heads(const GgufKeys& keys, std::string_view key, const TensorInfo& tensor, int64_t layer,
                   int64_t size, int64_t each) {
  const auto said = number_of_layer(keys, key, layer);
  if (!said || (size % each == 0 && *said == size / each)) return {};
  return contradicts(keys, key, *said,
                     size % each == 0
                         ? fmt::format("{}, so {} of {}", shape_of(tensor), size / each, each)
                         : fmt::format("{}, which is no whole heads of {}", shape_of(tensor), each));
}

}  // namespace

Status check_gguf_sizes(const GgufKeys& keys) {
  RETURN_IF_ERROR(check_embedding(keys));
  RETURN_IF_ERROR(check_layers(keys));
  for (const TensorInfo& tensor : keys.content().tensors)
    if (const LayerTensor place = layer_tensor(tensor.name); place.layer >= 0)
      for (const SizeRule& rule : kSizeRules) RETURN_IF_ERROR(check_size(keys, tensor, place, rule));
  return {};
}

Status check_gguf_heads(const GgufKeys& keys, const nlohmann::json& config) {
  const int64_t each = config.value("head_dim", int64_t{0});
  if (each < 1) return {};
  for (const TensorInfo& tensor : keys.content().tensors) {
    const LayerTensor place = layer_tensor(tensor.name);
    if (place.layer < 0 || tensor.shape.size() != 2) continue;
    if (place.part == "attn_output.weight")
      RETURN_IF_ERROR(check_heads(keys, "attention.head_count", tensor, place.layer, tensor.shape[1], each));
    const bool has_own_count = keys.has("attention.head_count_kv");
    if (place.part == "attn_k.weight")
      RETURN_IF_ERROR(check_heads(keys, has_own_count ? "attention.head_count_kv" : "attention.head_count",
                                  tensor, place.layer, tensor.shape[0], each));
  }
  return {};
}

}  // namespace outrider
