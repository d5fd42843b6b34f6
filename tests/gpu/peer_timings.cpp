// Sums over two ranks that are threads and share the device: the bytes that a block of a peer operation
// moves, and the time that two ranks take to meet. Between devices the link is slower.
#include <cstdio>
#include <thread>

#include "comm/device_group.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/measure.h"

namespace outrider::gpu {

void measure_peer_sums(Bench& bench) {
  if (bench.time_is_up("sums over ranks")) return;
  constexpr int kRanks = 2;
  const int calls = bench.settings.tiny ? 2 : 20, repetitions = bench.settings.tiny ? 2 : 15;
  std::printf("%-28s", "sums over 2 ranks");
  for (const int64_t bytes : {int64_t{16} << 10, int64_t{1} << 20}) {
    const auto hosts = make_thread_collectives(kRanks);
    std::string refusal[kRanks];
    double seconds[kRanks] = {};
    const auto sum = [&](int rank) {
      cuda::use_device(0);
      Collectives& host = *hosts[static_cast<size_t>(rank)];
      const auto group = cuda::make_peer_group(host);
      if (!group.ok()) {
        refusal[rank] = group.status().message();
        return;
      }
      const cuda::Stream stream;
      const cuda::DeviceBuffer<float> values(bytes / 4);
      const auto add = [&] {
        for (int i = 0; i < calls; ++i)
          (*group)->all_reduce(cuda::Reduction::kTreeSum, values.data(), values.size(), stream);
      };
      host.barrier();  // all allocations are done before a kernel waits for a peer
      add();           // a first launch may load code
      (*group)->wait(stream);
      const cuda::Graph graph(stream, add);
      host.barrier();
      seconds[rank] = measure(stream, repetitions, 1, [&](int) { graph.launch(stream); }).median_s / calls;
      host.barrier();
    };
    {
      std::jthread other(sum, 1);
      sum(0);
    }
    if (!refusal[0].empty()) {
      std::printf("  not run: %s", refusal[0].c_str());
      bench.report["not_run"].push_back("sums over ranks: " + refusal[0]);
      break;
    }
    nlohmann::json line{{"ranks", kRanks}, {"bytes", bytes}, {"us", seconds[0] * 1e6}};
    const std::string off =
        bench.compare(line, seconds[0], expected_peer_sum(bench.rates, bytes, kRanks, PeerPlace::kOneDevice));
    bench.report["peer_sums"].push_back(line);
    std::printf("  %ld KB %.1f us%s", static_cast<long>(bytes >> 10), seconds[0] * 1e6, off.c_str());
  }
  std::printf("\n");
}

}  // namespace outrider::gpu
