#include "comm/cores.h"

#include <sched.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <string>

namespace outrider {

int quota_cores() {
  // cgroup v2, from inside a container: "max 100000" or "150000 100000", microseconds per period.
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  long long quota = 0, period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return INT_MAX;
  return static_cast<int>(std::clamp<long long>((quota + period - 1) / period, 1, INT_MAX));
}

int usable_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  return std::clamp(CPU_COUNT(&allowed), 1, quota_cores());
}

}  // namespace outrider
