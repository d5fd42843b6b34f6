#include "coordinator/gamma/gamma_policy.h"

#include <algorithm>
#include <charconv>

#include "base/nearest.h"
#include "coordinator/gamma/policies.h"

namespace outrider {
namespace {

template <class T>
const T& nearest(const std::vector<T>& known, std::string_view name) {
  return *std::min_element(known.begin(), known.end(), [&](const T& a, const T& b) {
    return edit_distance(a.name, name) < edit_distance(b.name, name);
  });
}

Result<GammaArguments> parse_arguments(const GammaPolicyInfo& policy, std::string_view text) {
  GammaArguments arguments;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos)
      return invalid_argument(fmt::format("gamma policy '{}': '{}' is not key=value", policy.name, item));
    const std::string key(item.substr(0, equals));
    if (std::none_of(policy.keys.begin(), policy.keys.end(),
                     [&](const GammaKey& k) { return k.name == key; }))
      return invalid_argument(fmt::format("gamma policy '{}' has no key '{}'; did you mean '{}'?",
                                          policy.name, key, nearest(policy.keys, key).name));
    if (!arguments.emplace(key, item.substr(equals + 1)).second)
      return invalid_argument(fmt::format("gamma policy '{}': key '{}' is given twice", policy.name, key));
  }
  for (const GammaKey& key : policy.keys) {
    if (arguments.contains(key.name)) continue;
    if (key.default_value.empty())
      return invalid_argument(
          fmt::format("gamma policy '{}' needs {}=... ({})", policy.name, key.name, key.meaning));
    arguments.emplace(key.name, key.default_value);
  }
  return arguments;
}

}  // namespace

const std::vector<GammaPolicyInfo>& gamma_policy_table() {
  static const std::vector<GammaPolicyInfo> table = {
      {"fixed",
       "always the same draft length",
       {{"gamma", "draft length, 0 = plain decoding", "5"}},
       &fixed_gamma_from},
      {"heuristic",
       "+2 after a fully accepted round, else -1",
       {{"start", "first draft length", "5"}, {"min", "never below", "1"}, {"max", "never above", "16"}},
       &heuristic_gamma_from},
      {"replay",
       "draft lengths from a file, one per speculative round; the last one repeats",
       {{"file", "integers, one per line or a JSON array; '#' starts a comment", ""}},
       &replay_gamma_from},
  };
  return table;
}

Result<int32_t> gamma_integer(const GammaArguments& arguments, const std::string& key, int32_t low,
                              int32_t high) {
  const std::string& text = arguments.find(key)->second;
  int32_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size() || value < low || value > high)
    return invalid_argument(
        fmt::format("gamma policy: {}={} is not an integer in {}..{}", key, text, low, high));
  return value;
}

Result<GammaPolicyFactory> parse_gamma_policy(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(':'));
  const std::string_view rest = name.size() < text.size() ? text.substr(name.size() + 1) : std::string_view();
  const auto& table = gamma_policy_table();
  const auto policy =
      std::find_if(table.begin(), table.end(), [&](const GammaPolicyInfo& p) { return p.name == name; });
  if (policy == table.end())
    return invalid_argument(
        fmt::format("there is no gamma policy '{}'; did you mean '{}'? ('list' shows all)", name,
                    nearest(table, name).name));
  ASSIGN_OR_RETURN(const GammaArguments arguments, parse_arguments(*policy, rest));
  return policy->make(arguments);
}

std::string list_gamma_policies() {
  std::string text;
  for (const GammaPolicyInfo& policy : gamma_policy_table()) {
    text += fmt::format("{:<10} {}\n", policy.name, policy.summary);
    for (const GammaKey& key : policy.keys)
      text += fmt::format("{:<10}   {}={}  {}\n", "", key.name,
                          key.default_value.empty() ? "..." : key.default_value, key.meaning);
  }
  return text;
}

}  // namespace outrider
