// `outrider bench`: measures the costs and gains of speculation on this machine, for a pair and a set of
// prompts. All compared figures come from one run, in turns, on the same loaded models.
#pragma once

#include <string>
#include <vector>

#include "requests/request_params.h"
#include "requests/run_files.h"
#include "start/settings.h"

namespace CLI {
class App;
}

namespace outrider {

struct BenchOptions {
  ClusterSettings cluster;
  RequestParams request;
  RunFiles files;  // prompts and report
  std::vector<int> gammas{1, 2, 3, 4, 6, 8};
  int repetitions = 5;
  int context = 0;  // tokens that every prompt is lengthened to; 0: as it is
  std::string csv_file, html_file;
};

void add_bench_options(CLI::App& app, BenchOptions& options);
// Sets defaults: the demo pair, prompts, limits.
Status complete_bench_options(BenchOptions& options);

// Returns the exit code; errors were printed.
int run_bench(BenchOptions options);

}  // namespace outrider
