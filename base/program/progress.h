// Progress of long work on standard error: a bar on a terminal, a line every few seconds elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace outrider {

class Progress {
 public:
  Progress(std::string what, bool enabled);
  // Bytes done so far and in total; the last call has both equal.
  void update(int64_t done, int64_t total);

 private:
  std::string what_;
  bool enabled_;
  bool terminal_;
  bool finished_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace outrider
