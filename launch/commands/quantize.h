// `outrider quantize`: a model directory whose weights are stored as int8, int4 or fp8, or in blocks of GGUF,
// and a GGUF file with other blocks. int8, int4 and fp8 give the same bits as loading the original with
// --weight-format.
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
  std::string imatrix;            // a file of llama-imatrix; empty: none
  std::string perplexity;         // a text that model and result are scored on; empty: none
  bool allow_requantize = false;  // codes of a GGUF file, once more
  int threads = 0;  // 0: one per core
  bool quiet = false;
};

void add_quantize_options(CLI::App& app, QuantizeOptions& options);

// Returns the exit code; errors were printed.
int run_quantize(const QuantizeOptions& options);

}  // namespace outrider
