// Short names of cells beside each other: what they share is left out.
#pragma once

#include <string>
#include <vector>

#include "lab/study/cell.h"

namespace outrider {

// Which keys of a cell a name may speak of.
enum class NamedBy { kAll, kLengthOnly, kAllButLength };

// One name for each cell, in their order, of the keys whose values differ between them; `without` is a key
// more to leave out. A value that speaks for itself stands alone ("ewma", "gamma 4"), others behind their key
// ("temperature 0.7"). Cells that differ in nothing have empty names.
std::vector<std::string> short_names(const std::vector<const Cell*>& cells, NamedBy by = NamedBy::kAll,
                                     const std::string& without = "");

// A value in few letters: "fixed:gamma=4" is "gamma 4".
std::string short_value(const std::string& key, const std::string& value);

}  // namespace outrider
