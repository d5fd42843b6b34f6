#include "base/log.h"

#include <fmt/chrono.h>

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/event_log.h"
#include "base/json_text.h"
#include "base/log_level.h"
#include "base/log_line.h"
#include "base/printable.h"

namespace outrider {
namespace {

constexpr const char* kLevelVariable = "OUTRIDER_LOG";
constexpr const char* kFormatVariable = "OUTRIDER_LOG_FORMAT";

// Plain storage: a destructor of a thread's variable is registered with memory, and glibc aborts without any.
thread_local char g_role[48] = "main";

// The event that this thread is logging; null: the line is no event.
struct LoggedEvent {
  std::string_view name;
  const EventFields& fields;
};
thread_local const LoggedEvent* g_event = nullptr;

class RoleFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg&, const std::tm&, spdlog::memory_buf_t& out) override {
    out.append(g_role, g_role + std::strlen(g_role));
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<RoleFlag>(); }
};

// Escapes control characters: a log line may quote text of a peer or a file. An event begins with its name.
class PrintableText final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    std::string text = printable({message.payload.data(), message.payload.size()});
    if (g_event) text = fmt::format("{}: {}", g_event->name, text);
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<PrintableText>(); }
};

// In any case; empty for an unknown level.
std::optional<spdlog::level::level_enum> level_of(std::string_view text) {
  std::string name(text);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto level = spdlog::level::from_str(name);  // returns "off" for unknown levels, too
  if (level == spdlog::level::off && name != "off") return std::nullopt;
  return level;
}

std::string utc(std::chrono::system_clock::time_point time) {
  const auto since = time.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(since - seconds);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(static_cast<std::time_t>(seconds.count())),
                     milliseconds.count());
}

// A line of JSON for each line of the log.
class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const std::string_view level(spdlog::level::to_string_view(message.level).data(),
                                 spdlog::level::to_string_view(message.level).size());
    nlohmann::ordered_json line{{"time", utc(message.time)}, {"level", level}, {"role", g_role}};
    if (g_event) line["event"] = g_event->name;
    line["message"] = printable({message.payload.data(), message.payload.size()});
    if (g_event) {
      for (const auto& [key, value] : g_event->fields) {
        if (const auto* const number = std::get_if<int64_t>(&value))
          line[key] = *number;
        else
          line[key] = printable(std::get<std::string>(value));
      }
    }
    const std::string text = json_text(line) + "\n";
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(); }
};

std::unique_ptr<spdlog::formatter> text_formatter() {
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  formatter->add_flag<RoleFlag>('*').add_flag<PrintableText>('v').set_pattern(
      "[%Y-%m-%dT%H:%M:%S.%eZ] %^%l%$ %*: %v");
  return formatter;
}

std::optional<spdlog::level::level_enum> level_of_environment() {
  const char* text = std::getenv(kLevelVariable);
  return text && *text ? level_of(text) : std::nullopt;
}

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

void set_thread_role(std::string_view role) { g_role[role.copy(g_role, sizeof(g_role) - 1)] = '\0'; }
std::string thread_role() { return g_role; }

void init_logging() {
  auto logger =
      std::make_shared<spdlog::logger>("outrider", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_formatter(text_formatter());
  logger->set_level(level_of_environment().value_or(spdlog::level::warn));
  spdlog::set_default_logger(std::move(logger));
}

std::string wrong_log_level() {
  const char* text = std::getenv(kLevelVariable);
  if (!text || !*text || level_of(text)) return {};
  return fmt::format("OUTRIDER_LOG={}: choose trace, debug, info, warning, error, critical or off",
                     printable(text));
}

void apply_log_flags(const LogFlags& flags, bool quiet) {
  const auto by_default = level_of_environment().value_or(quiet ? spdlog::level::warn : spdlog::level::info);
  spdlog::set_level(flags.level.empty() ? by_default : level_of(flags.level).value_or(by_default));
  if (!flags.level.empty()) setenv(kLevelVariable, flags.level.c_str(), 1);
  if (flags.format != "json") return;
  setenv(kFormatVariable, "json", 1);
  spdlog::set_formatter(std::make_unique<JsonFormatter>());
  tell_by([](std::string_view message) {
    const std::string line = json_text(nlohmann::ordered_json{{"time", utc(std::chrono::system_clock::now())},
                                                              {"role", g_role},
                                                              {"message", printable(message)}}) +
                             "\n";
    std::fputs(line.c_str(), stderr);
  });
}

bool should_log(LogLevel level) { return spdlog::should_log(level_of(level)); }
void log_text(LogLevel level, std::string_view text) { spdlog::log(level_of(level), "{}", text); }

void log_event(LogLevel level, std::string_view name, std::string_view message, const EventFields& fields) {
  const auto spd_level = level_of(level);
  if (!spdlog::should_log(spd_level) || !can_tell()) return;
  const LoggedEvent event{name, fields};
  g_event = &event;
  spdlog::log(spd_level, "{}", message);
  g_event = nullptr;
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d [%s] CHECK(%s) failed: %s\n", file, line, g_role, condition, message.c_str());
  std::abort();
}

}  // namespace outrider
