// `outrider doctor`: what was found, and what a layout would place where.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace outrider {

struct DoctorOptions {
  int ranks = 0;  // as in mpirun -n; 0: this process only
  std::string layout;
  int data_parallel_size = 1, prefill_groups = 0;  // target groups that decode, and that only prefill
  std::string model;  // empty: no model's shards are shown
};

void add_doctor_options(CLI::App& app, DoctorOptions& options);

// Under mpirun the first rank prints what all have. Returns the exit code; errors were printed.
int run_doctor(const DoctorOptions& options);

}  // namespace outrider
