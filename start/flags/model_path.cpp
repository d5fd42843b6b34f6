#include "start/flags/model_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/model_download.h"
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

// Without the address of the hub in front: hf.co/org/name is org/name.
std::string_view without_hub(std::string_view text) {
  if (text.starts_with("https://")) text.remove_prefix(8);
  for (const std::string_view hub : {"hf.co/", "huggingface.co/"})
    if (text.starts_with(hub)) return text.substr(hub.size());
  return text;
}

// Whether a file is a later part of a split GGUF file, as "model-00002-of-00003.gguf"; the first names them
// all.
bool is_later_part(const std::string& stem) {
  constexpr std::string_view kForm = "-00001-of-00003";
  if (stem.size() < kForm.size()) return false;
  const std::string_view part = std::string_view(stem).substr(stem.size() - kForm.size());
  return part.substr(6, 4) == "-of-" && part.substr(0, 6) != "-00001";
}

// Models of a snapshot that are GGUF files. Encoders of images ("mmproj-...") and later parts are none.
std::vector<std::string> gguf_files(const fs::path& snapshot) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::recursive_directory_iterator at(snapshot, error), end; !error && at != end; at.increment(error)) {
    const std::string stem = at->path().stem().string();
    if (at->path().extension() == ".gguf" && !stem.starts_with("mmproj") && !is_later_part(stem))
      files.push_back(at->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Whether the file's name has the quantisation, such as Q4_K_M, as a whole word in any case.
bool is_quantised(const std::string& file, std::string_view quantisation) {
  const std::string name = fs::path(file).filename().string();
  const auto upper = [](char c) { return std::toupper(static_cast<unsigned char>(c)); };
  const auto is_of_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  auto at = name.begin();
  while (true) {
    at = std::search(at, name.end(), quantisation.begin(), quantisation.end(),
                     [&](char a, char b) { return upper(a) == upper(b); });
    if (at == name.end()) return false;
    const auto end = at + static_cast<std::ptrdiff_t>(quantisation.size());
    if ((at == name.begin() || !is_of_word(*std::prev(at))) && (end == name.end() || !is_of_word(*end)))
      return true;
    ++at;
  }
}

// The names of files in the snapshot, with a comma between them.
std::string names_in(const fs::path& snapshot, const std::vector<std::string>& files) {
  std::string names;
  for (const std::string& file : files)
    names += (names.empty() ? "" : ", ") + fs::path(file).lexically_relative(snapshot).string();
  return names;
}

// The GGUF file of a snapshot. `quantisation`: empty: the only one.
Result<std::string> choose_gguf(const std::string& text, const fs::path& snapshot,
                                const std::vector<std::string>& files, std::string_view quantisation) {
  std::vector<std::string> fitting;
  for (const std::string& file : files)
    if (quantisation.empty() || is_quantised(file, quantisation)) fitting.push_back(file);
  if (fitting.size() == 1) return fitting.front();
  if (fitting.empty())
    return not_found(fmt::format("{}: there is no GGUF file of that quantisation in {}, which has {}",
                                 printable(text), snapshot.string(), names_in(snapshot, files)));
  return invalid_argument(fmt::format(
      "{}: {} has several GGUF files; name {}: {}", printable(text), snapshot.string(),
      quantisation.empty() ? "a quantisation as in :Q4_K_M, or the path of one" : "the path of one",
      names_in(snapshot, fitting)));
}

}  // namespace

Result<std::string> find_model(const std::string& written) {
  for (const fs::path& path : {fs::path(written), fs::path(written) / "config.json"}) {
    std::error_code error;
    (void)fs::status(path, error);
    if (error == std::errc::permission_denied)
      return invalid_argument(
          fmt::format("{}: permission denied; this user may not read it", printable(path.string())));
  }
  if (is_entry(written)) return written;
  const std::string text(without_hub(written));
  const size_t slash = text.find('/');
  if (slash == std::string::npos || text.ends_with(".gguf")) return written;
  if (text.ends_with(':') && is_name_part(text.substr(0, slash)))
    return invalid_argument(fmt::format(
        "{}: no quantisation stands behind the colon; leave the colon out, or write one, as in {}Q4_K_M",
        printable(written), printable(text)));
  const size_t colon = text.find(':', slash);
  const std::string organisation = text.substr(0, slash), repository = text.substr(0, colon),
                    name = repository.substr(slash + 1),
                    quantisation = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (!is_name_part(organisation) || !is_name_part(name) ||
      (colon != std::string::npos && !is_name_part(quantisation)))
    return written;
  const fs::path cached = hub_cache() / fmt::format("{}{}{}{}", kPrefix, organisation, kSeparator, name);
  std::string revision;
  std::ifstream(cached / "refs" / "main") >> revision;
  const fs::path snapshot = cached / "snapshots" / revision;
  if (revision.empty() || !is_entry(snapshot))
    return not_found(
        fmt::format("{}: there is no such path, and {} has no snapshot of that name; download it "
                    "with `hf download {}`",
                    printable(text), hub_cache().string(), printable(repository)));
  if (quantisation.empty() && is_entry(snapshot / "config.json")) return snapshot.string();
  const std::vector<std::string> files = gguf_files(snapshot);
  if (files.empty() && !quantisation.empty())
    return not_found(fmt::format("{}: {} has no GGUF file", printable(text), snapshot.string()));
  return files.empty() ? snapshot.string() : choose_gguf(text, snapshot, files, quantisation);
}

std::string without_hub_address(std::string_view text) { return std::string(without_hub(text)); }

std::string model_display_name(const std::string& path) {
  const std::string name = hub_name(path);
  return name.empty() ? path : name;
}

}  // namespace outrider
