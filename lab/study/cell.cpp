#include "lab/study/cell.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/parse_number.h"

namespace outrider {
namespace {

constexpr std::array<std::string_view, 5> kLengthKeys{"gamma-policy", "num-speculative-tokens", "draft-max",
                                                      "spec-draft-n-max", "speculative-num-draft-tokens"};

// FNV-1a: tells cells apart, protects nothing.
std::string id_of(const std::vector<std::string>& arguments) {
  uint64_t hash = 14695981039346656037u;
  for (const std::string& argument : arguments)
    for (const char c : argument + '\n') hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return fmt::format("{:016x}", hash);
}

struct Argument {
  std::string_view key, value;
};
Argument split(std::string_view argument) {
  const size_t equals = argument.find('=');
  return {argument.substr(2, equals - 2), argument.substr(equals + 1)};
}

template <class Wanted>
std::string joined(const Cell& cell, Wanted wanted, const char* otherwise) {
  std::string text;
  for (const auto& [key, value] : cell.values)
    if (wanted(key)) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, value);
  return text.empty() ? otherwise : text;
}

}  // namespace

bool sets_draft_length(std::string_view key) {
  return std::find(kLengthKeys.begin(), kLengthKeys.end(), key) != kLengthKeys.end();
}

std::string Cell::label() const {
  return joined(
      *this, [](const std::string&) { return true; }, "the only cell");
}

std::string Cell::label_without(const std::string& key) const {
  return joined(
      *this, [&](const std::string& other) { return other != key; }, "all cells");
}

std::string Cell::group() const {
  return joined(
      *this, [](const std::string& key) { return !sets_draft_length(key); }, "all cells");
}

std::string Cell::choice() const {
  for (const auto& [key, value] : values)
    if (key == "gamma-policy") return value;
  if (const auto gamma = fixed_gamma()) return fmt::format("fixed:gamma={}", *gamma);
  return "as in base";
}

std::optional<int> Cell::fixed_gamma() const {
  constexpr std::string_view kFixed = "fixed:gamma=";
  for (const std::string& argument : arguments) {
    auto [key, value] = split(argument);
    if (!sets_draft_length(key)) continue;
    if (key == "gamma-policy") {
      if (!value.starts_with(kFixed)) return std::nullopt;
      value.remove_prefix(kFixed.size());
    }
    if (const auto gamma = parse_number<int>(value)) return gamma;
  }
  return std::nullopt;
}

std::string Cell::argument(const std::string& wanted) const {
  for (const std::string& argument : arguments)
    if (const auto [key, value] = split(argument); key == wanted) return std::string(value);
  return "";
}

Cell make_cell(const std::vector<Axis>& base, const std::vector<Axis>& axes, size_t index) {
  Cell cell;
  for (size_t a = axes.size(); a-- > 0; index /= axes[a].values.size())
    cell.values[axes[a].key] = axes[a].values[index % axes[a].values.size()];
  for (const Axis& option : base)
    if (!cell.values.contains(option.key))
      for (const std::string& value : option.values)
        cell.arguments.push_back(fmt::format("--{}={}", option.key, value));
  for (const auto& [key, value] : cell.values) cell.arguments.push_back(fmt::format("--{}={}", key, value));
  cell.id = id_of(cell.arguments);
  return cell;
}

}  // namespace outrider
