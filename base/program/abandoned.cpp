#include "base/program/abandoned.h"

#include <sys/types.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <string_view>

#include "base/parse_number.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartialEnding = ".partial";

bool lives(pid_t process) { return kill(process, 0) == 0 || errno != ESRCH; }

}  // namespace

std::vector<std::string> remove_abandoned(const std::string& path) {
  std::vector<std::string> removed;
  fs::path final(path);
  if (!final.has_filename()) final = final.parent_path();  // "DIR/" names DIR
  const std::string start = final.filename().string() + ".";
  const fs::path folder = final.has_parent_path() ? final.parent_path() : fs::path(".");
  std::error_code error;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(start) || !name.ends_with(kPartialEnding) ||
        name.size() < start.size() + kPartialEnding.size())
      continue;
    const auto number =
        std::string_view(name).substr(start.size(), name.size() - start.size() - kPartialEnding.size());
    const auto process = parse_number<pid_t>(number);
    if (!process || *process <= 0 || lives(*process)) continue;
    std::error_code failed;
    fs::remove_all(at->path(), failed);
    if (!failed) removed.push_back((final.has_parent_path() ? at->path() : fs::path(name)).string());
  }
  return removed;
}

}  // namespace outrider
