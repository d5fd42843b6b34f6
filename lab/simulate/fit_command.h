// `outrider simulate fit`: timings of the user's own machine, as costs for `simulate run` and `plan`.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace CLI {
class App;
}

namespace outrider {

struct FitOptions {
  std::vector<std::string> files;
  std::string target, draft;  // of the models of a GPU suite
  std::string output, html;
};
void add_fit_options(CLI::App& app, FitOptions& options);
Status run_fit(const FitOptions& options);

}  // namespace outrider
