// Log lines (standard error, tagged with the role and rank of this thread) and always-on checks.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace outrider {

// Names the calling thread in log lines and CHECK messages, e.g. "target/1". At most 47 bytes are kept.
void set_thread_role(std::string_view role);
std::string thread_role();

// Standard error, level from OUTRIDER_LOG (base/log_level.h); without it warning, until apply_log_flags().
void init_logging();

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace outrider

// A programmer error: print where and with which values, then abort. CHECK(a == b, "a={} b={}", a, b);
#define CHECK(condition, ...)                                                                  \
  do {                                                                                         \
    if (!(condition)) [[unlikely]]                                                             \
      ::outrider::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)

#ifdef NDEBUG
#define DCHECK(condition, ...) \
  do {                         \
  } while (false && (condition))
#else
#define DCHECK(condition, ...) CHECK(condition, __VA_ARGS__)
#endif
