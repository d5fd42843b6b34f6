// `outrider doctor`: what was found, and what a layout would place where.
#pragma once

#include <string>
#include <vector>

#include "cluster/topology.h"

namespace outrider {

struct DoctorOptions {
  int ranks = 0;  // as in mpirun -n; 0: this process only
  std::string layout;
  std::vector<HostInfo> hosts;  // of the ranks that mpirun started; empty: it did not
  std::string model;            // empty: no model's shards are shown
};

// Returns the exit code; errors were printed.
int run_doctor(const DoctorOptions& options);

}  // namespace outrider
