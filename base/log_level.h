// The level of the log, from OUTRIDER_LOG: trace, debug, info, warning, error, critical or off, in any case.
#pragma once

#include <string>

namespace outrider {

// What is wrong with OUTRIDER_LOG, whose level is then that of an empty one; empty: nothing.
std::string wrong_log_level();

}  // namespace outrider
