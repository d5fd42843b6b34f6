// Which keys config.json may have. A key that could change what the model computes is understood or refused
// by name; only keys that are known to change nothing are passed over.
#pragma once

#include <span>
#include <string_view>

#include "base/json_file.h"
#include "model_files/model_config.h"

namespace outrider {

// Whether a key says nothing about what a model computes: "transformers_version".
bool is_harmless_key(std::string_view key);

// Every key is one that is read for this family (family.h), has the value that changes nothing, or is
// known to be harmless. Null counts as absent. Errors name file and key. `also`: keys that the caller reads.
Status check_config_keys(const JsonObject& config, ModelFamily family,
                         std::span<const std::string_view> also = {});

}  // namespace outrider
