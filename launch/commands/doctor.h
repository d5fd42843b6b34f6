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
  std::string model;  // empty: no model's shards are shown
};

void add_doctor_options(CLI::App& app, DoctorOptions& options);

// Under mpirun the first rank prints what all have. Returns the exit code; errors were printed.
int run_doctor(const DoctorOptions& options);

}  // namespace outrider
