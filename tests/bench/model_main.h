// The main program of benches on a model directory, named by OUTRIDER_BENCH_MODEL.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "tests/bench/isa_of_environment.h"

namespace outrider::bench {

inline int run_on_a_model(int argc, char** argv, const std::function<void(const std::string&)>& add_benches) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv) || !pin_isa_of_environment()) return 1;
  const char* directory = std::getenv("OUTRIDER_BENCH_MODEL");
  if (!directory) {
    std::fprintf(stderr, "%s: set OUTRIDER_BENCH_MODEL to a model directory (outrider synth makes one)\n",
                 argv[0]);
    return 1;
  }
  add_benches(directory);
  std::printf("instruction set: %s\n", isa_name().c_str());
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace outrider::bench
