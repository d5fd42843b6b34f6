// Every round of a study in one CSV, and figures of such a file: `outrider study plot rounds.csv`.
#pragma once

#include <cstdint>
#include <istream>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/report/report.h"
#include "lab/study/study_file.h"

namespace CLI {
class App;
}

namespace outrider {

// The rounds of all runs (requests/round_table.h), with these columns in front: cell, repeat, and label,
// which names the swept values. Runs that have none on disk are left out.
std::string study_rounds(const StudyFile& study, const std::string& directory);

// Sums over one series of a file of rounds. Rounds that end a prompt are left out.
struct RoundCounts {
  std::vector<int64_t> tested, accepted;  // by place in the draft, from 0
  std::vector<int64_t> rounds, emitted;   // by draft length
};

// By the value of the column `by`; empty: all rounds are one series. Columns are found by their names. `what`
// names the file in errors, which also name the line.
Result<std::map<std::string, RoundCounts>> read_rounds(std::istream& file, const std::string& what,
                                                       std::string by);

report::Figure acceptance_by_position(const std::map<std::string, RoundCounts>& series);
report::Figure tokens_by_length(const std::map<std::string, RoundCounts>& series);

struct StudyPlotOptions {
  std::string file;
  std::string output = ".";  // directory of the figures
  std::string by = "label";  // where the file has it
};
void add_study_plot_options(CLI::App& app, StudyPlotOptions& options);
// Writes acceptance-by-position.svg and tokens-by-length.svg.
Status run_study_plot(const StudyPlotOptions& options);

}  // namespace outrider
