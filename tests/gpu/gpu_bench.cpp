// Timings of one GPU: memory bandwidth, matrix products of 1B and 8B shapes for 1 to 512 rows beside cuBLAS,
// small kernels, those of latent attention, and whole decode steps of 1B, 3B and 8B shapes with noise for
// weights, in bf16, int8, fp8 and int4; products in fp16 and published formats. One table on standard output,
// one JSON file. Beside what was measured stands what was expected (expected_times.h); what is off by more
// than a factor of 1.5 is said, and listed in the file as `off`.
//   gpu_bench [--json FILE] [--seconds N] [--only REGEX] [--tiny]
// --only: the bandwidth, and the parts whose name it matches ("8B int4", "steps", "drafts").
// Exit codes: 0, 3 where something failed (the rest is measured all the same), or 77 and the reason where
// there is no GPU. --tiny: shapes that the emulation can run.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>

#include "tests/gpu/bench.h"
#include "tests/gpu/published_schemes.h"

namespace outrider::gpu {

bool Bench::time_is_up(const std::string& what) {
  const std::chrono::duration<double> used = std::chrono::steady_clock::now() - start;
  if (used.count() < settings.seconds) return false;
  std::printf("%-28s not run: the time of --seconds is used up\n", what.c_str());
  report["not_run"].push_back(what);
  return true;
}

void Bench::attempt(const std::string& what, const std::function<void()>& part) {
  if (!std::regex_search(what, std::regex(settings.only))) return;
  try {
    part();
  } catch (const std::exception& error) {
    std::printf("\n%-28s failed: %s\n", what.c_str(), error.what());
    report["failed"].push_back(what + ": " + error.what());
  }
}

std::string Bench::compare(nlohmann::json& line, double measured_s, double expected_s) {
  const std::string verdict = judge(measured_s, expected_s);
  line["expected_us"] = expected_s * 1e6;
  line["verdict"] = verdict;
  // Times of tiny shapes on the emulation mean nothing.
  if (settings.tiny || verdict == "as expected") return "";
  report["off"].push_back(line);
  return " (" + verdict + ")";
}

void Bench::write() const {
  if (!settings.json_file.empty()) std::ofstream(settings.json_file) << report.dump(1) << "\n";
}

namespace {

constexpr int kExitNoGpu = 77, kExitFailed = 3;

constexpr std::pair<WeightType, WeightFormat> kFormats[]{{WeightType::kBFloat16, WeightFormat::kBFloat16},
                                                         {WeightType::kInt8, WeightFormat::kInt8},
                                                         {WeightType::kFloat8, WeightFormat::kFloat8},
                                                         {WeightType::kInt4, WeightFormat::kInt4}};

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
          .rope = {.theta = 500000},
          .tie_word_embeddings = tied};
}

// Formats of published checkpoints, with the usual group sizes.
void measure_published(Bench& bench, const std::string& matrix, int64_t n, int64_t k) {
  const std::string halves = "fp16 " + matrix;
  bench.attempt(halves, [&] { measure_products(bench, halves, n, k, WeightType::kFloat16); });
  for (const auto& [name, scheme] : kPublished) {
    const std::string title = fmt::format("{} {}", name, matrix);
    bench.attempt(title,
                  [&] { measure_products(bench, title, n, k, cuda::code_form(scheme, k, false).value()); });
  }
}

// The share of DeepSeek-V3 that one of eight ranks holds.
ModelConfig latent_shape(int64_t hidden, int64_t heads, const LatentConfig& latent) {
  return {.hidden_size = hidden,
          .num_heads = heads,
          .num_kv_heads = 1,
          .head_dim = latent.kv_rank + latent.rope_dim,
          .latent = latent};
}

int finish(const Bench& bench) {
  bench.write();
  return bench.report.contains("failed") ? kExitFailed : 0;
}

