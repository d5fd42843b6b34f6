// Timings of one GPU: memory bandwidth, matrix products of 1B and 8B shapes for 1 to 256 rows beside cuBLAS,
// and whole decode steps of 1B, 3B and 8B shapes with noise for weights, in bf16, int8 and fp8. One table on
// standard output, one JSON file.
//   gpu_bench [--json FILE] [--seconds N] [--tiny]
// Exit codes: 0, or 77 and the reason where there is no GPU. --tiny: shapes that the emulation can run.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/collectives.h"
#include "tests/gpu/cublas.h"
#include "tests/gpu/measure.h"
#include "tests/gpu/read_bandwidth.h"
#include "transformer/cuda/model.h"
#include "transformer/cuda_backend.h"
#include "transformer/token_runner.h"
#include "transformer/weights.h"

namespace outrider::gpu {
namespace {

using nlohmann::json;

constexpr int kExitNoGpu = 77;

struct Settings {
  std::string json_file;
  double seconds = 240;  // for everything; what does not fit is left out, and said
  bool tiny = false;
};

constexpr std::pair<WeightType, WeightFormat> kFormats[]{{WeightType::kBFloat16, WeightFormat::kBFloat16},
                                                         {WeightType::kInt8, WeightFormat::kInt8},
                                                         {WeightType::kFloat8, WeightFormat::kFloat8},
                                                         {WeightType::kInt4, WeightFormat::kInt4}};

class Bench {
 public:
  explicit Bench(const Settings& settings) : settings_(settings), device_(cuda::describe_device(0)) {}

  int run();

 private:
  bool time_is_up(const std::string& what);
  void measure_bandwidth();
  void measure_launches();
  void measure_products(const std::string& name, int64_t n, int64_t k, WeightType type);
  void measure_steps(const std::string& name, const ModelConfig& config, WeightFormat format,
                     const std::vector<int64_t>& contexts, bool overlap = true);
  void measure_drafts(const std::string& name, const ModelConfig& config, WeightFormat format);
  void write() const;

