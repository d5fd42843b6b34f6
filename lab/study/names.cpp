#include "lab/study/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace outrider {
namespace {

bool has_slash(const std::string& value) { return value.find('/') != std::string::npos; }

// Directories at the front that all paths share.
size_t shared_front(const std::set<std::string>& paths) {
  const std::string& first = *paths.begin();
  size_t shared = first.rfind('/') + 1;
  for (const std::string& path : paths) {
    const auto differs = std::mismatch(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(shared),
                                       path.begin(), path.end());
    const auto same = static_cast<size_t>(differs.first - first.begin());
    shared = same == 0 ? 0 : first.rfind('/', same - 1) + 1;
  }
  return shared;
}

bool starts_with_letter(const std::string& value) {
  return !value.empty() && ((value[0] >= 'a' && value[0] <= 'z') || (value[0] >= 'A' && value[0] <= 'Z'));
}

}  // namespace

std::string short_value(const std::string& key, const std::string& value) {
  constexpr std::string_view kFixed = "fixed:gamma=";
  if (key == "gamma-policy")
    return value.starts_with(kFixed) ? "gamma " + value.substr(kFixed.size()) : value;
  if (sets_draft_length(key)) return "gamma " + value;
  return starts_with_letter(value) && value != "true" && value != "false" ? value
                                                                          : fmt::format("{} {}", key, value);
}

std::vector<std::string> short_names(const std::vector<const Cell*>& cells, NamedBy by,
                                     const std::string& without) {
  std::map<std::string, std::set<std::string>> values;  // by key; "" where a cell does not set it
  for (const Cell* cell : cells)
    for (const auto& [key, value] : cell->values) {
      const bool wanted = by == NamedBy::kAll || sets_draft_length(key) == (by == NamedBy::kLengthOnly);
      if (wanted && key != without) values[key].insert(value);
    }
  for (const Cell* cell : cells)
    for (auto& [key, seen] : values)
      if (!cell->values.contains(key)) seen.insert("");
  std::vector<std::string> names;
  for (const Cell* cell : cells) {
    std::string name;
    for (const auto& [key, seen] : values) {
      const auto own = cell->values.find(key);
      if (seen.size() < 2 || own == cell->values.end()) continue;
      const bool paths = std::all_of(seen.begin(), seen.end(), has_slash);
      const std::string part = paths ? fmt::format("{} {}", key, own->second.substr(shared_front(seen)))
                                     : short_value(key, own->second);
      name += (name.empty() ? "" : ", ") + part;
    }
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace outrider
