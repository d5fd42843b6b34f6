#include "model/block_types.h"

#include <algorithm>
#include <charconv>

namespace outrider {
namespace {

constexpr BlockFormat kFormats[]{
    {"q4_k", Dtype::kQ4K, Dtype::kQ5_0, Dtype::kQ6K, Dtype::kQ8_0, 14},
    {"q4_k_m", Dtype::kQ4K, Dtype::kQ5_0, Dtype::kQ6K, Dtype::kQ8_0, 15, true},
    {"q6_k", Dtype::kQ6K, Dtype::kQ8_0, Dtype::kQ6K, Dtype::kQ8_0, 18},
    {"q8_0", Dtype::kQ8_0, Dtype::kQ8_0, Dtype::kQ8_0, Dtype::kQ8_0, 7},
};

// The place of a matrix in its layer, as far as the mix treats places differently.
enum class Part : uint8_t { kValues, kKeys, kAttentionOut, kDown, kOther };

bool has_any(std::string_view name, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return name.find(word) != name.npos; });
}

Part part_of(std::string_view name) {
  if (has_any(name, {"attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight", ".v_proj.weight",
                     ".qkv_proj.weight", ".kv_b_proj.weight"}))
    return Part::kValues;
  if (has_any(name, {"attn_k.weight", ".k_proj.weight"})) return Part::kKeys;
  if (has_any(name, {"attn_output.weight", "self_attn.o_proj.weight", "self_attn.out_proj.weight"}))
    return Part::kAttentionOut;
  if (has_any(name, {"ffn_down", ".down_proj", ".w2.weight"})) return Part::kDown;
  return Part::kOther;
}

int64_t layer_of(std::string_view name) {
  for (const std::string_view prefix : {"blk.", "model.layers."}) {
    if (!name.starts_with(prefix)) continue;
    int64_t layer = -1;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
    return layer;
  }
  return -1;
}

// The layers in which errors do the most harm.
bool gets_more_bits(int64_t index, int64_t count) {
  const int64_t eighth = count / 8;
  return index < eighth || index >= 7 * count / 8 || (index - eighth) % 3 == 2;
}

// Where rows are no whole blocks of a type.
Dtype narrower(Dtype type) {
  if (type == Dtype::kQ4K || type == Dtype::kQ5K) return Dtype::kQ5_0;
  return Dtype::kQ8_0;
}

}  // namespace

const BlockFormat* find_block_format(std::string_view name) {
  for (const BlockFormat& format : kFormats)
    if (format.name == name) return &format;
  return nullptr;
}

BlockTypes::BlockTypes(const BlockFormat& format, const ModelConfig& config,
                       const std::vector<std::string_view>& names)
    : format_(format), config_(config) {
  std::set<int64_t> layers;
  for (const std::string_view name : names)
    if (part_of(name) == Part::kValues && layer_of(name) >= 0) layers.insert(layer_of(name));
  layers_with_values_.assign(layers.begin(), layers.end());
}

Dtype BlockTypes::mixed(std::string_view name, Place place) const {
  if (place == Place::kVocabulary) {
    const bool is_embedding = has_any(name, {"token_embd.weight", "embed_tokens"});
    return is_embedding && !config_.tie_word_embeddings ? format_.layers : format_.vocabulary;
  }
  const int64_t layer = layer_of(name);
  const bool is_mixtral = config_.experts && config_.experts->count == 8;  // attention is a small part of it
  switch (part_of(name)) {
    case Part::kValues: {
      if (is_mixtral) return Dtype::kQ8_0;
      const auto at = std::lower_bound(layers_with_values_.begin(), layers_with_values_.end(), layer);
      if (gets_more_bits(at - layers_with_values_.begin(), static_cast<int64_t>(layers_with_values_.size())))
        return Dtype::kQ6K;
      // Models of 70 billion share values among eight heads.
      constexpr int64_t kLayersOf70B = 80;
      const bool is_70b = config_.num_layers == kLayersOf70B && config_.num_kv_heads < config_.num_heads &&
                          (config_.family == ModelFamily::kLlama || config_.family == ModelFamily::kQwen2);
      return is_70b ? Dtype::kQ5K : format_.layers;
    }
    case Part::kKeys:
      return is_mixtral ? Dtype::kQ8_0 : format_.layers;
    case Part::kAttentionOut:
      return is_mixtral ? Dtype::kQ5K : format_.layers;
    case Part::kDown:
      return gets_more_bits(layer, config_.num_layers) ? Dtype::kQ6K : format_.layers;
    case Part::kOther:
      return format_.layers;
  }
  return format_.layers;
}

std::optional<Dtype> BlockTypes::of(std::string_view name, Place place, int64_t k) const {
  const bool is_layer = place == Place::kLayer;
  const Dtype wide = format_.is_mix ? mixed(name, place) : is_layer ? format_.layers : format_.vocabulary;
  const Dtype narrow = format_.is_mix ? narrower(wide)
                       : is_layer     ? format_.narrow_layers
                                      : format_.narrow_vocabulary;
  for (const Dtype type : {wide, narrow})
    if (k % dtype_block(type).elements == 0) return type;
  return std::nullopt;
}

}  // namespace outrider
