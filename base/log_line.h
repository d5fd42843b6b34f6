// Lines of the log (base/log.h). spdlog is named in log.cpp only: its templates would compile all of fmt's
// formatting into every file that logs.
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

#include "base/event_log.h"

namespace outrider {

bool should_log(LogLevel level);
void log_text(LogLevel level, std::string_view text);

template <class... Args>
void log_line(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (should_log(level)) log_text(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace outrider
