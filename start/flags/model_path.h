// Where a model is: a path as it was written, or a name of the Hugging Face hub whose files are in its cache.
#pragma once

#include <string>

#include "base/status.h"

namespace outrider {

// A path that exists is returned as it is, and so is a text that names neither. "org/name" becomes the
// directory of its newest snapshot under $HF_HUB_CACHE, $HF_HOME/hub or ~/.cache/huggingface/hub, or the one
// GGUF file in it. "org/name:Q4_K_M" becomes the GGUF file of that quantisation. hf.co/ and the hub's address
// may stand in front. An error: "org/name" is no path and not in the cache, not just one GGUF file fits, or
// nothing is behind the colon.
Result<std::string> find_model(const std::string& text);

// The text without the address of the hub in front: hf.co/org/name is org/name.
std::string without_hub_address(std::string_view text);

// "org/name" of a path in a snapshot of the cache; any other text as it is.
std::string model_display_name(const std::string& path);

}  // namespace outrider
