// `outrider serve-bench`: the shape of real traffic at chosen rates, against one or several servers with
// OpenAI's API, in turns.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lab/serve_bench/workload.h"
#include "lab/simulate/report_files.h"

namespace outrider {

struct ServeBenchOptions {
  std::vector<std::string> servers{"http://127.0.0.1:8000"};  // URL, or NAME=URL
  std::vector<std::string> variants;  // NAME={...}: fields that are added to every body; none: one without
  std::string model;                  // empty: the first that a server lists
  std::string api_key;                // of all servers
  std::vector<double> rates{1, 2, 4};
  double duration_s = 30;
  int turns = 3;
  WorkloadOptions workload;
  double temperature = 0;
  double timeout_s = 120;
  double slo_first_s = 1, slo_per_token_s = 0.1;
  ReportFiles files;
  std::string pareto;  // SVG; empty: none
  bool quiet = false;
};

void add_serve_bench_options(CLI::App& app, ServeBenchOptions& options);
// The exit code: kExitRequestFailed where a request of it failed.
int run_serve_bench(const ServeBenchOptions& options);

}  // namespace outrider