  Settings settings_;
  cuda::DeviceInfo device_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  cuda::Stream stream_{cuda::KernelOrder::kOverlapping};
  double read_bandwidth_ = 1;  // bytes per second
  json report_;
};

bool Bench::time_is_up(const std::string& what) {
  const std::chrono::duration<double> used = std::chrono::steady_clock::now() - start_;
  if (used.count() < settings_.seconds) return false;
  std::printf("%-28s not run: the time of --seconds is used up\n", what.c_str());
  report_["not_run"].push_back(what);
  return true;
}

void Bench::measure_bandwidth() {
  const int64_t bytes = settings_.tiny ? int64_t{1} << 20 : int64_t{4} << 30;
  const cuda::DeviceBuffer<std::byte> from(bytes), to(bytes);
  const cuda::DeviceBuffer<float> sink(1);
  const Timing copied =
      measure(stream_, 10, 1, [&](int) { cuda::copy_bytes(to.data(), from.data(), from.bytes(), stream_); });
  const Timing read = measure(stream_, 10, 1, [&](int) {
    read_all(stream_, from.data(), bytes, device_.multiprocessors, sink.data());
  });
  read_bandwidth_ = static_cast<double>(bytes) / read.median_s;
  report_["bandwidth"] = {{"copy_gb_per_s", 2e-9 * static_cast<double>(bytes) / copied.median_s},
                          {"read_gb_per_s", 1e-9 * read_bandwidth_}};
  std::printf("copy %.0f GB/s (read + written), read %.0f GB/s\n",
              2e-9 * static_cast<double>(bytes) / copied.median_s, 1e-9 * read_bandwidth_);
}

// What a kernel costs that has next to nothing to do, in a graph of many: alone, and overlapping.
void Bench::measure_launches() {
  constexpr int kKernels = 200;
  constexpr int64_t kColumns = 64;
  const cuda::DeviceBuffer<float> in(2 * kColumns), out(kColumns);
  std::printf("%-28s", "kernel in a graph");
  for (const auto& [name, order] : {std::pair{"in turn", cuda::KernelOrder::kInTurn},
                                    std::pair{"overlapping", cuda::KernelOrder::kOverlapping}}) {
    const cuda::Stream stream(order);
    const cuda::Graph graph(stream, [&] {
      for (int i = 0; i < kKernels; ++i)
        cuda::silu_mul(stream, in.data(), nullptr, 1, kColumns, WeightType::kFloat32, out.data());
    });
    const double us =
        1e6 * measure(stream, settings_.tiny ? 2 : 20, 1, [&](int) { graph.launch(stream); }).median_s /
        kKernels;
    report_["kernel_us"][name] = us;
    std::printf("  %s %.2f us", name, us);
  }
  std::printf("\n");
}

// Copies of the weights that together exceed the L2 cache several times take turns: every read is from
// memory.
void Bench::measure_products(const std::string& name, int64_t n, int64_t k, WeightType type) {
  if (time_is_up("product " + name)) return;
  const cuda::Slices slices = cuda::even_slices(k, cuda::step_columns(type));
  const int64_t weight_bytes = cuda::DeviceMatrix::bytes_for(type, n, slices);
  const int copies =
      settings_.tiny ? 2 : static_cast<int>(std::clamp<int64_t>((int64_t{512} << 20) / weight_bytes, 2, 64));
  const int calls = settings_.tiny ? 2 : std::max(copies, 8);
  constexpr int64_t kMostRows = 256;
  std::vector<cuda::DeviceMatrix> weights;
  for (int c = 0; c < copies; ++c) {
    weights.emplace_back(type, n, slices);
    cuda::fill_noise(stream_, weights.back().view(), static_cast<uint64_t>(c) + 1, 0.02f);
  }
  const cuda::DeviceBuffer<float> split_parts(cuda::kSplitFloats);
  const cuda::DeviceBuffer<uint32_t> split_arrived(cuda::kSplitTiles);
  cuda::DeviceMatrix x(WeightType::kBFloat16, kMostRows, cuda::even_slices(k));  // any bf16 noise
  cuda::fill_noise(stream_, x.view(), 99, 1.0f);
  const cuda::DeviceBuffer<float> out(kMostRows * n);
  cuda::prepare_matmul(device_.shared_bytes);
  auto cublas = type == WeightType::kBFloat16 ? Cublas::load(stream_)
                                              : Result<std::unique_ptr<Cublas>>(unsupported("bf16 only"));
  const int repetitions = settings_.tiny ? 2 : 15;
  double alone = 0;
  std::printf("%-28s", fmt::format("{} [{}, {}]", name, n, k).c_str());
  for (int64_t rows : {1, 2, 4, 8, 9, 12, 16, 32, 64, 256}) {
    const auto ours = [&](int c) {
      cuda::matmul(stream_,
                   {.rows = rows,
                    .x_stride = k,
                    .out_stride = n,
                    .split = {split_parts.data(), split_arrived.data()},
                    .multiprocessors = device_.multiprocessors,
                    .shared_bytes = device_.shared_bytes},
                   x.view().data, weights[static_cast<size_t>(c % copies)].view(), out.data());
    };
    const cuda::Graph graph(stream_, [&] {
      for (int c = 0; c < calls; ++c) ours(c);
    });
    const double seconds =
        measure(stream_, repetitions, 1, [&](int) { graph.launch(stream_); }).median_s / calls;
    if (rows == 1) alone = seconds;
    const double share = static_cast<double>(weight_bytes) / seconds / read_bandwidth_;
    json line{{"name", name},
              {"weights", weight_type_name(type)},
              {"n", n},
              {"k", k},
              {"rows", rows},
              {"us", seconds * 1e6},
              {"share_of_read_bandwidth", share},
              {"t_over_t1", seconds / alone}};
    if (cublas.ok()) {
      const auto peer = [&](int c) {
        (*cublas)->multiply(rows, n, k, x.view().data, weights[static_cast<size_t>(c % copies)].view().data,
                            out.data());
      };
      peer(0);  // allocates what it needs before the capture
      stream_.synchronize();
      const cuda::Graph peer_graph(stream_, [&] {
        for (int c = 0; c < calls; ++c) peer(c);
      });
      line["cublas_us"] =
          1e6 * measure(stream_, repetitions, 1, [&](int) { peer_graph.launch(stream_); }).median_s / calls;
    }
    report_["products"].push_back(line);
    if (rows == 1 || rows == 8 || rows == 16 || rows == 256)
      std::printf("  M=%-2ld %6.1f us (%.0f %%)%s", static_cast<long>(rows), seconds * 1e6, 100 * share,
                  cublas.ok() ? fmt::format(" cuBLAS {:.1f}", line["cublas_us"].get<double>()).c_str() : "");
  }
  std::printf("\n");
  if (type == WeightType::kBFloat16 && !cublas.ok()) report_["cublas"] = cublas.status().message();
}

// One sequence with a context; steps of M rows that are rolled back, as a verification that rejects all is.
void Bench::measure_steps(const std::string& name, const ModelConfig& config, WeightFormat format,
                          const std::vector<int64_t>& contexts, bool overlap) {
  for (int64_t context : contexts) {
    if (time_is_up(fmt::format("steps {} after {}", name, context))) return;
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
      report_["not_run"].push_back(name + ": " + model.status().message());
      return;
    }
    KvCache& kv = (*model)->kv();
    const KvHandle sequence = kv.create();
    std::vector<TokenId> ids;
    for (int64_t i = 0; i < context + 32; ++i)
      ids.emplace_back(static_cast<int32_t>(i * 7919 % config.vocab_size));
    const auto prefill_start = std::chrono::steady_clock::now();
    for (int64_t at = 0; at < context; at += 128) {
      const BatchSlice slice{
          sequence,
          std::span(ids).subspan(static_cast<size_t>(at),
                                 static_cast<size_t>(std::min<int64_t>(128, context - at))),
          1};
      (void)(*model)->forward({&slice, 1}).value();
    }
    const std::chrono::duration<double> prefill = std::chrono::steady_clock::now() - prefill_start;
    const int warm_ups = settings_.tiny ? 1 : 3, repetitions = settings_.tiny ? 2 : 30;
    double alone = 0;
    std::printf("%-28s", fmt::format("{} step after {}", name, context).c_str());
    for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16}) {
      const BatchSlice slice{
          sequence, std::span(ids).subspan(static_cast<size_t>(context), static_cast<size_t>(rows)), rows};
      std::vector<double> seconds;
      for (int r = -warm_ups; r < repetitions; ++r) {
        const auto start = std::chrono::steady_clock::now();
        const cuda::DeviceLogits logits = (*model)->forward_on_device({&slice, 1}).value();
        logits.stream.synchronize();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        kv.truncate(sequence, context);
        if (r >= 0) seconds.push_back(took.count());
      }
      const Timing t = summarize(std::move(seconds));
      if (rows == 1) alone = t.median_s;
      const double share = static_cast<double>((*model)->weight_bytes()) / t.median_s / read_bandwidth_;
      report_["steps"].push_back({{"model", name},
                                  {"weights", weight_format_name(format)},
                                  {"overlapping_kernels", overlap},
                                  {"context", context},
                                  {"rows", rows},
                                  {"ms", t.median_s * 1e3},
                                  {"spread", t.spread},
                                  {"share_of_read_bandwidth", share},
                                  {"t_over_t1", t.median_s / alone},
                                  {"weight_gb", static_cast<double>((*model)->weight_bytes()) * 1e-9},
                                  {"prefill_s", prefill.count()}});
      if (rows == 1 || rows == 8 || rows == 16)
        std::printf("  M=%-2ld %7.3f ms (%.0f %%, x%.3f)", static_cast<long>(rows), t.median_s * 1e3,
                    100 * share, t.median_s / alone);
    }
    std::printf("\n");
  }
}

