// `outrider simulate theory`: closed forms (lab/simulate/theory.h), on the screen and as JSON.
#pragma once

#include <string>

#include "base/status.h"
#include "lab/simulate/report_files.h"
#include "lab/simulate/theory.h"

namespace CLI {
class App;
}

namespace outrider {

struct TheoryCommandOptions {
  TheoryOptions theory;
  ReportFiles files;
};
void add_theory_options(CLI::App& app, TheoryCommandOptions& options);
Status run_theory(const TheoryCommandOptions& options);

}  // namespace outrider
