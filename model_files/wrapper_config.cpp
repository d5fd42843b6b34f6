#include "model_files/wrapper_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "model_files/config_keys.h"
#include "model_files/family.h"

namespace outrider {
namespace {

using nlohmann::json;

bool starts_with_any(std::string_view text, std::span<const std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](std::string_view beginning) { return text.starts_with(beginning); });
}

// Keys of the whole checkpoint that are also keys of its text model. The outer value counts, as in
// transformers 5.
constexpr std::array kShared = std::to_array<std::string_view>(
    {"tie_word_embeddings", "quantization_config", "eos_token_id", "bos_token_id"});

bool is_about_images_or_sound(std::string_view key) {
  constexpr std::array kBeginnings = std::to_array<std::string_view>(
      {"vision_", "audio_", "image_", "video_", "speech_", "media_", "projector_", "multimodal_", "mm_",
       "boi_", "eoi_", "boa_", "eoa_", "spatial_merge_size", "downsample_ratio", "ignore_index"});
  return starts_with_any(key, kBeginnings);
}

Status check_outer_key(const JsonObject& config, const std::string& key, const json& value,
                       const json& text) {
  constexpr std::array kRead =
      std::to_array<std::string_view>({"text_config", "architectures", "model_type", "dtype", "torch_dtype"});
  const auto holds = [&](std::span<const std::string_view> keys) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  if (value.is_null() || holds(kRead) || holds(kShared) || is_about_images_or_sound(key) ||
      is_harmless_key(key))
    return {};
  if (key == "is_encoder_decoder" && value == false) return {};
  if (const auto same = text.find(key); same != text.end() && *same == value) return {};
  return config.refused(key, "is " + json_text(value).substr(0, 100) +
                                 " beside \"text_config\", which is not understood here and may change what "
                                 "the text model computes; if it does not, remove it");
}

Status check_text_type(const JsonObject& config, const JsonObject& text) {
  ASSIGN_OR_RETURN(const std::string type, text.string("model_type"));
  if (find_model_type(type) == nullptr)
    return unsupported(fmt::format("{}: text_config.model_type \"{}\" is not supported; supported are {}",
                                   config.where(), type.substr(0, 100), supported_model_types()));
  // Versions of its class assume other frequencies than Qwen3's.
  const auto has_theta = [&](const char* key) {
    const json* rope = key ? text.find(key) : &text.members();
    return rope && rope->is_object() && rope->contains("rope_theta");
  };
  if (type == "qwen3_vl_text" && !has_theta(nullptr) && !has_theta("rope_parameters") &&
      !has_theta("rope_scaling"))
    return text.wrong("rope_theta", "is missing, and versions of the class differ in what they assume");
  return {};
}

// Values that Gemma 3's class assumes; the published files of 4B to 27B leave them out.
void add_gemma3_defaults(json& text) {
  for (const auto& [key, value] : {std::pair<const char*, int64_t>{"vocab_size", 262208},
                                   {"num_attention_heads", 8},
                                   {"num_key_value_heads", 4},
                                   {"max_position_embeddings", 131072}})
    if (!text.contains(key)) text[key] = value;
}

// Text at position p has p in all three parts of a rotation for images, so that the parts do not matter.
void remove_image_rotation(json& text) {
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (const auto rope = text.find(key); rope != text.end() && rope->is_object())
      for (const char* of_images : {"mrope_section", "mrope_interleaved"}) rope->erase(of_images);
}

}  // namespace

Result<std::optional<json>> text_model_config(const JsonObject& config) {
  ASSIGN_OR_RETURN(const auto object, config.object("text_config"));
  if (!object) return std::optional<json>();
  json text = object->members();
  for (const auto& [key, value] : config.members().items())
    RETURN_IF_ERROR(check_outer_key(config, key, value, text));
  for (const std::string_view shared : kShared)
    if (const json* outer = config.find(std::string(shared))) text[std::string(shared)] = *outer;
  for (const char* key : {"torch_dtype", "dtype"}) {  // the second is the newer
    const json* outer = config.find(key);
    if (outer == nullptr) continue;
    text.erase("torch_dtype");
    text["dtype"] = *outer;
  }
  if (!text.contains("model_type") && !text.contains("architectures"))
    return object->wrong("model_type", "is missing");
  if (text.contains("model_type")) RETURN_IF_ERROR(check_text_type(config, *object));
  if (text.contains("model_type")) text.erase("architectures");
  if (text.value("model_type", json()) == "gemma3_text") add_gemma3_defaults(text);
  remove_image_rotation(text);
  return std::optional(std::move(text));
}

std::string text_model_name(std::string name) {
  constexpr std::string_view kOlder = "language_model.", kNewer = "model.language_model.", kModel = "model.";
  if (name.starts_with(kNewer)) return std::string(kModel) + name.substr(kNewer.size());
  for (const std::string_view part : {"language_model.model.", "language_model.lm_head."})
    if (name.starts_with(part)) return name.substr(kOlder.size());
  return name;
}

std::array<std::string, 2> wrapped_module_names(std::string_view module) {
  constexpr std::string_view kModel = "model.";
  const std::string older = "language_model." + std::string(module);
  if (!module.starts_with(kModel)) return {older, older};
  return {older, "model.language_model." + std::string(module.substr(kModel.size()))};
}

bool is_of_images_or_sound(std::string_view name) {
  constexpr std::string_view kModel = "model.";
  if (name.starts_with(kModel)) name.remove_prefix(kModel.size());
  constexpr std::array kBeginnings = std::to_array<std::string_view>(
      {"vision_tower.", "vision_model.", "visual.", "vision_embed", "multi_modal_projector.", "mm_projector.",
       "audio_tower.", "audio_projector.", "embed_vision.", "embed_audio.", "image_newline"});
  return starts_with_any(name, kBeginnings);
}

}  // namespace outrider
