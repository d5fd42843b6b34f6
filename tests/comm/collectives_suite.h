// Conformance suite for implementations of Collectives, written from one rank's view: all ranks of a fresh
// group call each function at once. Threads run it in collectives_test.cpp, processes in
// collectives_mpi_test.cpp.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "comm/collectives.h"

namespace outrider::collectives_suite {

using namespace std::chrono_literals;

constexpr int kRounds = 24;
constexpr auto kShortTimeout = 200ms;  // of the groups given to the cases that wait for it

// The random values that rank r contributes in the given round. Every rank can compute the values of all
// ranks.
inline std::mt19937_64 engine_of(int round, int rank) {
  return std::mt19937_64(static_cast<uint64_t>(round) * 1000 + static_cast<uint64_t>(rank));
}
inline std::vector<float> floats_of(int round, int rank, size_t count) {
  auto engine = engine_of(round, rank);
  std::vector<float> values(count);
  // Magnitudes far apart, so that another order of additions shows in the bits.
  for (float& value : values)
    value =
        std::ldexp(static_cast<float>(static_cast<int32_t>(engine())), static_cast<int>(engine() % 20) - 30);
  return values;
}
inline std::vector<uint64_t> integers_of(int round, int rank, size_t count) {
  auto engine = engine_of(round, rank);
  std::vector<uint64_t> values(count);
  for (uint64_t& value : values) value = engine();
  return values;
}
inline std::vector<std::byte> bytes_of(int round, int rank, size_t count) {
  auto engine = engine_of(round, rank);
  std::vector<std::byte> values(count);
  for (std::byte& value : values) value = static_cast<std::byte>(engine());
  return values;
}

// The number of values moved in a round; maybe_late() delays at most one rank. Both depend on the
// round alone, so all ranks agree.
inline size_t size_of_round(int round) {
  constexpr size_t kSizes[] = {0, 1, 2, 3, 7, 64, 257, 1000, 4096, 20'000};
  return kSizes[engine_of(round, 999)() % std::size(kSizes)];
}
inline void maybe_late(const Collectives& group, int round) {
  const uint64_t choice = engine_of(round, 998)();
  if (choice % 4 == 0 &&
      static_cast<int>((choice >> 8) % static_cast<uint64_t>(group.size())) == group.rank())
    std::this_thread::sleep_for(2ms);
}

inline void float_sums_use_the_balanced_tree(Collectives& group) {
  for (int round = 0; round < kRounds; ++round) {
    const size_t count = size_of_round(round);
    std::vector<std::vector<float>> tree;
    for (int r = 0; r < group.size(); ++r) tree.push_back(floats_of(round, r, count));
    std::vector<float> values = tree[static_cast<size_t>(group.rank())];
    for (size_t stride = 1; stride < tree.size(); stride *= 2)
      for (size_t r = 0; r < tree.size(); r += 2 * stride)
        for (size_t i = 0; i < count; ++i) tree[r][i] = tree[r][i] + tree[r + stride][i];
    maybe_late(group, round);
    group.all_reduce_sum(std::span<float>(values));
    ASSERT_TRUE(count == 0 || std::memcmp(values.data(), tree[0].data(), count * sizeof(float)) == 0)
        << "round " << round << " rank " << group.rank();
  }
}

inline void integers_reduce(Collectives& group) {
  for (int round = 0; round < kRounds; ++round) {
    const size_t count = size_of_round(round);
    std::vector<uint64_t> sum(count, 0), max(count, 0), min(count, ~uint64_t{0});
    for (int r = 0; r < group.size(); ++r) {
      const auto theirs = integers_of(round, r, count);
      for (size_t i = 0; i < count; ++i) {
        sum[i] += theirs[i];
        max[i] = std::max(max[i], theirs[i]);
        min[i] = std::min(min[i], theirs[i]);
      }
    }
    maybe_late(group, round);
    auto values = integers_of(round, group.rank(), count);
    group.all_reduce_sum(std::span<uint64_t>(values));
    ASSERT_EQ(values, sum);
    values = integers_of(round, group.rank(), count);
    group.all_reduce_max(values);
    ASSERT_EQ(values, max);
    values = integers_of(round, group.rank(), count);
    group.all_reduce_min(values);
    ASSERT_EQ(values, min);
  }
}

inline void bytes_move(Collectives& group) {
  for (int round = 0; round < kRounds; ++round) {
    const size_t count = size_of_round(round);
    std::vector<std::byte> expected;
    for (int r = 0; r < group.size(); ++r) {
      const auto theirs = bytes_of(round, r, count);
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    maybe_late(group, round);
    std::vector<std::byte> all(expected.size());
    group.all_gather(bytes_of(round, group.rank(), count), all);
    ASSERT_EQ(all, expected);
    const int root = round % group.size();
    auto bytes = bytes_of(round, group.rank(), count);
    group.broadcast(bytes, root);
    ASSERT_EQ(bytes, bytes_of(round, root, count));
    group.barrier();
  }
}

inline void messages_of_any_length_arrive(Collectives& group) {
  constexpr size_t kMax = 200'000;
  for (int round = 0; round < 40; ++round) {
    const int root = round % group.size();
    const size_t count = round == 5 ? kMax : size_of_round(round);
    std::vector<std::byte> bytes;
    if (group.rank() == root) {
      bytes = bytes_of(round, root, count);
      if (round % 10 == 0) std::this_thread::sleep_for(5ms);
    } else {
      bytes.resize(static_cast<size_t>(round) * 3);  // whatever was there is replaced
    }
    group.broadcast_message(bytes, root, kMax);
    ASSERT_EQ(bytes, bytes_of(round, root, count)) << "round " << round << " rank " << group.rank();
  }
}

// No rank may leave a barrier before the last one entered it. Ranks of one host share their clock.
inline void barriers_wait_for_the_last(Collectives& group) {
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  for (int last = 0; last < group.size(); ++last) {
    group.barrier();
    if (group.rank() == last) std::this_thread::sleep_for(20ms);
    auto entered = now();
    group.barrier();
    const auto left = now();
    group.broadcast(std::as_writable_bytes(std::span(&entered, 1)), last);
    EXPECT_GE(left, entered);
  }
}

// Waiting for work takes as long as it takes: longer than the timeout of the group.
inline void waiting_for_work_has_no_deadline(Collectives& group) {
  std::vector<std::byte> bytes;
  if (group.rank() == 0) {
    std::this_thread::sleep_for(kShortTimeout + 100ms);
    bytes = bytes_of(0, 0, 10);
  }
  group.broadcast_message(bytes, 0, 10);
  EXPECT_EQ(bytes, bytes_of(0, 0, 10));
}

// A meeting has no deadline either, whichever rank arrives last.
inline void meeting_has_no_deadline(Collectives& group) {
  for (const int last : {0, group.size() - 1}) {
    if (group.rank() == last) std::this_thread::sleep_for(kShortTimeout + 100ms);
    group.meet();
  }
  group.barrier();
}

inline void abort_reaches_a_meeting(Collectives& group) {
  group.meet();
  if (group.rank() == group.size() - 1)
    group.abort();
  else
    EXPECT_THROW(group.meet(), CollectiveError);
}

inline void abort_reaches_everyone(Collectives& group) {
  const auto start = std::chrono::steady_clock::now();
  group.barrier();
  std::vector<std::byte> bytes;
  if (group.rank() == group.size() - 1) {
    std::this_thread::sleep_for(20ms);
    group.abort();
  } else if (group.rank() % 2 == 0) {
    EXPECT_THROW(group.barrier(), CollectiveError);
  } else {  // also while waiting for work that never comes
    EXPECT_THROW(group.broadcast_message(bytes, group.size() - 1, 10), CollectiveError);
  }
  EXPECT_THROW(group.barrier(), CollectiveError);
  EXPECT_THROW(group.broadcast_message(bytes, 0, 10), CollectiveError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);  // not by the timeout, a minute
}

// With a short timeout: one rank is too late, and everyone hears of it. The late rank may still find what the
// others sent before they gave up; its next operation fails.
inline void a_late_rank_fails_everyone(Collectives& group) {
  std::vector<float> values(10);
  std::vector<std::byte> nothing;
  group.broadcast_message(nothing, group.size() - 1, 0);  // starting may take a loaded machine longer
  if (group.rank() == 0) {
    std::this_thread::sleep_for(kShortTimeout * 3);
    const auto twice = [&] {
      for (int i = 0; i < 2; ++i) group.all_reduce_sum(std::span<float>(values));
    };
    EXPECT_THROW(twice(), CollectiveError);
    return;
  }
  EXPECT_THROW(group.all_reduce_sum(std::span<float>(values)), CollectiveError) << "rank " << group.rank();
}

inline void messages_over_the_limit_fail_everyone(Collectives& group) {
  std::vector<std::byte> bytes(group.rank() == 0 ? 11 : 0);
  EXPECT_THROW(group.broadcast_message(bytes, 0, 10), CollectiveError) << "rank " << group.rank();
}

}  // namespace outrider::collectives_suite
