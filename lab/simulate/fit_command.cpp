#include "lab/simulate/fit_command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/program/temporary_file.h"
#include "lab/report/html.h"
#include "lab/simulate/fit.h"
#include "lab/simulate/pages.h"
#include "requests/output.h"

namespace outrider {

void add_fit_options(CLI::App& app, FitOptions& o) {
  app.add_option(
         "files", o.files,
         "Reports of `outrider bench --report` and `outrider generate --report`, and results.json of\n"
         "launch/gpu_suite; all of one machine and one pair of models")
      ->required();
  app.add_option("-o,--output", o.output, "Write the costs here, as JSON; `simulate run --costs` reads them");
  app.add_option("--html", o.html, "Write a page with the timings and what was fitted to them here");
  app.add_option("--target", o.target,
                 "Of the models that a GPU suite timed, e.g. \"8B bf16\"; default: its pair");
  app.add_option("--draft", o.draft, "The same, for the draft");
}

Status run_fit(const FitOptions& options) {
  if (!options.output.empty()) RETURN_IF_ERROR(TemporaryFile::check(options.output).in("--output"));
  if (!options.html.empty()) RETURN_IF_ERROR(TemporaryFile::check(options.html).in("--html"));
  Timings timings;
  for (const std::string& file : options.files)
    RETURN_IF_ERROR(read_timings(file, options.target, options.draft, timings));
  ASSIGN_OR_RETURN(const CostFit fit, fit_costs(timings));
  std::fputs(fit_text(fit).c_str(), stdout);
  if (!options.html.empty())
    RETURN_IF_ERROR(write_file(options.html, report::html_page(fit_page(timings, fit))).in("--html"));
  if (options.output.empty()) return {};
  nlohmann::json out;
  fill_json(fit, out);
  return write_file(options.output, json_text(out, 1) + "\n").in("--output");
}

}  // namespace outrider
