// Short names of cells that are shown together: common keys are left out.
#pragma once

#include <string>
#include <vector>

#include "lab/study/cell.h"

namespace outrider {

// The keys of a cell that a name may contain.
enum class NamedBy { kAll, kLengthOnly, kAllButLength };

// One name for each cell, in their order, of the keys whose values differ between them; `without` is a
// further key to leave out. A self-explanatory value stands alone ("ewma", "gamma 4"), others follow their
// key ("temperature 0.7"). Equal cells have empty names.
std::vector<std::string> short_names(const std::vector<const Cell*>& cells, NamedBy by = NamedBy::kAll,
                                     const std::string& without = "");

// A short form of a value: "fixed:gamma=4" becomes "gamma 4".
std::string short_value(const std::string& key, const std::string& value);

}  // namespace outrider
