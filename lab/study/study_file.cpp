#include "lab/study/study_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "base/nearest.h"
#include "lab/study/cell_options.h"
#include "start/flags/toml_file.h"

namespace outrider {
namespace {

constexpr std::array<std::string_view, 6> kStudyKeys{"name",   "repeats", "cell-timeout-s",
                                                     "x-axis", "base",    "sweep"};
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  Result<StudyFile> read() {
    ASSIGN_OR_RETURN(const toml::table root, read_toml(path_));
    study_.path = path_;
    study_.name = std::filesystem::path(path_).stem();
    RETURN_IF_ERROR(top_level(root));
    if (study_.cells.size() * static_cast<size_t>(study_.repeats) > kMaxStudyRuns)
      return invalid_argument(fmt::format("{}: {} cells x {} repeats; at most {} runs make a study", path_,
                                          study_.cells.size(), study_.repeats, kMaxStudyRuns));
    return std::move(study_);
  }

 private:
  Status top_level(const toml::table& root) {
    const toml::node *sweep = nullptr, *x_axis = nullptr;
    for (const auto& [toml_key, node] : root) {
      const std::string key = dashed(toml_key);
      if (key == "name") {
        RETURN_IF_ERROR(name(node));
      } else if (key == "repeats") {
        RETURN_IF_ERROR(whole(node, key, 1, 1000, study_.repeats));
      } else if (key == "cell-timeout-s") {
        RETURN_IF_ERROR(whole(node, key, 1, 86400, study_.cell_timeout_s));
      } else if (key == "x-axis") {
        x_axis = &node;
      } else if (key == "base") {
        RETURN_IF_ERROR(read_base(node));
      } else if (key == "sweep") {
        sweep = &node;
      } else {
        const std::string_view nearest = nearest_name(kStudyKeys, key);
        return toml_error(node, key,
                          fmt::format("no such key; a study has {}{}", fmt::join(kStudyKeys, ", "),
                                      nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
      }
    }
    RETURN_IF_ERROR(expand_all(sweep));
    return x_axis ? read_x_axis(*x_axis) : Status();
  }

  Status read_x_axis(const toml::node& node) {
    study_.x_axis = node.value_or(std::string());
    std::replace(study_.x_axis.begin(), study_.x_axis.end(), '_', '-');
    if (std::find(study_.axes.begin(), study_.axes.end(), study_.x_axis) != study_.axes.end()) return {};
    return toml_error(node, "x-axis", fmt::format("must be a swept key: {}", fmt::join(study_.axes, ", ")));
  }

  Status name(const toml::node& node) {
    const auto value = node.value<std::string>();
    if (!value || value->empty() || value->find_first_of("/\n") != std::string::npos)
      return toml_error(node, "name", "must be a text without slashes");
    study_.name = *value;
    return {};
  }

  Status whole(const toml::node& node, const std::string& key, int low, int high, int& to) const {
    const auto value = node.value_exact<int64_t>();
    if (!value || *value < low || *value > high)
      return toml_error(node, key, fmt::format("must be a whole number from {} to {}", low, high));
    to = static_cast<int>(*value);
    return {};
  }

  // A value of an option as the command line would have it.
  Result<std::string> scalar(const toml::node& node, const std::string& key) const {
    const auto text = scalar_text(node);
    if (!text) return toml_error(node, key, "must be a text, number, true or false");
    if (text->find('\n') != std::string::npos)
      return toml_error(node, key, "must be one line; put longer prompts into a --prompts file");
    if (const Status fits = check_cell_value(key, *text); !fits.ok())
      return toml_error(node, key, fits.message());
    return *text;
  }

  Status read_base(const toml::node& node) {
    const toml::table* table = node.as_table();
    if (!table) return toml_error(node, "base", "must be a table: [base]");
    for (const auto& [toml_key, value] : *table) {
      const std::string key = dashed(toml_key);
      if (const Status known = check_cell_key(key); !known.ok())
        return toml_error(value, key, known.message());
      if (!value.is_array()) {
        ASSIGN_OR_RETURN(const std::string text, scalar(value, key));
        base_.push_back({key, {text}});
        continue;
      }
      if (!is_repeatable(key))
        return toml_error(value, key, "takes one value here; lists of alternatives belong to [sweep]");
      Axis repeated{key, {}};
      for (const toml::node& element : *value.as_array()) {
        ASSIGN_OR_RETURN(std::string text, scalar(element, key));
        repeated.values.push_back(std::move(text));
      }
      base_.push_back(std::move(repeated));
    }
    return {};
  }

  Status expand_all(const toml::node* sweep) {
    if (!sweep) return expand({}, path_ + ": [base]");
    if (const toml::table* table = sweep->as_table()) return read_sweep(*table);
    const toml::array* array = sweep->as_array();
    if (!array || !array->is_array_of_tables())
      return toml_error(*sweep, "sweep", "must be a table: [sweep]");
    for (const toml::node& element : *array) RETURN_IF_ERROR(read_sweep(*element.as_table()));
    return {};
  }

  Status read_sweep(const toml::table& table) {
    std::vector<std::pair<uint32_t, Axis>> lines;  // toml++ sorts keys by name, a reader by line
    for (const auto& [toml_key, node] : table) {
      Axis axis{dashed(toml_key), {}};
      if (const Status known = check_cell_key(axis.key); !known.ok())
        return toml_error(node, axis.key, known.message());
      const toml::array* array = node.as_array();
      if (!array || array->empty())
        return toml_error(node, axis.key, "must be a list of values, e.g. [1, 2]");
      for (const toml::node& element : *array) {
        ASSIGN_OR_RETURN(std::string text, scalar(element, axis.key));
        axis.values.push_back(std::move(text));
      }
      lines.emplace_back(node.source().begin.line, std::move(axis));
    }
    std::sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Axis> axes;
    for (auto& [line, axis] : lines) axes.push_back(std::move(axis));
    return expand(axes, fmt::format("{}:{}: sweep", path_, table.source().begin.line));
  }

  // Every combination; the last axis varies fastest.
  Status expand(const std::vector<Axis>& axes, const std::string& where) {
    size_t count = 1;
    for (const Axis& axis : axes) {
      count *= axis.values.size();
      if (count > kMaxStudyRuns)
        return invalid_argument(fmt::format("{}: more than {} cells", where, kMaxStudyRuns));
      if (std::find(study_.axes.begin(), study_.axes.end(), axis.key) == study_.axes.end())
        study_.axes.push_back(axis.key);
    }
    for (size_t i = 0; i < count; ++i) RETURN_IF_ERROR(add_cell(axes, i, where));
    return {};
  }

  Status add_cell(const std::vector<Axis>& axes, size_t index, const std::string& where) {
    Cell cell = make_cell(base_, axes, index);
    RETURN_IF_ERROR(check_cell_arguments(cell.arguments).in(fmt::format("{}: {}", where, cell.label())));
    if (ids_.insert(cell.id).second) study_.cells.push_back(std::move(cell));
    return {};
  }

  std::string path_;
  StudyFile study_;
  std::vector<Axis> base_;  // key and its value, or values where it repeats
  std::set<std::string> ids_;
};

}  // namespace

std::string StudyFile::directory() const {
  const auto parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

Result<StudyFile> read_study_file(const std::string& path) { return Reader(path).read(); }

}  // namespace outrider
