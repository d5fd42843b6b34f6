#include "base/program/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/log.h"

namespace outrider {
namespace {

double seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

Progress::Progress(std::string what, bool enabled)
    : what_(std::move(what)),
      enabled_(enabled),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

void Progress::update(int64_t done, int64_t total) {
  if (!enabled_ || finished_ || total <= 0) return;
  const auto now = std::chrono::steady_clock::now();
  finished_ = done >= total;
  if (!finished_ && seconds(now - last_) < (terminal_ ? 0.1 : 3.0)) return;
  const double elapsed = seconds(now - start_);
  // A load that takes less than half a second prints no line.
  if (finished_ && last_ == start_ && elapsed < 0.5) return;
  last_ = now;
  // Only the end is 100 %.
  const double share = finished_ ? 1 : std::min(0.99, static_cast<double>(done) / static_cast<double>(total));
  const double rate = elapsed > 0 ? static_cast<double>(done) / elapsed : 0;
  const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
  const std::string line =
      fmt::format("{}: {:3.0f} %  {:.2f} of {:.2f} GB  {:.2f} GB/s  {:.0f} s left", what_, 100 * share,
                  static_cast<double>(done) / 1e9, static_cast<double>(total) / 1e9, rate / 1e9, left);
  std::fprintf(stderr, terminal_ ? "\r%s\033[K%s" : "%s%s", line.c_str(),
               !terminal_ || finished_ ? "\n" : "");
}

}  // namespace outrider
