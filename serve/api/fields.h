// The fields that a completion request may have, and the treatment of unknown fields.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"
#include "serve/api/request.h"

namespace outrider {

// Every field is honoured, has no effect by definition, or is refused by name; none is silently ignored. The
// body must be without the fields that read_structure() reads. Except for completions, it is the body of a
// chat.
Status check_fields(ApiKind kind, const nlohmann::json& body);

}  // namespace outrider
