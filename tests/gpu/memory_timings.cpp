// Memory bandwidth, and the launch cost of an almost empty kernel.
#include <cstdio>

#include "model/cuda/model.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/measure.h"
#include "tests/gpu/read_bandwidth.h"

namespace outrider::gpu {

void measure_bandwidth(Bench& bench) {
  const int64_t bytes = bench.settings.tiny ? int64_t{1} << 20 : int64_t{4} << 30;
  const cuda::DeviceBuffer<std::byte> from(bytes), to(bytes);
  const cuda::DeviceBuffer<float> sink(1);
  const Timing copied = measure(bench.stream, 10, 1, [&](int) {
    cuda::copy_bytes(to.data(), from.data(), from.bytes(), bench.stream);
  });
  const Timing read = measure(bench.stream, 10, 1, [&](int) {
    read_all(bench.stream, from.data(), bytes, bench.device.multiprocessors, sink.data());
  });
  bench.read_bandwidth = static_cast<double>(bytes) / read.median_s;
  bench.report["bandwidth"] = {{"copy_gb_per_s", 2e-9 * static_cast<double>(bytes) / copied.median_s},
                               {"read_gb_per_s", 1e-9 * bench.read_bandwidth}};
  std::printf("copy %.0f GB/s (read + written), read %.0f GB/s\n",
              2e-9 * static_cast<double>(bytes) / copied.median_s, 1e-9 * bench.read_bandwidth);
}

// Measures the launch cost of an almost empty kernel in a graph of many kernels, without and with overlap.
void measure_launches(Bench& bench) {
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
        1e6 * measure(stream, bench.settings.tiny ? 2 : 20, 1, [&](int) { graph.launch(stream); }).median_s /
        kKernels;
    bench.report["kernel_us"][name] = us;
    std::printf("  %s %.2f us", name, us);
  }
  std::printf("\n");
}

}  // namespace outrider::gpu
