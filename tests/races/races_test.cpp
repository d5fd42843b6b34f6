// The race checker finds what is planted here, one of each kind, and nothing in the corrected twins.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/cuda_device.h"
#include "base/cuda_flags.h"
#include "base/cuda_peer.h"
#include "tests/emulation/races.h"

namespace outrider::cuda {
namespace {

using emulation::races::take_reports;

constexpr unsigned kThreads = 64;
constexpr LaunchShape kBlock{.threads = kThreads, .shared_bytes = kThreads * sizeof(uint32_t)};

LaunchShape early(LaunchShape shape) {
  shape.early = true;
  return shape;
}

// Runs `work` on a stream and words of device memory; what was found in it.
template <class Work>
std::vector<std::string> found_in(Work work) {
  const Stream stream;
  const DeviceBuffer<uint32_t> words(1024);
  work(stream, words.data());
  stream.synchronize();
  return take_reports();
}

// One report that has all these words.
testing::AssertionResult is_one(const std::vector<std::string>& reports,
                                const std::vector<std::string>& words) {
  for (const std::string& report : reports)
    for (const std::string& word : words)
      if (report.find(word) == std::string::npos)
        return testing::AssertionFailure() << word << " is not in " << report;
  if (reports.size() == 1) return testing::AssertionSuccess();
  return testing::AssertionFailure() << reports.size() << " reports";
}

enum class Barrier { kNone, kShuffle, kWarpMeets, kBlockMeets };

// Every thread writes a word of shared memory and reads its neighbour's, `distance` away.
template <Barrier kMeets>
void read_neighbour(uint32_t* out, unsigned distance) {
  auto* words = shared_memory<uint32_t>();
  words[threadIdx.x] = threadIdx.x;
  if (kMeets == Barrier::kShuffle) of_first_lane(0);
  if (kMeets == Barrier::kWarpMeets) sync_warp();
  if (kMeets == Barrier::kBlockMeets) sync_block();
  out[threadIdx.x] = words[threadIdx.x ^ distance];
}

template <Barrier kMeets>
std::vector<std::string> read_neighbours(unsigned distance) {
  return found_in(
      [&](StreamView s, uint32_t* w) { launch(s, kBlock, &read_neighbour<kMeets>, w, distance); });
}

TEST(Races, MissingBarrierOfTheBlock) {
  EXPECT_TRUE(is_one(read_neighbours<Barrier::kWarpMeets>(32),
                     {"shared memory at races_test.cpp:", "by read_neighbour<", "block 0, thread",
                      "nothing orders it after"}));
  EXPECT_EQ(read_neighbours<Barrier::kBlockMeets>(32).size(), 0);
}

TEST(Races, MissingBarrierOfTheWarp) {
  EXPECT_GT(read_neighbours<Barrier::kNone>(1).size(), 0);
  EXPECT_GT(read_neighbours<Barrier::kShuffle>(1).size(), 0);  // exchanges values, orders no memory
  EXPECT_EQ(read_neighbours<Barrier::kWarpMeets>(1).size(), 0);
}

// All read the first and the last word; then one thread overwrites both.
template <bool kWithBarrier>
void overwrite(uint32_t* out) {
  auto* words = shared_memory<uint32_t>();
  words[threadIdx.x] = threadIdx.x;
  sync_block();
  out[threadIdx.x] = words[0] + words[kThreads - 1];
  if (kWithBarrier) sync_block();
  if (threadIdx.x == 0) words[0] = words[kThreads - 1] = 0;
}

TEST(Races, OverwritesWhatOthersStillRead) {
  const auto run = [](auto kernel) {
    return found_in([&](StreamView s, uint32_t* w) { launch(s, kBlock, kernel, w); });
  };
  EXPECT_GT(run(&overwrite<false>).size(), 0);
  EXPECT_EQ(run(&overwrite<true>).size(), 0);
}

// Halves of one word are two threads' own, unless both write all of it.
template <int kBytes>
void write_bytes(uint32_t* out) {
  reinterpret_cast<unsigned char*>(out)[threadIdx.x * 2] = 1;
  if (kBytes == 2) reinterpret_cast<unsigned char*>(out)[threadIdx.x * 2 + 1] = 1;
  if (kBytes == 4)
    *reinterpret_cast<uint32_t*>(reinterpret_cast<unsigned char*>(out) + threadIdx.x / 2 * 4) = 1;
}

TEST(Races, BytesSideBySide) {
  const auto run = [](auto kernel) {
    return found_in([&](StreamView s, uint32_t* w) { launch(s, kBlock, kernel, w); });
  };
  EXPECT_EQ(run(&write_bytes<2>).size(), 0);
  EXPECT_GT(run(&write_bytes<4>).size(), 0);
}

template <bool kWithWait>
void copy_and_read(const uint32_t* from, uint32_t* out) {
  auto* words = shared_memory<uint32_t>() + threadIdx.x;
  copy_async_4(words, from + threadIdx.x);
  copy_async_commit();
  if (kWithWait) copy_async_wait<0>();
  out[threadIdx.x] = *words;
}

// Waits for its own copies, reads others'.
void copy_and_read_neighbour(const uint32_t* from, uint32_t* out) {
  auto* words = shared_memory<uint32_t>();
  copy_async_4(words + threadIdx.x, from + threadIdx.x);
  copy_async_commit();
  copy_async_wait<0>();
  out[threadIdx.x] = words[threadIdx.x ^ 32];
}

void copy_twice(const uint32_t* from, uint32_t* out) {
  auto* words = shared_memory<uint32_t>() + threadIdx.x;
  copy_async_4(words, from + threadIdx.x);
  copy_async_4(words, out + threadIdx.x);
}

TEST(Races, CopiesThatNobodyWaitedFor) {
  const auto run = [](auto kernel) {
    return found_in([&](StreamView s, uint32_t* w) { launch(s, kBlock, kernel, w, w + kThreads); });
  };
  EXPECT_TRUE(is_one(run(&copy_and_read<false>), {"which has not waited for the asynchronous copy"}));
  EXPECT_EQ(run(&copy_and_read<true>).size(), 0);
  EXPECT_GT(run(&copy_and_read_neighbour).size(), 0);
  EXPECT_EQ(run(&copy_twice).size(), 1);
}

void fill(uint32_t* words) {
  await_inputs();
  words[threadIdx.x] = threadIdx.x;
}

template <bool kTooEarly>
void read_inputs(const uint32_t* in, uint32_t* out) {
  if (!kTooEarly) await_inputs();
  const uint32_t value = in[threadIdx.x];
  if (kTooEarly) await_inputs();
  out[threadIdx.x] = value;
}

template <bool kTooEarly>
void write_output(const uint32_t*, uint32_t* out) {
  if (!kTooEarly) await_inputs();
  out[threadIdx.x] = 0;
  if (kTooEarly) await_inputs();
}

// Weights may be read early: what ended before the chain of kernels, or was waited for.
TEST(Races, KernelsThatStartEarly) {
  const auto run = [](auto kernel, bool in_graph = false) {
    return found_in([&](StreamView s, uint32_t* w) {
      const auto work = [&] {
        launch(s, early(kBlock), &fill, w);
        launch(s, early(kBlock), kernel, static_cast<const uint32_t*>(w), w);
        fill_bytes(w + kThreads, 1, kThreads * 4, s);
        launch(s, early(kBlock), &read_inputs<true>, static_cast<const uint32_t*>(w + kThreads), w);
      };
      if (!in_graph) return work();
      const Graph graph(s, work);
      graph.launch(s);
      s.synchronize();
      graph.launch(s);
    });
  };
  EXPECT_TRUE(
      is_one(run(&read_inputs<true>), {"reads device memory", "the write at races_test.cpp", "by fill"}));
  EXPECT_TRUE(is_one(run(&write_output<true>), {"writes device memory", "the write at"}));
  EXPECT_GT(run(&read_inputs<true>, true).size(), 0);
  EXPECT_EQ(run(&read_inputs<false>).size(), 0);
  EXPECT_EQ(run(&write_output<false>).size(), 0);
  EXPECT_EQ(run(&read_inputs<false>, true).size(), 0);
}

// Every block adds its part; the last one that arrives reads them all.
template <bool kWithBarrier, bool kAtomic>
void meet(uint32_t* parts, uint32_t* counter, uint32_t* sum) {
  parts[blockIdx.x * kThreads + threadIdx.x] = 1;
  if (kWithBarrier) sync_block();
  auto* last = shared_memory<uint32_t>();
  if (threadIdx.x == 0) *last = kAtomic ? arrive(counter) : (*counter)++;
  sync_block();
  if (*last + 1 < gridDim.x) return;
  uint32_t total = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) total += parts[b * kThreads + threadIdx.x];
  sum[threadIdx.x] = total;
}

TEST(Races, BlocksThatMeet) {
  const auto run = [](auto kernel) {
    return found_in([&](StreamView s, uint32_t* w) {
      LaunchShape shape = kBlock;
      shape.grid_x = 4;
      launch(s, shape, kernel, w, w + 512, w + 600);
    });
  };
  EXPECT_EQ(run(&meet<true, true>).size(), 0);
  EXPECT_GT(run(&meet<false, true>).size(), 0);
  EXPECT_GT(run(&meet<true, false>).size(), 0);
}

void write_word(uint32_t* word) { *word = 1; }

TEST(Races, BlocksThatWriteTheSameWord) {
  EXPECT_TRUE(is_one(
      found_in([](StreamView s, uint32_t* w) { launch(s, {.grid_x = 2, .threads = 1}, &write_word, w); }),
      {"block 1, thread 0", "block 0, thread 0"}));
  EXPECT_EQ(found_in([](StreamView s, uint32_t* w) {
              launch(s, {.threads = 1}, &write_word, w);
              launch(s, {.threads = 1}, &write_word, w);
            }).size(),
            0);
}

TEST(Races, StreamsSideBySide) {
  const auto run = [](bool awaited) {
    return found_in([&](StreamView s, uint32_t* w) {
      const Stream other;
      launch(s, {.threads = 1}, &write_word, w);
      if (awaited) s.synchronize();
      launch(other, {.threads = 1}, &write_word, w);
      other.synchronize();
    });
  };
  EXPECT_EQ(run(false).size(), 1);
  EXPECT_EQ(run(true).size(), 0);
}

// One kernel tells the next, of another stream, by a flag.
template <bool kWithFlag>
void tell(uint32_t* word, uint32_t* flag) {
  *word = 1;
  if (kWithFlag) publish(flag, 1);
}
void hear(uint32_t* word, uint32_t* flag) {
  observe(flag);
  *word = 2;
}

TEST(Races, Flags) {
  const auto run = [](auto kernel) {
    return found_in([&](StreamView s, uint32_t* w) {
      const Stream other;
      launch(s, {.threads = 1}, kernel, w, w + 1);
      launch(other, {.threads = 1}, &hear, w, w + 1);
      other.synchronize();
    });
  };
  EXPECT_EQ(run(&tell<true>).size(), 0);
  EXPECT_EQ(run(&tell<false>).size(), 1);
}

TEST(Races, TheHostReadsAndWritesTooSoon) {
  const Stream stream;
  const DeviceBuffer<uint32_t> device(16);
  const PinnedBuffer<uint32_t> pinned(16);
  volatile uint32_t* word = pinned.data();
  Event done;
  for (bool waits : {false, true}) {
    copy(pinned.data(), static_cast<const uint32_t*>(device.data()), 16, stream);
    done.record(stream);
    if (waits) done.synchronize();
    EXPECT_EQ(*word, 0);
    EXPECT_EQ(take_reports().size(), waits ? 0 : 1);
    copy(device.data(), static_cast<const uint32_t*>(pinned.data()), 16, stream);
    if (waits) stream.synchronize();
    *word = 0;
    EXPECT_EQ(take_reports().size(), waits ? 0 : 1);
    stream.synchronize();
    std::vector<uint32_t> copied(16);
    copy(pinned.data(), static_cast<const uint32_t*>(device.data()), 16, stream);
    if (waits) stream.synchronize();
    std::copy(pinned.span().begin(), pinned.span().end(), copied.begin());
    EXPECT_EQ(take_reports().size(), waits ? 0 : 1);
    stream.synchronize();
  }
  volatile uint32_t* elsewhere = device.data();
  EXPECT_EQ(*elsewhere, 0);
  EXPECT_TRUE(is_one(take_reports(), {"reads device memory", "by the host\n  which cannot"}));
}

}  // namespace
}  // namespace outrider::cuda
