#include "base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "base/log_level.h"
#include "base/printable.h"

namespace outrider {
namespace {

// Plain storage: a destructor of a thread's variable is registered with memory, and glibc aborts without any.
thread_local char g_role[48] = "main";

class RoleFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg&, const std::tm&, spdlog::memory_buf_t& out) override {
    out.append(g_role, g_role + std::strlen(g_role));
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<RoleFlag>(); }
};

// Escapes control characters: a log line may quote text of a peer or a file.
class PrintableText final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string text = printable({message.payload.data(), message.payload.size()});
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

}  // namespace

void set_thread_role(std::string_view role) { g_role[role.copy(g_role, sizeof(g_role) - 1)] = '\0'; }
std::string thread_role() { return g_role; }

void init_logging() {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<RoleFlag>('*').add_flag<PrintableText>('v').set_pattern("[%H:%M:%S.%e] %^%l%$ %*: %v");
  auto logger =
      std::make_shared<spdlog::logger>("outrider", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_formatter(std::move(formatter));
  const char* text = std::getenv("OUTRIDER_LOG");
  const auto level = text && *text ? level_of(text) : std::optional(spdlog::level::warn);
  logger->set_level(level.value_or(spdlog::level::warn));
  spdlog::set_default_logger(std::move(logger));
}

std::string wrong_log_level() {
  const char* text = std::getenv("OUTRIDER_LOG");
  if (!text || !*text || level_of(text)) return {};
  return fmt::format("OUTRIDER_LOG={}: choose trace, debug, info, warning, error, critical or off",
                     printable(text));
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d [%s] CHECK(%s) failed: %s\n", file, line, g_role, condition, message.c_str());
  std::abort();
}

}  // namespace outrider
