// One cell of a study: a choice of options for `outrider generate`, run `repeats` times.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

// An option and the values it takes.
struct Axis {
  std::string key;
  std::vector<std::string> values;
};

// Whether an option of `generate` sets how long drafts are.
bool sets_draft_length(std::string_view key);

struct Cell {
  std::string id;                             // 16 digits made from the arguments: equal runs have equal ones
  std::vector<std::string> arguments;         // "--key=value"
  std::map<std::string, std::string> values;  // of the swept keys

  std::string label() const;
  // Names all swept keys but those that set the draft length: cells of a group differ in nothing else.
  std::string group() const;
  // The draft length and nothing but it, e.g. "fixed:gamma=2".
  std::string choice() const;
  // The length where it is fixed.
  std::optional<int> fixed_gamma() const;
  // The value of an option, swept or not; empty where the default holds.
  std::string argument(const std::string& key) const;
  // Names all swept keys but one.
  std::string label_without(const std::string& key) const;
};

// The index-th combination of the axes, of which the last varies fastest, over the options of `base`: each
// with its value, or values where it repeats.
Cell make_cell(const std::vector<Axis>& base, const std::vector<Axis>& axes, size_t index);

}  // namespace outrider
