// Answers by status. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

namespace outrider {

class ResponseCounts {
 public:
  std::atomic<int64_t> log_lines_dropped{0};  // of the access log

  void add(int status) {
    if (status >= 0 && status < kStatuses) ++counts_[static_cast<size_t>(status)];
  }
  // The counts of all statuses that occurred.
  std::vector<std::pair<int, int64_t>> all() const {
    std::vector<std::pair<int, int64_t>> out;
    for (int status = 0; status < kStatuses; ++status)
      if (const int64_t count = counts_[static_cast<size_t>(status)]; count > 0)
        out.emplace_back(status, count);
    return out;
  }

 private:
  static constexpr int kStatuses = 600;
  std::array<std::atomic<int64_t>, kStatuses> counts_{};
};

}  // namespace outrider
