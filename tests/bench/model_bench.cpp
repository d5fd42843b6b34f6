// Whole forward passes of a model directory, after a context:
//   OUTRIDER_BENCH_MODEL=DIR model_bench     (and OUTRIDER_BENCH_ISA=avx512_bf16, to pin an instruction set)
// forward: rows tokens of one sequence, logits for all of them, the cache truncated in between.
//   GB/s   weights read per second of a pass of one row     share  of the read bandwidth probed before and
//   after ratio  time of a pass over that of one row, taken in turns with it
// tree: the same rows as the last token of a text and a tree behind it, two children to every node.
//   ratio  time of a pass over that of a chain of as many rows, taken in turns with it
//   keep_us  of keeping the path to the last node afterwards
#include <benchmark/benchmark.h>

#include <map>
#include <memory>

#include "model/model.h"
#include "tests/bench/model_main.h"
#include "tests/bench/read_bandwidth.h"

namespace outrider::bench {
namespace {

constexpr int64_t kContext = 512, kMaxRows = 32;

struct Loaded {
  std::unique_ptr<Collectives> single = make_single_collectives();
  std::unique_ptr<Model> model;
  KvHandle sequence;
};

Result<std::unique_ptr<Loaded>> load(const std::string& directory, WeightFormat format, int threads) {
  auto loaded = std::make_unique<Loaded>();
  ASSIGN_OR_RETURN(loaded->model, Model::load(directory,
                                              {.threads = threads,
                                               .spin = true,
                                               .max_rows = 64,
                                               .max_logit_rows = kMaxRows,
                                               .max_positions = kContext + kMaxRows,
                                               .weight_format = format},
                                              *loaded->single));
  loaded->sequence = loaded->model->kv().create();
  const std::vector<TokenId> prompt(64, TokenId(1));
  for (int64_t i = 0; i < kContext; i += 64) {
    const BatchSlice slice{loaded->sequence, prompt, 0};
    RETURN_IF_ERROR(loaded->model->forward({&slice, 1}).status());
  }
  return loaded;
}

double pass_seconds(Loaded& loaded, int64_t rows, std::span<const int32_t> parents = {}) {
  const std::vector<TokenId> tokens(static_cast<size_t>(rows), TokenId(2));
  const BatchSlice slice{
      .sequence = loaded.sequence, .tokens = tokens, .logit_rows = rows, .parents = parents};
  const double start = seconds_now();
  benchmark::DoNotOptimize(loaded.model->forward({&slice, 1}));
  const double seconds = seconds_now() - start;
  if (parents.empty()) loaded.model->kv().truncate(loaded.sequence, kContext);
  return seconds;
}

// The model of the bench before, if it was the same. Null: said why.
Loaded* load_once(benchmark::State& state, const std::string& directory, WeightFormat format) {
  static std::unique_ptr<Loaded> loaded;
  static std::pair<WeightFormat, int> key{WeightFormat::kAuto, 0};
  const auto threads = static_cast<int>(state.range(0));
  if (loaded && key == std::pair(format, threads)) return loaded.get();
  loaded.reset();
  auto fresh = load(directory, format, threads);
  if (!fresh.ok()) {
    state.SkipWithError(fresh.status().message().c_str());
    return nullptr;
  }
  loaded = std::move(fresh).value();
  key = {format, threads};
  return loaded.get();
}

void BM_Tree(benchmark::State& state, const std::string& directory, WeightFormat format) {
  Loaded* loaded = load_once(state, directory, format);
  if (!loaded) return;
  const int64_t rows = state.range(1);
  std::vector<int32_t> parents, path;
  for (int32_t node = 0; node + 1 < rows; ++node) parents.push_back((node + 1) / 2 - 1);
  for (int32_t node = static_cast<int32_t>(rows) - 2; node >= 0; node = parents[static_cast<size_t>(node)])
    path.insert(path.begin(), node);
  double chain = 0, tree = 0, keep = 0;
  for (auto _ : state) {
    chain += pass_seconds(*loaded, rows);
    const double seconds = pass_seconds(*loaded, rows, parents);
    tree += seconds;
    const double start = seconds_now();
    if (!loaded->model->kv().keep_path(loaded->sequence, kContext + 1, path).ok())
      state.SkipWithError("the path was not kept");
    keep += seconds_now() - start;
    loaded->model->kv().truncate(loaded->sequence, kContext);
    state.SetIterationTime(seconds);
  }
  state.counters["ratio"] = tree / chain;
  state.counters["keep_us"] = keep * 1e6 / static_cast<double>(state.iterations());
}

void BM_Forward(benchmark::State& state, const std::string& directory, WeightFormat format) {
  static ReadProbe probe;
  Loaded* loaded = load_once(state, directory, format);
  if (!loaded) return;
  const auto threads = static_cast<int>(state.range(0));
  const int64_t rows = state.range(1);
  ThreadPool pool(threads, true);
  const double before = probe.bytes_per_second(pool);
  pass_seconds(*loaded, rows);
  double one = 0, many = 0;
  for (auto _ : state) {
    one += pass_seconds(*loaded, 1);
    const double seconds = pass_seconds(*loaded, rows);
    many += seconds;
    state.SetIterationTime(seconds);
  }
  const double bandwidth = (before + probe.bytes_per_second(pool)) / 2;
  // Only one row of the embedding is read.
  const auto& config = loaded->model->config();
  const double embedding = config.tie_word_embeddings
                               ? 0
                               : static_cast<double>(config.vocab_size * config.hidden_size) *
                                     (format == WeightFormat::kBFloat16 ? 2.0 : 1.03125);
  const double bytes = (static_cast<double>(loaded->model->weight_bytes()) - embedding) *
                       static_cast<double>(state.iterations());
  state.counters["GB/s"] = bytes / one * 1e-9;
  state.counters["probe"] = bandwidth * 1e-9;
  state.counters["share"] = bytes / one / bandwidth;
  state.counters["ratio"] = many / one;
}

}  // namespace
}  // namespace outrider::bench

int main(int argc, char** argv) {
  using namespace outrider;
  return bench::run_on_a_model(argc, argv, [](const std::string& directory) {
    for (WeightFormat format : {WeightFormat::kBFloat16, WeightFormat::kInt8, WeightFormat::kInt4})
      for (int threads : {1, 2}) {
        const auto add = [&](const char* kind,
                             void (*bench)(benchmark::State&, const std::string&, WeightFormat),
                             const std::vector<int64_t>& rows) {
          benchmark::RegisterBenchmark((std::string(kind) + "/" + weight_format_name(format)).c_str(),
                                       [=](benchmark::State& state) { bench(state, directory, format); })
              ->ArgNames({"threads", "rows"})
              ->ArgsProduct({{threads}, rows})
              ->UseManualTime()
              ->Iterations(5)
              ->Unit(benchmark::kMillisecond);
        };
        add("forward", &bench::BM_Forward, {1, 4, 8, 16});
        add("tree", &bench::BM_Tree, {4, 8, 16, 32});
      }
  });
}
