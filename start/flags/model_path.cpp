#include "start/flags/model_path.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/printable.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "models--", kSeparator = "--";

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

fs::path hub_cache() {
  if (const std::string cache = variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  const std::string cache = variable("XDG_CACHE_HOME");
  return (cache.empty() ? fs::path(variable("HOME")) / ".cache" : fs::path(cache)) / "huggingface" / "hub";
}

bool is_name_part(std::string_view part) {
  const auto may_stand = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  };
  return !part.empty() && part.find_first_not_of('.') != std::string_view::npos &&
         std::all_of(part.begin(), part.end(), may_stand);
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<std::string> gguf_files(const fs::path& directory) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error))
    if (at->path().extension() == ".gguf") files.push_back(at->path().string());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

Result<std::string> find_model(const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == std::string::npos || is_there(text)) return text;
  const std::string organisation = text.substr(0, slash), name = text.substr(slash + 1);
  if (!is_name_part(organisation) || !is_name_part(name)) return text;
  const fs::path cached = hub_cache() / fmt::format("{}{}{}{}", kPrefix, organisation, kSeparator, name);
  std::string revision;
  std::ifstream(cached / "refs" / "main") >> revision;
  const fs::path snapshot = cached / "snapshots" / revision;
  if (revision.empty() || !is_there(snapshot))
    return not_found(
        fmt::format("{}: there is no such path, and {} has no snapshot of that name; download it "
                    "with `hf download {}`",
                    printable(text), hub_cache().string(), printable(text)));
  if (is_there(snapshot / "config.json")) return snapshot.string();
  const std::vector<std::string> files = gguf_files(snapshot);
  if (files.size() > 1)
    return invalid_argument(
        fmt::format("{} has several GGUF files; name one: {}", printable(text), fmt::join(files, ", ")));
  return files.empty() ? snapshot.string() : files.front();
}

std::string model_display_name(const std::string& path) {
  for (const fs::path& part : fs::path(path)) {
    const std::string name = part.string();
    if (!name.starts_with(kPrefix)) continue;
    const size_t split = name.find(kSeparator, kPrefix.size());
    if (split == std::string::npos) continue;
    return name.substr(kPrefix.size(), split - kPrefix.size()) + "/" + name.substr(split + kSeparator.size());
  }
  return path;
}

}  // namespace outrider
