#include "start/flags/config_file.h"

#include <CLI/CLI.hpp>
#include <set>

#include "start/flags/command_line.h"
#include "start/flags/toml_file.h"

namespace outrider {
namespace {

bool is_list(const CLI::Option& option) { return option.get_expected_max() > 1; }
bool is_switch(const CLI::Option& option) { return option.get_expected_min() == 0; }

// The type that the option needs, if the value has another one: CLI11 would accept "3" for 3 and 1 for true,
// which probably means a wrong key. Null: the value fits.
const char* wanted_instead(const CLI::Option& option, const toml::node& node) {
  const std::string type = option.get_type_name();  // with what checks say of themselves behind it
  if (is_switch(option)) return node.is_boolean() ? nullptr : "true or false";
  if (type.starts_with("TEXT")) return node.is_string() ? nullptr : "a text in quotes";
  if (type.starts_with("FLOAT")) return node.is_number() ? nullptr : "a number";
  return node.is_integer() ? nullptr : "a whole number";
}

class Applier {
 public:
  explicit Applier(CLI::App& command) : command_(command) {}

  Status apply(const toml::table& table) {
    for (const auto& [toml_key, node] : table) RETURN_IF_ERROR(apply(dashed(toml_key), node));
    return {};
  }

 private:
  Status apply(const std::string& key, const toml::node& node) {
    if (key == "config" || key == "help")
      return toml_error(node, key, "is a flag of the command line only; take it out of this file");
    CLI::Option* const option = command_.get_option_no_throw("--" + key);
    if (!option) {
      const std::string nearest = nearest_flag(command_, "--" + key);
      return toml_error(node, key,
                        fmt::format("`outrider {}` has no such option{}", command_.get_name(),
                                    nearest.empty() ? "" : "; did you mean " + nearest.substr(2) + "?"));
    }
    std::vector<std::string> values;
    RETURN_IF_ERROR(read(key, *option, node, values));
    if (!seen_.insert(option).second) return toml_error(node, key, "is there twice, by two of its names");
    if (option->count() > 0) return {};
    try {
      option->add_result(std::move(values));
      option->run_callback();
    } catch (const CLI::Error& error) {
      const std::string name = option->get_name(), what = error.what(), prefix = name + ": ";
      if (what.starts_with(prefix + name))  // a whole sentence about the flag
        return toml_error(node, key, what.substr(prefix.size()));
      if (const std::string rule = broken_rule(*option, what); !rule.empty())
        return toml_error(node, key, fmt::format("{} {}", option->results().back(), rule));
      return toml_error(node, key, what.starts_with(prefix) ? what.substr(prefix.size()) : what);
    }
    return {};
  }

  static Status read(const std::string& key, const CLI::Option& option, const toml::node& node,
                     std::vector<std::string>& values) {
    const toml::array* const list = node.as_array();
    if (list && is_list(option)) {
      for (const toml::node& element : *list) RETURN_IF_ERROR(read_one(key, option, element, values));
      return {};
    }
    return read_one(key, option, node, values);
  }

  static Status read_one(const std::string& key, const CLI::Option& option, const toml::node& node,
                         std::vector<std::string>& values) {
    if (const char* const wanted = wanted_instead(option, node))
      return toml_error(node, key,
                        fmt::format("must be {}{}", wanted, is_list(option) ? ", or a list of them" : ""));
    values.push_back(*scalar_text(node));
    return {};
  }

  CLI::App& command_;
  std::set<const CLI::Option*> seen_;
};

}  // namespace

Status apply_config_file(CLI::App& command, const std::string& path) {
  ASSIGN_OR_RETURN(toml::table root, read_toml(path));
  Applier applier(command);
  if (const toml::table* const own = root[command.get_name()].as_table()) {
    RETURN_IF_ERROR(applier.apply(*own));
    root.erase(command.get_name());
  }
  return applier.apply(root);
}

std::string text_of_config_file(const std::string& path, const std::string& command, const std::string& key) {
  const auto root = read_toml(path);
  if (!root.ok()) return {};
  const toml::table* const own = (*root)[command].as_table();
  for (const toml::table* const table : {own, &*root})
    if (table)
      if (const auto text = (*table)[key].value<std::string>()) return *text;
  return {};
}

}  // namespace outrider
