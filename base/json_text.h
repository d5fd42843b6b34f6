// JSON as text. Names come from files, peers and command lines and need not be UTF-8, texts of a model may
// end within a character, and nlohmann's dump() throws at either: whatever the program writes goes through
// here.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace outrider {

// Valid UTF-8: what was none becomes U+FFFD. `indent`: spaces a level; -1: all on one line.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace outrider
