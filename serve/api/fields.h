// Which fields a completion request may have, and what becomes of those that this server does not know.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"
#include "serve/api/request.h"

namespace outrider {

// Every field is honoured, changes nothing, or is refused by name: none is ignored in silence. The body is
// without the fields that read_structure() reads; of kinds other than completions it is that of a chat.
Status check_fields(ApiKind kind, const nlohmann::json& body);

}  // namespace outrider
