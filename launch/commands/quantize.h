// `outrider quantize`: a model directory whose weights are stored as int8, int4 or fp8. It gives the same
// bits as loading the original with --weight-format, and is smaller and sooner loaded.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace outrider {

struct QuantizeOptions {
  std::string model;
  std::string weight_format = "int8";
  std::string output;
  int threads = 0;  // 0: one per core
  bool quiet = false;
};

void add_quantize_options(CLI::App& app, QuantizeOptions& options);

// Returns the exit code; errors were printed.
int run_quantize(const QuantizeOptions& options);

}  // namespace outrider
