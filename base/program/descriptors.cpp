#include "base/program/descriptors.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <memory>

namespace outrider {
namespace {

// More than any run needs. With a hard limit of a billion, a child that closes every inheritable descriptor
// would take minutes.
constexpr rlim_t kEnough = 65536;

}  // namespace

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, kEnough);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
}

Descriptors count_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > std::numeric_limits<int>::max())
    return {std::numeric_limits<int>::max(), std::numeric_limits<int>::max()};
  const long most = static_cast<long>(limit.rlim_cur);
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir("/proc/self/fd"), &closedir);
  if (!open) {
    const bool none_left = errno == EMFILE || errno == ENFILE;
    return {most, none_left ? 0 : most};  // no /proc: unknown; libzmq will notice a limit
  }
  // A program that lowered its limit may have descriptors above it, which do not count.
  long used = 0;
  while (const dirent* entry = readdir(open.get())) {
    if (entry->d_name[0] == '.') continue;
    const long fd = std::atol(entry->d_name);
    used += fd < most && fd != dirfd(open.get());
  }
  return {most, most - used};
}

}  // namespace outrider