// Drafts of 8 tokens after a context, whose tokens are drawn on the device: how long a token takes, wait and
// copies included.
void Bench::measure_drafts(const std::string& name, const ModelConfig& config, WeightFormat format) {
  if (time_is_up("drafts " + name)) return;
  constexpr int64_t kContext = 128;
  constexpr int32_t kTokens = 8;
  const auto single = make_single_collectives();
  const ModelOptions options{.device = {.kind = Device::Kind::kCuda},
                             .max_positions = kContext + kTokens,
                             .run_sequences = 1,
                             .weight_format = format};
  auto model = cuda::CudaModel::of_noise(config, options, *single);
  if (!model.ok()) return report_["not_run"].push_back(name + ": " + model.status().message());
  const auto runner = (*model)->make_runner(config.vocab_size);
  const std::vector<TokenId> text(kContext, TokenId(1));
  const KvHandle sequence = (*model)->kv().create();
  const BatchSlice prefill{sequence, std::span(text).first(kContext - 1), 1};
  (void)(*model)->forward({&prefill, 1}).value();
  std::printf("%-28s", (name + " drafts").c_str());
  const auto compact = static_cast<int32_t>(config.vocab_size / 50);  // the default
  for (const auto& [title, rule, row_bytes] : {std::tuple{"greedy", Rule::kGreedy, 0},
                                               {"invariant", Rule::kInvariant, 0},
                                               {"dense q", Rule::kToken, 0},
                                               {"compact q", Rule::kToken, compact}}) {
    const SamplingParams params{.rule = rule, .temperature = rule == Rule::kGreedy ? 0.0f : 1.0f};
    const TokenRun run{.sequence = sequence,
                       .inputs = std::span(text).last(1),
                       .first = {.sampling = &params, .position = Position(kContext), .row_bytes = row_bytes},
                       .count = kTokens};
    if (!runner->takes({&run, 1})) continue;  // the vocabulary is too small for compact rows
    std::vector<double> seconds;
    for (int r = -2; r < (settings_.tiny ? 1 : 30); ++r) {
      const auto start = std::chrono::steady_clock::now();
      CHECK(runner->run({&run, 1}, false).ok() && !runner->failed(0), "a draft failed");
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      (*model)->kv().truncate(sequence, kContext - 1);
      if (r >= 0) seconds.push_back(took.count());
    }
    const Timing t = summarize(std::move(seconds));
    report_["drafts"].push_back({{"model", name},
                                 {"kind", title},
                                 {"tokens", kTokens},
                                 {"ms_per_token", t.median_s * 1e3 / kTokens},
                                 {"spread", t.spread}});
    std::printf("  %s %.3f ms/token", title, t.median_s * 1e3 / kTokens);
  }
  std::printf("\n");
}

