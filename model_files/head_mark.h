// Heads are no language models of their own: what their config.json says that they are.
#pragma once

#include <string_view>

#include "base/json_file.h"

namespace outrider {

// The --drafter of a head, by the names that its authors' programs write ("architectures",
// "speculators_model_type", keys of its own). Empty: the config does not say, as those of modules inside a
// model and of the first EAGLE heads.
std::string_view drafter_of_head(const JsonObject& config);

}  // namespace outrider
