#include "start/flags/toml_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace outrider {

Result<toml::table> read_toml(const std::string& path) {
  struct stat info {};
  std::ifstream file(path, std::ios::binary);
  if (!file || stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode))
    return not_found(fmt::format("{}: cannot be read; name a TOML file", path));
  std::ostringstream text;
  text << file.rdbuf();
  try {
    return toml::parse(text.str(), path);
  } catch (const toml::parse_error& error) {
    return invalid_argument(fmt::format("{}:{}: {}; a line is KEY = VALUE, texts stand in quotes", path,
                                        error.source().begin.line, error.description()));
  }
}

Status toml_error(const toml::node& node, const std::string& key, const std::string& what) {
  const toml::source_region& at = node.source();
  return invalid_argument(fmt::format("{}:{}: {}: {}", *at.path, at.begin.line, key, what));
}

std::string dashed(const toml::key& key) {
  std::string name(key.str());
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  return std::nullopt;
}

}  // namespace outrider
