// Options that a cell of a study may set: those of `outrider generate`, except the ones that the study itself
// uses.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

// kInvalidArgument: unknown (names the nearest), or one that the study sets itself.
Status check_cell_key(const std::string& key);
// Whether the option may be given several times.
bool is_repeatable(const std::string& key);
// Whether the value fits the option, for itself.
Status check_cell_value(const std::string& key, const std::string& value);
// Whether the arguments ("--key=value") fit each other.
Status check_cell_arguments(const std::vector<std::string>& arguments);

}  // namespace outrider
