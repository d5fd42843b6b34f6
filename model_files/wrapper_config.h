// The text model of a checkpoint that also reads images or sound: "...ForConditionalGeneration" with a
// "text_config". Only the text model is read here.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/json_file.h"

namespace outrider {

// The config.json of the text model alone; nothing if `config` has no "text_config". A key beside
// "text_config" is a part of the text model, is about images or sound, or is refused by name.
Result<std::optional<nlohmann::json>> text_model_config(const JsonObject& config);

// The name that a tensor of the text model has in a checkpoint without images and sound:
// "model.language_model.norm.weight" and "language_model.model.norm.weight" are "model.norm.weight".
std::string text_model_name(std::string name);

// The names that a module of the text model, "model.layers.0.mlp" or "lm_head", may have in such a
// checkpoint.
std::array<std::string, 2> wrapped_module_names(std::string_view module);

// Whether the tensor is of the parts that read images or sound.
bool is_of_images_or_sound(std::string_view name);

}  // namespace outrider
