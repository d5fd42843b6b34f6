// Matrix products for 1 to 512 rows, beside cuBLAS and the times that are expected.
#include <cstdio>

#include "model/cuda/model.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/cublas.h"
#include "tests/gpu/measure.h"

namespace outrider::gpu {
namespace {

// Seconds of one call, where a graph holds many; `work` is given the call's number.
double seconds_in_graph(const Bench& bench, int calls, const std::function<void(int)>& work) {
  const cuda::Graph graph(bench.stream, [&] {
    for (int c = 0; c < calls; ++c) work(c);
  });
  const int repetitions = bench.settings.tiny ? 2 : 15;
  return measure(bench.stream, repetitions, 1, [&](int) { graph.launch(bench.stream); }).median_s / calls;
}

// Copies of the weights that together exceed the L2 cache several times take turns: every read is from
// memory. `form`: of kCodes.
void measure_products_of(Bench& bench, const std::string& name, int64_t n, int64_t k, WeightType type,
                         const cuda::CodeForm* form) {
  if (bench.time_is_up("product " + name)) return;
  const cuda::Slices slices = cuda::even_slices(k, cuda::step_columns(type));
  const int64_t weight_bytes = form ? cuda::DeviceMatrix::bytes_for(*form, n, slices, false)
                                    : cuda::DeviceMatrix::bytes_for(type, n, slices);
  const int copies = bench.settings.tiny
                         ? 2
                         : static_cast<int>(std::clamp<int64_t>((int64_t{512} << 20) / weight_bytes, 2, 64));
  const int calls = bench.settings.tiny ? 2 : std::max(copies, 8);
  constexpr int64_t kMostRows = 512;
  std::vector<cuda::DeviceMatrix> weights;
  for (int c = 0; c < copies; ++c) {
    weights.push_back(form ? cuda::DeviceMatrix(*form, n, slices, {}, bench.stream)
                           : cuda::DeviceMatrix(type, n, slices));
    cuda::fill_noise(bench.stream, weights.back().view(), static_cast<uint64_t>(c) + 1, 0.02f);
  }
  const cuda::DeviceBuffer<float> split_parts(cuda::split_floats(cuda::kSplitRows, n));
  const cuda::DeviceBuffer<uint32_t> split_arrived(cuda::kSplitCounters);
  cuda::DeviceMatrix x(WeightType::kBFloat16, kMostRows, cuda::even_slices(k));  // any bf16 noise
  cuda::fill_noise(bench.stream, x.view(), 99, 1.0f);
  const cuda::DeviceBuffer<float> out(kMostRows * n);
  cuda::prepare_matmul(bench.device.shared_bytes);
  auto cublas = type == WeightType::kBFloat16 ? Cublas::load(bench.stream)
                                              : Result<std::unique_ptr<Cublas>>(unsupported("bf16 only"));
  double alone = 0;
  std::printf("%-28s", fmt::format("{} [{}, {}]", name, n, k).c_str());
  for (int64_t rows : {1, 2, 4, 8, 9, 12, 16, 17, 32, 64, 128, 256, 512}) {
    const auto multiply = [&](int c) {
      cuda::matmul(bench.stream,
                   {.rows = rows,
                    .x_stride = k,
                    .out_stride = n,
                    .split = {split_parts.data(), split_arrived.data(), split_parts.size()},
                    .multiprocessors = bench.device.multiprocessors,
                    .shared_bytes = bench.device.shared_bytes},
                   x.view().data, weights[static_cast<size_t>(c % copies)].view(), out.data());
    };
    const double seconds = seconds_in_graph(bench, calls, multiply);
    const ExpectedProduct expected = form ? expected_product(bench.rates, *form, rows, n, k)
                                          : expected_product(bench.rates, type, rows, n, k);
    if (rows == 1) alone = seconds;
    const double share = static_cast<double>(weight_bytes) / seconds / bench.read_bandwidth;
    nlohmann::json line{{"name", name},
                        {"weights", weight_type_name(type)},
                        {"n", n},
                        {"k", k},
                        {"rows", rows},
                        {"us", seconds * 1e6},
                        {"tflops", 2e-12 * static_cast<double>(rows * n * k) / seconds},
                        {"form", expected.form},
                        {"bound", expected.bound},
                        {"share_of_read_bandwidth", share},
                        {"t_over_t1", seconds / alone}};
    if (cublas.ok()) {
      const auto peer = [&](int c) {
        (*cublas)->multiply(rows, n, k, x.view().data, weights[static_cast<size_t>(c % copies)].view().data,
                            out.data());
      };
      peer(0);  // allocates what it needs before the capture
      bench.stream.synchronize();
      line["cublas_us"] = 1e6 * seconds_in_graph(bench, calls, peer);
    }
    const std::string off = bench.compare(line, seconds, expected.seconds);
    bench.report["products"].push_back(line);
    if (rows == 1 || rows == 8 || rows == 16 || rows == 17 || rows == 64 || rows == 512 || !off.empty())
      std::printf("  M=%-2ld %6.1f us (%.0f %%)%s%s", static_cast<long>(rows), seconds * 1e6, 100 * share,
                  cublas.ok() ? fmt::format(" cuBLAS {:.1f}", line["cublas_us"].get<double>()).c_str() : "",
                  off.c_str());
  }
  std::printf("\n");
  if (type == WeightType::kBFloat16 && !cublas.ok()) bench.report["cublas"] = cublas.status().message();
}

}  // namespace

void measure_products(Bench& bench, const std::string& name, int64_t n, int64_t k, WeightType type) {
  measure_products_of(bench, name, n, k, type, nullptr);
}

void measure_products(Bench& bench, const std::string& name, int64_t n, int64_t k,
                      const cuda::CodeForm& form) {
  measure_products_of(bench, name, n, k, WeightType::kCodes, &form);
}

}  // namespace outrider::gpu
