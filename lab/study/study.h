// `outrider study FILE.toml`: runs the cells of a study file, each run in a process of its own, and reports
// on them.
// `outrider study compare A B`: compare.h. `outrider study plot FILE`: rounds.h.
#pragma once

#include <string>

#include "lab/study/compare.h"
#include "lab/study/rounds.h"

namespace outrider {

struct StudyOptions {
  std::string file;
  std::string output;  // directory; empty: NAME.study
  std::string until;   // "2%": repeat until intervals are as narrow; empty: the file's repeats
  int max_repeats = 30;
  bool dry_run = false, report_only = false, retry_failed = false, quiet = false;
  CLI::App* compare_app = nullptr;
  CompareOptions compare;
  CLI::App* plot_app = nullptr;
  StudyPlotOptions plot;
};

void add_study_options(CLI::App& app, StudyOptions& options);

// Returns the exit code (launch/commands/generate.h; kExitRequestFailed: a cell failed); errors were printed.
int run_study(const StudyOptions& options);

}  // namespace outrider
