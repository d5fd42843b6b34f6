// Time to load a model directory, from the page cache, per weight format:
//   OUTRIDER_BENCH_MODEL=DIR load_bench
// counters: bytes held, bytes loaded per second, and peak resident memory divided by bytes held. The peak of
// a process never falls, so run one format per process (--benchmark_filter).
#include <benchmark/benchmark.h>

#include <sys/resource.h>

#include <thread>

#include "model/model.h"
#include "tests/bench/model_main.h"

namespace outrider::bench {
namespace {

double peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

void BM_Load(benchmark::State& state, const std::string& directory, WeightFormat format) {
  const auto single = make_single_collectives();
  const ModelOptions options{.threads = static_cast<int>(std::thread::hardware_concurrency()),
                             .max_rows = 16,
                             .max_logit_rows = 16,
                             .max_positions = 512,
                             .weight_format = format};
  double bytes = 0;
  for (auto _ : state) {
    const auto model = Model::load(directory, options, *single);
    if (!model.ok()) return state.SkipWithError(model.status().message().c_str());
    bytes = static_cast<double>((*model)->weight_bytes());
  }
  state.counters["bytes"] = bytes;
  state.counters["bytes/s"] =
      benchmark::Counter(bytes * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.counters["peak/bytes"] = peak_bytes() / bytes;
}

}  // namespace
}  // namespace outrider::bench

int main(int argc, char** argv) {
  using namespace outrider;
  return bench::run_on_a_model(argc, argv, [](const std::string& directory) {
    for (WeightFormat format :
         {WeightFormat::kAuto, WeightFormat::kBFloat16, WeightFormat::kInt8, WeightFormat::kInt4})
      benchmark::RegisterBenchmark((std::string("load/") + weight_format_name(format)).c_str(),
                                   [=](benchmark::State& state) { bench::BM_Load(state, directory, format); })
          ->Iterations(3)
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
  });
}
