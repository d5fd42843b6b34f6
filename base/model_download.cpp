#include "base/model_download.h"

#include <fmt/format.h>

#include <string_view>

namespace outrider {

std::string hub_name(const std::filesystem::path& path) {
  constexpr std::string_view kPrefix = "models--", kSeparator = "--";
  for (const std::filesystem::path& part : path) {
    const std::string name = part.string();
    if (!name.starts_with(kPrefix)) continue;
    const size_t split = name.find(kSeparator, kPrefix.size());
    if (split == std::string::npos) continue;
    return name.substr(kPrefix.size(), split - kPrefix.size()) + "/" + name.substr(split + kSeparator.size());
  }
  return {};
}

std::string download_again(const std::filesystem::path& path) {
  const std::string name = hub_name(path);
  return name.empty() ? "download it again"
                      : fmt::format("download it again with `hf download --force-download {}`", name);
}

bool is_entry(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(path, error));
}

Status missing_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto goal = std::filesystem::read_symlink(path, error);
  if (error) return not_found(path.string() + ": no such file");
  return not_found(fmt::format("{}: is a link to {}, which does not exist; {}", path.string(), goal.string(),
                               download_again(path)));
}

Status empty_file(const std::filesystem::path& path) {
  return malformed(fmt::format("{}: the file is empty; {}", path.string(), download_again(path)));
}

}  // namespace outrider
