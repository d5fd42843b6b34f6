// Collectives of a target group, as one forward pass and one verification use them. Ranks are threads, or
// processes when started by mpirun:
//   collectives_bench                    threads, 2 and 4 ranks
//   mpirun -n 2 collectives_bench        processes
//   sum_floats/RANKS/N   partial results of N floats (9 rows of hidden 2048: 18432)
//   sum_integers, gather_bytes  what verification reduces;  barrier
// The time is rank 0's for one operation. Correctness first: sums have an exact expected value.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "comm/collectives.h"
#ifdef OUTRIDER_BENCH_MPI
#include "comm/mpi.h"
#include "comm/mpi_collectives.h"
#endif

namespace outrider::bench {
namespace {

using Operation = std::function<void(Collectives&, int64_t n)>;

struct Buffers {
  std::vector<float> floats;
  std::vector<uint64_t> integers;
  std::vector<std::byte> bytes, all;
};

// Each rank has its own buffers, planned before anything is timed.
Buffers& buffers(int64_t n, int ranks) {
  thread_local Buffers b;
  b.floats.resize(static_cast<size_t>(n));
  b.integers.resize(static_cast<size_t>(n));
  b.bytes.resize(static_cast<size_t>(n));
  b.all.resize(static_cast<size_t>(n * ranks));
  return b;
}

const std::pair<const char*, Operation> kOperations[] = {
    {"sum_floats",
     [](Collectives& c, int64_t n) { c.all_reduce_sum(std::span(buffers(n, c.size()).floats)); }},
    {"sum_integers",
     [](Collectives& c, int64_t n) { c.all_reduce_sum(std::span(buffers(n, c.size()).integers)); }},
    {"gather_bytes",
     [](Collectives& c, int64_t n) {
       Buffers& b = buffers(n, c.size());
       c.all_gather(b.bytes, b.all);
     }},
    {"barrier", [](Collectives& c, int64_t) { c.barrier(); }},
};

void check_sums(Collectives& group) {
  std::vector<float> floats(100);
  std::iota(floats.begin(), floats.end(), static_cast<float>(group.rank()));
  group.all_reduce_sum(std::span(floats));
  const int ranks = group.size();
  for (int i = 0; i < 100; ++i)
    CHECK(floats[static_cast<size_t>(i)] == static_cast<float>(ranks * i + ranks * (ranks - 1) / 2),
          "element {} is {}", i, floats[static_cast<size_t>(i)]);
}

// Rank 0 times; the other ranks take part until it says stop. One flag is broadcast before each batch of
// operations, so that it costs nothing worth mentioning.
constexpr int kBatch = 64;

void follow(Collectives& group, const Operation& operation, int64_t n) {
  check_sums(group);
  while (true) {
    std::byte go{};
    group.broadcast(std::span(&go, 1), 0);
    if (go == std::byte{0}) return;
    for (int i = 0; i < kBatch; ++i) operation(group, n);
  }
}

void lead(benchmark::State& state, Collectives& group, const Operation& operation, int64_t n) {
  check_sums(group);
  std::byte go{1};
  while (state.KeepRunningBatch(kBatch)) {
    group.broadcast(std::span(&go, 1), 0);
    for (int i = 0; i < kBatch; ++i) operation(group, n);
  }
  go = std::byte{0};
  group.broadcast(std::span(&go, 1), 0);
}

void BM_Threads(benchmark::State& state, const Operation& operation) {
  const auto ranks = static_cast<int>(state.range(0));
  auto group = make_thread_collectives(ranks);
  std::vector<std::jthread> others;
  for (int r = 1; r < ranks; ++r)
    others.emplace_back([&, r] { follow(*group[static_cast<size_t>(r)], operation, state.range(1)); });
  lead(state, *group[0], operation, state.range(1));
}

std::vector<int64_t> sizes_of(const std::string& operation) {
  if (operation == "barrier") return {0};
  if (operation == "sum_floats") return {2048, 18432};
  return {16, 1024};
}

void register_threads() {
  for (const auto& [name, operation] : kOperations)
    benchmark::RegisterBenchmark((std::string("threads/") + name).c_str(),
                                 [op = operation](benchmark::State& s) { BM_Threads(s, op); })
        ->ArgNames({"ranks", "n"})
        ->ArgsProduct({{2, 4}, sizes_of(name)})
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
}

#ifdef OUTRIDER_BENCH_MPI
// Every rank walks the same list; rank 0 decides how often each operation runs (Google Benchmark may call a
// benchmark several times to find that out), the others learn it by messages.
void run_mpi(const MpiComm& world) {
  const auto group = make_mpi_collectives(world.duplicate(), choose_waiting(world));
  std::vector<std::byte> message;
  const auto index_of = [](const std::vector<std::byte>& m) { return static_cast<size_t>(m[0]); };
  std::vector<std::pair<Operation, int64_t>> cases;
  for (const auto& [name, operation] : kOperations)
    for (const int64_t n : sizes_of(name)) {
      const auto index = static_cast<std::byte>(cases.size());
      cases.emplace_back(operation, n);
      benchmark::RegisterBenchmark((std::string("mpi/") + name + "/" + std::to_string(n)).c_str(),
                                   [&group, index, op = operation, n](benchmark::State& state) {
                                     std::vector<std::byte> start{index};
                                     group->broadcast_message(start, 0, 1);
                                     lead(state, *group, op, n);
                                   })
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  if (group->rank() == 0) {
    std::printf("ranks: %d\n", group->size());
    benchmark::RunSpecifiedBenchmarks();
    message = {std::byte{255}};
    group->broadcast_message(message, 0, 1);
    return;
  }
  while (true) {
    group->broadcast_message(message, 0, 1);
    if (index_of(message) == 255) return;
    follow(*group, cases[index_of(message)].first, cases[index_of(message)].second);
  }
}
#endif

}  // namespace
}  // namespace outrider::bench

int main(int argc, char** argv) {
  using namespace outrider;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
#ifdef OUTRIDER_BENCH_MPI
  if (MpiSession::launched_size().value_or(1) > 1) {
    const MpiSession session;
    bench::run_mpi(session.world());
    return 0;
  }
#endif
  bench::register_threads();
  benchmark::RunSpecifiedBenchmarks();
}
