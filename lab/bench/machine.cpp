#include "lab/bench/machine.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/statistics.h"
#include "base/threads.h"

// One source, compiled for the widest loads the machine has.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define WIDEST_LOADS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST_LOADS
#endif

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kBufferBytes = int64_t{512} << 20;
constexpr int kPasses = 8;

using Lanes = uint64_t __attribute__((vector_size(64)));

// Far enough ahead to hide latency. Plain loads read 12 to 18 % less (Xeon, virtual machine, 1 and 2
// threads): hardware stops prefetching where a page ends, and kernels that ask for lines themselves would
// seem to read more than there is.
constexpr int64_t kPrefetchWords = 2048 / sizeof(uint64_t);

// Four streams of additions, so that no load waits for another's sum.
WIDEST_LOADS uint64_t read_all(const uint64_t* words, int64_t count) {
  Lanes sum[4] = {};
  constexpr int64_t kStep = 4 * sizeof(Lanes) / sizeof(uint64_t);
  for (int64_t i = 0; i + kStep <= count; i += kStep)
    for (int64_t j = 0; j < 4; ++j) {
      Lanes lanes;
      __builtin_prefetch(words + i + 8 * j + kPrefetchWords);
      std::memcpy(&lanes, words + i + 8 * j, sizeof lanes);
      sum[j] += lanes;
    }
  const Lanes all = sum[0] + sum[1] + sum[2] + sum[3];
  uint64_t result = 0;
  for (int j = 0; j < 8; ++j) result += all[j];
  return result;
}

}  // namespace

double ReadProbe::measure() {
  const bool fresh = buffer_.size() == 0;
  if (fresh) buffer_ = Buffer<uint64_t>(kBufferBytes / static_cast<int64_t>(sizeof(uint64_t)));
  std::vector<double> seconds(kPasses);
  Clock::time_point begin;
  std::barrier together(threads_);
  std::vector<uint64_t> sums(
      static_cast<size_t>(threads_));  // read, so that the loads are not optimised away
  const auto work = [&](int thread) {
    const int64_t first = buffer_.size() * thread / threads_, last = buffer_.size() * (thread + 1) / threads_;
    if (fresh) std::fill(buffer_.data() + first, buffer_.data() + last, 1);
    for (int pass = 0; pass < kPasses; ++pass) {
      together.arrive_and_wait();
      if (thread == 0) begin = Clock::now();
      sums[static_cast<size_t>(thread)] += read_all(buffer_.data() + first, last - first);
      together.arrive_and_wait();
      if (thread == 0)
        seconds[static_cast<size_t>(pass)] = std::chrono::duration<double>(Clock::now() - begin).count();
    }
  };
  run_on_threads(threads_, work);
  volatile uint64_t keep = sums.front();
  (void)keep;
  return static_cast<double>(kBufferBytes) / median(std::move(seconds));
}

LoadWatch::LoadWatch() : begin_(now()) {}

// proc(5), /proc/stat: user nice system idle iowait irq softirq steal, in ticks; guests are in user already.
LoadWatch::Moment LoadWatch::now() {
  Moment moment{.at = Clock::now()};
  getloadavg(&moment.load, 1);
  std::ifstream file("/proc/stat");
  std::string cpu;
  double ticks[8] = {};
  file >> cpu;
  for (double& count : ticks) file >> count;
  const double tick_s = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  if (file) {
    moment.busy_s = (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]) * tick_s;
    moment.steal_s = ticks[7] * tick_s;
    moment.all_s = moment.busy_s + moment.steal_s + (ticks[3] + ticks[4]) * tick_s;
  }
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(who, &usage);
    for (const timeval& time : {usage.ru_utime, usage.ru_stime})
      moment.own_s += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  }
  return moment;
}

CpuLoad LoadWatch::load() const {
  const Moment end = now();
  CpuLoad load{.load_before = begin_.load, .load_after = end.load};
  const double wall = std::chrono::duration<double>(end.at - begin_.at).count();
  const double others = end.busy_s - begin_.busy_s - (end.own_s - begin_.own_s);
  if (wall > 0 && end.busy_s > 0) load.other_cores = std::max(0.0, others / wall);
  if (end.all_s > begin_.all_s)
    load.steal_share = (end.steal_s - begin_.steal_s) / (end.all_s - begin_.all_s);
  return load;
}

nlohmann::json cpu_load_json(const CpuLoad& load) {
  return {{"load_before", load.load_before},
          {"load_after", load.load_after},
          {"other_cores", load.other_cores},
          {"steal_share", load.steal_share}};
}

int64_t peak_memory_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    long kilobytes = 0;
    if (std::sscanf(line.c_str(), "VmHWM: %ld kB", &kilobytes) == 1) return int64_t{kilobytes} * 1024;
  }
  return 0;
}

void reset_peak_memory() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace outrider
