#include "lab/study/rounds.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/parse_number.h"
#include "lab/report/csv.h"
#include "lab/report/svg_file.h"
#include "lab/study/cell_store.h"
#include "requests/output.h"

namespace outrider {
namespace {

constexpr size_t kMostPlaces = 4096;  // of a draft; more are a mistake of the file

// The fields of a line of CSV. A quoted field may hold commas and doubled quotes, but no line break.
std::vector<std::string> fields_of(std::string line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.pop_back();
  std::vector<std::string> out(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"')
      out.back() += line[++i];
    else if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

void add_to(std::vector<int64_t>& sums, size_t at, int64_t value) {
  if (sums.size() <= at) sums.resize(at + 1);
  sums[at] += value;
}

// Columns of a file by name.
class Columns {
 public:
  explicit Columns(const std::string& header) : names_(fields_of(header)) {}
  size_t count() const { return names_.size(); }
  std::optional<size_t> find(const std::string& name) const {
    const auto at = std::find(names_.begin(), names_.end(), name);
    return at == names_.end() ? std::nullopt : std::optional<size_t>(at - names_.begin());
  }

 private:
  std::vector<std::string> names_;
};

report::Figure figure_of(const std::string& title, const std::string& text, report::Axis x, report::Axis y) {
  report::Plot plot{.x = std::move(x),
                    .y = std::move(y),
                    .guide = {},
                    .guide_name = {},
                    .panels = {{.title = {}, .series = {}}}};
  return {.title = title, .text = text, .drawing = std::move(plot)};
}

}  // namespace

std::string study_rounds(const StudyFile& study, const std::string& directory) {
  std::string out;
  for (const Cell& cell : study.cells)
    for (int repeat = 0; repeat < study.repeats; ++repeat) {
      std::ifstream file(rounds_path(directory, cell, repeat));
      std::string line;
      if (!std::getline(file, line)) continue;
      if (out.empty()) out = "cell,repeat,label," + line + "\n";
      const std::string front = fmt::format("{},{},{},", cell.id, repeat, report::csv_field(cell.label()));
      while (std::getline(file, line)) out += front + line + "\n";
    }
  return out;
}

Result<std::map<std::string, RoundCounts>> read_rounds(std::istream& file, const std::string& what,
                                                       std::string by) {
  std::string line;
  if (!std::getline(file, line)) return malformed(what + ": holds no line");
  const Columns columns(line);
  constexpr const char* kNeeded[] = {"round", "drafted", "tested", "accepted", "emitted"};
  std::vector<size_t> needed;
  for (const char* name : kNeeded) {
    const auto at = columns.find(name);
    if (!at)
      return malformed(
          fmt::format("{}: has no column \"{}\"; name a file of `generate --rounds` or the "
                      "rounds.csv of a study",
                      what, name));
    needed.push_back(*at);
  }
  std::optional<size_t> series_at;
  if (!by.empty()) {
    series_at = columns.find(by);
    if (!series_at) return malformed(fmt::format("{}: has no column \"{}\"", what, by));
  }
  std::map<std::string, RoundCounts> out;
  for (size_t number = 2; std::getline(file, line); ++number) {
    const std::vector<std::string> fields = fields_of(line);
    const auto fault = [&](const char* why) {
      return malformed(fmt::format("{}:{}: {}", what, number, why));
    };
    if (fields.size() != columns.count()) return fault("has another number of fields than the header");
    std::vector<int64_t> numbers;
    for (const size_t at : needed) {
      const auto value = parse_number<int64_t>(fields[at]);
      if (!value || *value < 0) return fault("a count is no number from 0");
      numbers.push_back(*value);
    }
    const int64_t drafted = numbers[1], tested = numbers[2], accepted = numbers[3];
    if (accepted > tested || tested > drafted || drafted > static_cast<int64_t>(kMostPlaces))
      return fault("these numbers fit no round");
    if (numbers[0] == 1) continue;  // ends the prompt
    RoundCounts& counts = out[series_at ? fields[*series_at] : ""];
    for (int64_t place = 0; place < tested; ++place) {
      add_to(counts.tested, static_cast<size_t>(place), 1);
      add_to(counts.accepted, static_cast<size_t>(place), place < accepted ? 1 : 0);
    }
    add_to(counts.rounds, static_cast<size_t>(drafted), 1);
    add_to(counts.emitted, static_cast<size_t>(drafted), numbers[4]);
  }
  if (out.empty()) return malformed(what + ": holds no round after a prompt");
  return out;
}

report::Figure acceptance_by_position(const std::map<std::string, RoundCounts>& series) {
  report::Figure figure =
      figure_of("Acceptance by position", "Accepted among tested draft tokens, by place in the draft.",
                {"place in the draft", "", {}}, {"acceptance", "", {}});
  auto& panel = std::get<report::Plot>(figure.drawing).panels[0];
  for (const auto& [name, counts] : series) {
    report::Series line{.name = name, .points = {}, .thing = {}};
    for (size_t i = 0; i < counts.tested.size(); ++i)
      line.points.push_back(
          {static_cast<double>(i + 1),
           {static_cast<double>(counts.accepted[i]) / static_cast<double>(counts.tested[i])}});
    if (!line.points.empty()) panel.series.push_back(std::move(line));
  }
  return figure;
}

report::Figure tokens_by_length(const std::map<std::string, RoundCounts>& series) {
  report::Figure figure = figure_of("Tokens a round by draft length", "Mean over the rounds of that length.",
                                    {"draft length", "tokens", {}}, {"tokens a round", "", {}});
  auto& panel = std::get<report::Plot>(figure.drawing).panels[0];
  for (const auto& [name, counts] : series) {
    report::Series line{.name = name, .points = {}, .thing = {}};
    for (size_t length = 0; length < counts.rounds.size(); ++length)
      if (counts.rounds[length] > 0)
        line.points.push_back(
            {static_cast<double>(length),
             {static_cast<double>(counts.emitted[length]) / static_cast<double>(counts.rounds[length])}});
    panel.series.push_back(std::move(line));
  }
  return figure;
}

void add_study_plot_options(CLI::App& app, StudyPlotOptions& o) {
  app.add_option("file", o.file, "rounds.csv of a study, or a file of `outrider generate --rounds`")
      ->required();
  app.add_option("-o,--output", o.output, "Directory of the figures")->capture_default_str();
  app.add_option("--by", o.by,
                 "Column that separates the lines of a figure; ignored where \"label\" is not there")
      ->capture_default_str();
}

Status run_study_plot(const StudyPlotOptions& options) {
  const auto open = [&] { return std::ifstream(options.file); };
  std::ifstream file = open();
  std::string header;
  if (!std::getline(file, header)) return not_found(options.file + ": cannot be read, or is empty");
  const bool is_default = options.by == StudyPlotOptions().by;
  const std::string by = is_default && !Columns(header).find(options.by) ? "" : options.by;
  std::ifstream again = open();
  ASSIGN_OR_RETURN(const auto series, read_rounds(again, options.file, by));
  std::error_code error;
  std::filesystem::create_directories(options.output, error);
  if (error) return unavailable(fmt::format("--output {}: {}", options.output, error.message()));
  const std::pair<const char*, report::Figure> figures[] = {
      {"acceptance-by-position.svg", acceptance_by_position(series)},
      {"tokens-by-length.svg", tokens_by_length(series)}};
  for (const auto& [name, figure] : figures) {
    const std::string svg = report::svg_file(figure),
                      path = (std::filesystem::path(options.output) / name).string();
    if (svg.empty()) {
      fmt::print("{}: nothing to draw\n", figure.title);
      continue;
    }
    RETURN_IF_ERROR(write_file(path, svg));
    fmt::print("{}\n", path);
  }
  return {};
}

}  // namespace outrider
