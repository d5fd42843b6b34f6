#include "base/program/secret_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace outrider {

bool may_be_read_by_others(const struct stat& info) {
  if ((info.st_mode & S_IRWXO) != 0) return true;
  if ((info.st_mode & S_IRWXG) == 0) return false;
  if ((info.st_mode & (S_IWGRP | S_IXGRP | S_IWUSR)) != 0) return true;
  if (info.st_uid != 0 && info.st_uid != geteuid()) return true;
  if (info.st_gid == getegid()) return false;
  std::vector<gid_t> groups(static_cast<size_t>(std::max(0, getgroups(0, nullptr))));
  const int count = groups.empty() ? 0 : getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<size_t>(std::max(0, count)));
  return std::find(groups.begin(), groups.end(), info.st_gid) == groups.end();
}

}  // namespace outrider
