#include "lab/study/expected_time.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "lab/study/cell_process.h"
#include "lab/study/cell_store.h"

namespace outrider {
namespace {

constexpr int kTrialTimeout = 120;  // seconds; stops a longer cell

struct Known {
  std::map<std::string, std::pair<double, int>> by_cell;  // seconds and runs, by id
  double seconds = 0;
  int runs = 0;
  void add(const Cell& cell, double took) {
    auto& [sum, count] = by_cell[cell.id];
    sum += took, ++count;
    seconds += took, ++runs;
  }
  double of(const Cell& cell) const {
    const auto found = by_cell.find(cell.id);
    if (found != by_cell.end()) return found->second.first / found->second.second;
    return runs > 0 ? seconds / runs : 0;
  }
};

// Seconds of one run whose results are discarded.
Result<double> trial(const StudyFile& study, const Cell& cell) {
  const std::string errors =
      (std::filesystem::temp_directory_path() / fmt::format("outrider-study-{}.stderr", getpid())).string();
  std::vector<std::string> arguments{"outrider", "generate"};
  arguments.insert(arguments.end(), cell.arguments.begin(), cell.arguments.end());
  arguments.insert(arguments.end(), {"--quiet", "--compare-turns=1"});
  const CellEnd end =
      run_cell_process(arguments, study.directory(), errors, std::min(kTrialTimeout, study.cell_timeout_s));
  const std::string words = last_words(errors);
  std::error_code none;
  std::filesystem::remove(errors, none);
  if (end.succeeded() || end.timed_out) return end.seconds;
  return unavailable(fmt::format("a trial of {} fails, so the time of the study is not known: {}{}",
                                 cell.label(), end.describe(), words.empty() ? "" : ": " + words));
}

}  // namespace

std::string clock_of(double seconds) {
  const int s = static_cast<int>(seconds + 0.5);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

Result<std::string> expected_time(const StudyFile& study, const std::string& output) {
  Known known;
  std::vector<const Cell*> missing;  // once for each run
  for (const Cell& cell : study.cells)
    for (int repeat = 0; repeat < study.repeats; ++repeat) {
      const auto record = load_record(output, cell, repeat);
      if (record && record->contains("seconds"))
        known.add(cell, (*record)["seconds"].get<double>());
      else
        missing.push_back(&cell);
    }
  if (missing.empty()) return fmt::format("All runs are in {} already.", output);
  std::string source = fmt::format("by the {} runs that are in {}", known.runs, output);
  if (known.runs == 0) {
    source =
        study.cells.size() > 1 ? "by one run of the first and the last cell" : "by one run of the only cell";
    for (const Cell* cell : {&study.cells.front(), &study.cells.back()}) {
      ASSIGN_OR_RETURN(const double took, trial(study, *cell));
      known.add(*cell, took);
      if (study.cells.size() == 1) break;
    }
  }
  double seconds = 0;
  for (const Cell* cell : missing) seconds += known.of(*cell);
  return fmt::format("About {} for the {} runs that are missing, {}.", clock_of(seconds), missing.size(),
                     source);
}

}  // namespace outrider
