// The level of the log, from OUTRIDER_LOG: trace, debug, info, warning, error, critical or off, in any case.
#pragma once

#include <string>

namespace outrider {

// The error in OUTRIDER_LOG, or an empty string. A wrong value selects the level of an empty one.
std::string wrong_log_level();

}  // namespace outrider
