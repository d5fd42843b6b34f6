// Events of a run for its operator, such as the loss of a worker: one line each in the log (base/log.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace outrider {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

// A text or, for counts and indices, a number.
using EventValue = std::variant<std::string, int64_t>;
// Keys are names, such as "host".
using EventFields = std::vector<std::pair<std::string_view, EventValue>>;

// As text the line is "[date] level role: name: message"; as JSON `name` is "event", and `fields` are keys of
// their own. A standard error that accepts nothing loses the line, so that an event delays no work.
void log_event(LogLevel level, std::string_view name, std::string_view message,
               const EventFields& fields = {});

}  // namespace outrider
