// The level and the form of the log: OUTRIDER_LOG, and the flags --log-level and --log-format.
#pragma once

#include <string>

namespace outrider {

// The error in OUTRIDER_LOG, or an empty string. A wrong value selects the level of an empty one. Levels are
// trace, debug, info, warning, error, critical and off, in any case.
std::string wrong_log_level();

struct LogFlags {
  std::string level;            // empty: OUTRIDER_LOG; without it info, or warning if the command is quiet
  std::string format = "text";  // or json
};
// For the rest of the process, and for its children by their environment. Call it before threads start.
void apply_log_flags(const LogFlags& flags, bool quiet);

}  // namespace outrider
