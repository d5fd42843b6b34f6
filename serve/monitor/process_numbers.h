// The system's figures of this process, under the names that Prometheus exporters share.
#pragma once

#include <cstdint>

namespace outrider {

struct ProcessNumbers {
  double cpu_seconds = 0;
  int64_t resident_bytes = 0, virtual_bytes = 0;
  int64_t open_descriptors = 0, most_descriptors = 0;
  int64_t threads = 0;
  double started_at = 0;  // seconds since 1970
};

// Zeros without /proc.
ProcessNumbers process_numbers();

}  // namespace outrider
