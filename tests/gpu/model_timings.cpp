// Whole decode steps, and drafts that are drawn on the device, of models with noise for weights.
#include <cstdio>

#include "comm/collectives.h"
#include "model/cuda/model.h"
#include "model/token_runner.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/measure.h"

namespace outrider::gpu {
namespace {

double seconds_of_prefill(Model& model, KvHandle sequence, std::span<const TokenId> ids) {
  constexpr size_t kChunk = 128;
  const auto start = std::chrono::steady_clock::now();
  for (size_t at = 0; at < ids.size(); at += kChunk) {
    const BatchSlice slice{sequence, ids.subspan(at, std::min(kChunk, ids.size() - at)), 1};
    (void)model.forward({&slice, 1}).value();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The time of one step over `ids`, which is rolled back.
Timing time_step(const Bench& bench, cuda::CudaModel& model, KvHandle sequence,
                 std::span<const TokenId> ids) {
  const int warm_ups = bench.settings.tiny ? 1 : 3, repetitions = bench.settings.tiny ? 2 : 30;
  const int64_t context = model.kv().length(sequence);
  const BatchSlice slice{sequence, ids, static_cast<int64_t>(ids.size())};
  std::vector<double> seconds;
  for (int r = -warm_ups; r < repetitions; ++r) {
    const auto start = std::chrono::steady_clock::now();
    const DeviceLogits logits = model.forward_on_device({&slice, 1}).value();
    logits.stream.synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    model.kv().truncate(sequence, context);
    if (r >= 0) seconds.push_back(took.count());
  }
  return summarize(std::move(seconds));
}

}  // namespace

// One sequence with a context; steps of M rows that are rolled back, as a verification that rejects all is.
void measure_steps(Bench& bench, const std::string& name, const ModelConfig& config, WeightFormat format,
                   const std::vector<int64_t>& contexts, bool overlap) {
  for (int64_t context : contexts) {
    if (bench.time_is_up(fmt::format("steps {} after {}", name, context))) return;
    const auto single = make_single_collectives();
    auto model = cuda::CudaModel::of_noise(config,
                                           {.device = {.kind = Device::Kind::kCuda},
                                            .max_logit_rows = 16,
                                            .max_positions = context + 32,
                                            .weight_format = format,
                                            .overlap_kernels = overlap},
                                           *single);
    if (!model.ok()) {
      std::printf("%-28s not run: %s\n", name.c_str(), model.status().message().c_str());
      bench.report["not_run"].push_back(name + ": " + model.status().message());
      return;
    }
    const KvHandle sequence = (*model)->kv().create();
    std::vector<TokenId> ids;
    for (int64_t i = 0; i < context + 32; ++i)
      ids.emplace_back(static_cast<int32_t>(i * 7919 % config.vocab_size));
    const auto text = std::span(ids).first(static_cast<size_t>(context));
    const double prefill_s = seconds_of_prefill(**model, sequence, text);
    double alone = 0;
    std::printf("%-28s", fmt::format("{} step after {}", name, context).c_str());
    for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16}) {
      const auto next = std::span(ids).subspan(text.size(), static_cast<size_t>(rows));
      const Timing t = time_step(bench, **model, sequence, next);
      if (rows == 1) alone = t.median_s;
      const double share = static_cast<double>((*model)->weight_bytes()) / t.median_s / bench.read_bandwidth;
      const auto expected = expected_step(bench.rates, config, types_of(format), rows, context, overlap);
      nlohmann::json line{{"model", name},
                          {"weights", weight_format_name(format)},
                          {"overlapping_kernels", overlap},
                          {"context", context},
                          {"rows", rows},
                          {"ms", t.median_s * 1e3},
                          {"spread", t.spread},
                          {"share_of_read_bandwidth", share},
                          {"t_over_t1", t.median_s / alone},
                          {"weight_gb", static_cast<double>((*model)->weight_bytes()) * 1e-9},
                          {"prefill_s", prefill_s}};
      for (const ExpectedKernel& kernel : expected)
        line["expected_kernels_us"][kernel.name] = {kernel.count, kernel.seconds * 1e6};
      const std::string off = bench.compare(line, t.median_s, seconds_of(expected));
      bench.report["steps"].push_back(line);
      if (rows == 1 || rows == 8 || rows == 16 || !off.empty())
        std::printf("  M=%-2ld %7.3f ms (%.0f %%, x%.3f)%s", static_cast<long>(rows), t.median_s * 1e3,
                    100 * share, t.median_s / alone, off.c_str());
    }
    std::printf("\n");
  }
}

namespace {

// Measures one depth of a tree: a pass over several rows and the ranking of the four best tokens of each,
// including waits and copies. The comparison is the same pass whose logits are copied to the host, without
// ranking.
void measure_looks(Bench& bench, const std::string& name, const ModelConfig& config, WeightFormat format,
                   cuda::CudaModel& model, TokenRunner& runner, KvHandle sequence) {
  std::printf("%-28s", (name + " trees").c_str());
  const int64_t context = model.kv().length(sequence);
  const SamplingParams params{.rule = Rule::kInvariant, .temperature = 1};
  constexpr int32_t kBest = 4;
  for (const int64_t rows : {1, 8, 16}) {
    const std::vector<TokenId> ids(static_cast<size_t>(rows), TokenId(1));
    const BatchSlice slice{sequence, ids, rows};
    std::vector<TokenLook> looks;
    for (int64_t row = 0; row < rows; ++row)
      looks.push_back({.step = {.sampling = &params, .position = Position(static_cast<int32_t>(row))},
                       .row = row,
                       .count = kBest});
    if (!runner.takes(looks)) throw std::runtime_error("looks that were not planned");
    std::vector<double> ranked, brought;
    for (int r = -2; r < (bench.settings.tiny ? 1 : 20); ++r)
      for (const bool there : {true, false}) {
        const auto start = std::chrono::steady_clock::now();
        if (there && !runner.look({&slice, 1}, looks).ok()) throw std::runtime_error("a look failed");
        if (!there) (void)model.forward({&slice, 1}).value();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        model.kv().truncate(sequence, context);
        if (r >= 0) (there ? ranked : brought).push_back(took.count());
      }
    const Timing t = summarize(std::move(ranked)), host = summarize(std::move(brought));
    const auto expected = expected_looks(bench.rates, config.vocab_size, rows, kBest);
    nlohmann::json line{{"model", name},
                        {"rows", rows},
                        {"ms", t.median_s * 1e3},
                        {"spread", t.spread},
                        {"ms_with_logits_on_the_host", host.median_s * 1e3}};
    for (const ExpectedKernel& kernel : expected)
      line["expected_kernels_us"][kernel.name] = {kernel.count, kernel.seconds * 1e6};
    const double step = seconds_of(expected_step(bench.rates, config, types_of(format), rows, context));
    const std::string off = bench.compare(line, t.median_s, step + seconds_of(expected));
    bench.report["trees"].push_back(line);
    std::printf("  M=%-2ld %.3f ms (logits on the host %.3f)%s", static_cast<long>(rows), t.median_s * 1e3,
                host.median_s * 1e3, off.c_str());
  }
  std::printf("\n");
}

}  // namespace

// Drafts of 8 tokens after a context, whose tokens are drawn on the device: how long a token takes, wait and
// copies included.
void measure_drafts(Bench& bench, const std::string& name, const ModelConfig& config, WeightFormat format) {
  if (bench.time_is_up("drafts " + name)) return;
  constexpr int64_t kContext = 128;
  constexpr int32_t kTokens = 8, kTreeRows = 16;
  const auto single = make_single_collectives();
  const ModelOptions options{.device = {.kind = Device::Kind::kCuda},
                             .max_positions = kContext + kTreeRows,
                             .run_sequences = 1,
                             .weight_format = format};
  auto model = cuda::CudaModel::of_noise(config, options, *single);
  if (!model.ok()) return bench.report["not_run"].push_back(name + ": " + model.status().message());
  const auto runner = (*model)->make_runner(config.vocab_size);
  const std::vector<TokenId> text(kContext, TokenId(1));
  const KvHandle sequence = (*model)->kv().create();
  const BatchSlice prefill{sequence, std::span(text).first(kContext - 1), 1};
  (void)(*model)->forward({&prefill, 1}).value();
  std::printf("%-28s", (name + " drafts").c_str());
  const auto compact = static_cast<int32_t>(config.vocab_size / 50);  // the default
  struct Kind {
    const char* title = "";
    Rule rule = Rule::kToken;
    int32_t row_bytes = 0, top_k = 0;
    float top_p = 1;
    DrawKind expected;
  };
  for (const auto& [title, rule, row_bytes, top_k, top_p, draw] :
       {Kind{.title = "greedy", .rule = Rule::kGreedy},
        {.title = "invariant", .rule = Rule::kInvariant},
        {.title = "dense q", .expected = {.has_dense_q = true}},
        {.title = "top-k and top-p", .top_k = 40, .top_p = 0.9f, .expected = {2, true}},
        {.title = "compact q", .row_bytes = compact, .expected = {.has_compact_q = true}}}) {
    const SamplingParams params{
        .rule = rule, .temperature = rule == Rule::kGreedy ? 0.0f : 1.0f, .top_k = top_k, .top_p = top_p};
    const TokenRun run{.sequence = sequence,
                       .inputs = std::span(text).last(1),
                       .first = {.sampling = &params, .position = Position(kContext), .row_bytes = row_bytes},
                       .count = kTokens};
    if (!runner->takes({&run, 1})) continue;  // the vocabulary is too small for compact rows
    std::vector<double> seconds;
    for (int r = -2; r < (bench.settings.tiny ? 1 : 30); ++r) {
      const auto start = std::chrono::steady_clock::now();
      const Status status = runner->run({&run, 1}, false);
      if (!status.ok() || runner->failed(0)) throw std::runtime_error("a draft failed: " + status.message());
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      (*model)->kv().truncate(sequence, kContext - 1);
      if (r >= 0) seconds.push_back(took.count());
    }
    const Timing t = summarize(std::move(seconds));
    nlohmann::json line{{"model", name},
                        {"kind", title},
                        {"tokens", kTokens},
                        {"ms_per_token", t.median_s * 1e3 / kTokens},
                        {"spread", t.spread}};
    const auto draws = expected_draw(bench.rates, config.vocab_size, 1, draw);
    const double expected =
        seconds_of(expected_step(bench.rates, config, types_of(format), 1, kContext)) + seconds_of(draws);
    for (const ExpectedKernel& kernel : draws)
      line["expected_kernels_us"][kernel.name] = {kernel.count, kernel.seconds * 1e6};
    const std::string off = bench.compare(line, t.median_s / kTokens, expected);
    bench.report["drafts"].push_back(line);
    std::printf("  %s %.3f ms/token%s", title, t.median_s * 1e3 / kTokens, off.c_str());
  }
  std::printf("\n");
  measure_looks(bench, name, config, format, **model, *runner, sequence);
}

}  // namespace outrider::gpu