int run(Bench& bench) {
  cuda::use_device(0);
  bench.report["device"] = {{"name", bench.device.name},
                            {"arch", bench.device.arch()},
                            {"multiprocessors", bench.device.multiprocessors},
                            {"memory_gb", static_cast<double>(bench.device.total_bytes) * 1e-9},
                            {"versions", cuda::version_text()}};
  std::printf("%s, %s; %% are of the read bandwidth, x is t(M)/t(1), expected are times of %s\n",
              bench.device.name.c_str(), cuda::version_text().c_str(), bench.rates.of.c_str());
  bench.report["expected_of"] = bench.rates.of;
  measure_bandwidth(bench);
  bench.attempt("kernel in a graph", [&] { measure_launches(bench); });
  bench.attempt("sums over ranks", [&] { measure_peer_sums(bench); });
  bench.write();
  if (bench.settings.tiny) {
    ModelConfig tiny = shape(64, 2, 8, 8, 96, true);
    tiny.vocab_size = 128;
    for (const auto& [type, format] : kFormats) {
      const std::string title = fmt::format("tiny {}", weight_format_name(format));
      bench.attempt(title, [&] {
        measure_products(bench, title, 96, 64, type);
        if (type == WeightType::kBFloat16) measure_small_kernels(bench, title, tiny);
        measure_steps(bench, title, tiny, format, {20});
        measure_drafts(bench, title, tiny, format);
      });
    }
    measure_published(bench, "tiny", 96, 128);
    bench.attempt("tiny latents", [&] {
      measure_latent_kernels(
          bench, "tiny latents",
          latent_shape(64, 4, {.q_rank = 24, .kv_rank = 40, .nope_dim = 16, .rope_dim = 8, .value_dim = 12}));
    });
    bench.attempt("tiny delta net", [&] {
      measure_delta_kernels(bench, "tiny delta net",
                            {.key_heads = 1, .value_heads = 2, .key_dim = 16, .value_dim = 40, .taps = 4});
    });
    return finish(bench);
  }
  const std::map<std::string, ModelConfig> models{{"1B", shape(2048, 16, 32, 64, 8192, true)},
                                                  {"3B", shape(3072, 28, 24, 128, 8192, true)},
                                                  {"8B", shape(4096, 32, 32, 128, 14336, false)}};
  bench.attempt("DeepSeek-V3 kernels", [&] {
    measure_latent_kernels(
        bench, "DeepSeek-V3, 1 of 8",
        latent_shape(7168, 16,
                     {.q_rank = 1536, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128}));
  });
  bench.attempt("Qwen3-Next kernels", [&] {
    measure_delta_kernels(bench, "Qwen3-Next delta net",
                          {.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .taps = 4});
  });
  for (const auto& [type, format] : kFormats) {
    for (const char* name : {"1B", "8B"}) {
      const ModelConfig& c = models.at(name);
      const auto product = [&](const char* matrix, int64_t n, int64_t k) {
        const std::string title = fmt::format("{} {} {}", name, weight_format_name(format), matrix);
        bench.attempt(title, [&] { measure_products(bench, title, n, k, type); });
      };
      product("qkv", c.q_size() + 2 * c.kv_size(), c.hidden_size);
      product("o", c.hidden_size, c.q_size());
      product("gate_up", 2 * c.intermediate_size, c.hidden_size);
      product("down", c.hidden_size, c.intermediate_size);
      product("head", c.vocab_size, c.hidden_size);
      if (type == WeightType::kBFloat16)
        bench.attempt(fmt::format("{} kernels", name), [&] { measure_small_kernels(bench, name, c); });
      bench.write();
    }
    const bool stored = format == WeightFormat::kBFloat16;
    for (const auto& [name, config] : models) {
      const std::string title = fmt::format("{} {}", name, weight_format_name(format));
      const auto steps = [&](const std::string& what, const std::vector<int64_t>& contexts, bool overlap) {
        bench.attempt(what + " steps",
                      [&] { measure_steps(bench, what, config, format, contexts, overlap); });
      };
      steps(title, stored ? std::vector<int64_t>{128, 2048} : std::vector<int64_t>{128}, true);
      if (stored) steps(name + " in turn", {128}, false);
      if (name == "1B")
        bench.attempt(title + " drafts", [&] { measure_drafts(bench, title, config, format); });
      bench.write();
    }
  }
  const ModelConfig& c = models.at("8B");
  measure_published(bench, "8B gate_up", 2 * c.intermediate_size, c.hidden_size);
  measure_published(bench, "8B down", c.hidden_size, c.intermediate_size);
  // More columns than 16 rows have room for in shared memory.
  const std::string title = "70B bf16 gate_up, 1 of 4";
  bench.attempt(title, [&] { measure_products(bench, title, 14336, 8192, WeightType::kBFloat16); });
  return finish(bench);
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
    else if (flag == "--only" && i + 1 < argc)
      settings.only = argv[++i];
    else {
      std::fprintf(stderr,
                   "gpu_bench: %s? usage: gpu_bench [--json FILE] [--seconds N] [--only REGEX] [--tiny]\n",
                   flag.c_str());
      return 2;
    }
  }
  const auto count = cuda_device_count();
  if (!count.ok()) {
    std::printf("%s\n", count.status().message().c_str());
    return kExitNoGpu;
  }
  Bench bench{.settings = settings, .report = {}};
  return run(bench);
}

}  // namespace
}  // namespace outrider::gpu

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what a time limit ends has shown its lines
  try {
    return outrider::gpu::main_of(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return outrider::gpu::kExitFailed;
  }
}
