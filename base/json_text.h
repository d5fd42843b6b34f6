// JSON as text. Names from files, peers and command lines need not be UTF-8, and a model's text may end
// within a character; nlohmann's dump() throws at either. So all JSON output goes through here.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace outrider {

// Valid UTF-8: invalid bytes become U+FFFD. `indent`: spaces a level; -1: all on one line.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace outrider