void Bench::write() const {
  if (!settings_.json_file.empty()) std::ofstream(settings_.json_file) << report_.dump(1) << "\n";
}

ModelConfig shape(int64_t hidden, int64_t layers, int64_t heads, int64_t head_dim, int64_t intermediate,
                  bool tied) {
  return {.hidden_size = hidden,
          .num_layers = layers,
          .num_heads = heads,
          .num_kv_heads = 8,
          .head_dim = head_dim,
          .intermediate_size = intermediate,
          .vocab_size = 128256,
          .max_position_embeddings = 8192,
          .rms_norm_eps = 1e-5,
          .rope_theta = 500000,
          .tie_word_embeddings = tied};
}

int Bench::run() {
  cuda::use_device(0);
  report_["device"] = {{"name", device_.name},
                       {"arch", device_.arch()},
                       {"multiprocessors", device_.multiprocessors},
                       {"memory_gb", static_cast<double>(device_.total_bytes) * 1e-9},
                       {"versions", cuda::version_text()}};
  std::printf("%s, %s; %% are of the read bandwidth, x is t(M)/t(1)\n", device_.name.c_str(),
              cuda::version_text().c_str());
  measure_bandwidth();
  measure_launches();
  write();
  if (settings_.tiny) {
    ModelConfig tiny = shape(64, 2, 8, 8, 96, true);
    tiny.vocab_size = 128;
    for (const auto& [type, format] : kFormats) {
      measure_products(fmt::format("tiny {}", weight_format_name(format)), 96, 64, type);
      measure_steps(fmt::format("tiny {}", weight_format_name(format)), tiny, format, {20});
      measure_drafts(fmt::format("tiny {}", weight_format_name(format)), tiny, format);
    }
    write();
    return 0;
  }
  const std::map<std::string, ModelConfig> models{{"1B", shape(2048, 16, 32, 64, 8192, true)},
                                                  {"3B", shape(3072, 28, 24, 128, 8192, true)},
                                                  {"8B", shape(4096, 32, 32, 128, 14336, false)}};
  for (const auto& [type, format] : kFormats) {
    for (const char* name : {"1B", "8B"}) {
      const ModelConfig& c = models.at(name);
      const std::string title = fmt::format("{} {} ", name, weight_format_name(format));
      measure_products(title + "qkv", c.q_size() + 2 * c.kv_size(), c.hidden_size, type);
      measure_products(title + "o", c.hidden_size, c.q_size(), type);
      measure_products(title + "gate_up", 2 * c.intermediate_size, c.hidden_size, type);
      measure_products(title + "down", c.hidden_size, c.intermediate_size, type);
      measure_products(title + "head", c.vocab_size, c.hidden_size, type);
      write();
    }
    const bool stored = format == WeightFormat::kBFloat16;
    for (const auto& [name, config] : models) {
      measure_steps(fmt::format("{} {}", name, weight_format_name(format)), config, format,
                    stored ? std::vector<int64_t>{128, 2048} : std::vector<int64_t>{128});
      if (stored) measure_steps(name + " in turn", config, format, {128}, false);
      if (name == "1B") measure_drafts(fmt::format("1B {}", weight_format_name(format)), config, format);
      write();
    }
  }
  return 0;
}

int main_of(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--tiny")
      settings.tiny = true;
    else if (flag == "--json" && i + 1 < argc)
      settings.json_file = argv[++i];
    else if (flag == "--seconds" && i + 1 < argc)
      settings.seconds = std::atof(argv[++i]);
    else {
      std::fprintf(stderr, "gpu_bench: %s? usage: gpu_bench [--json FILE] [--seconds N] [--tiny]\n",
                   flag.c_str());
      return 2;
    }
  }
  const auto count = cuda_device_count();
  if (!count.ok()) {
    std::printf("%s\n", count.status().message().c_str());
    return kExitNoGpu;
  }
  return Bench(settings).run();
}

}  // namespace
}  // namespace outrider::gpu

int main(int argc, char** argv) {
  try {
    return outrider::gpu::main_of(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 3;
  }
}
