// Heads are no language models of their own: what their config.json says that they are.
#pragma once

#include <string_view>

#include "base/json_file.h"

namespace outrider {

struct HeadMark {
  std::string_view drafter;  // the --drafter of the head; empty: the config does not say
  const char* key = "";      // that says it
};
// By the names that the authors' programs write ("architectures", "speculators_model_type", keys of their
// own). Configs of modules inside a model, and of the first EAGLE heads, say nothing.
HeadMark mark_of_head(const JsonObject& config);

}  // namespace outrider
