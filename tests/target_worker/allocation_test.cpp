// A pass of a shape that was seen before allocates nothing. Counts every operator new of this program's
// threads.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "tests/target_worker/verify_support.h"

namespace {
thread_local int64_t allocations = 0;
}

// Every form that the library uses, so that new and delete stay a pair. Not inlined, or the compiler sees
// free() where it expects a delete.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new[](size_t bytes) { return operator new(bytes); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace outrider {
namespace {

TEST(Allocation, NoneInSteadyState) {
  std::mt19937_64 rng(1);
  std::vector<TestRound> rounds;
  std::vector<TokenCounts> counts;
  std::vector<VerifyRequest> requests;
  for (int i = 0; i < 15; ++i) {
    rounds.push_back(random_round(rng, static_cast<Rule>(i % 5), 3000, 4));
    counts.push_back(counts_of(rounds.back()));
  }
  std::vector<float> raw;
  int64_t rows = 0;
  for (size_t i = 0; i < rounds.size(); ++i) {
    const TestRound& round = rounds[i];
    requests.push_back({.sampling = &round.params,
                        .round = round.round,
                        .base = round.base(),
                        .draft = round.draft,
                        .q_kind = round.q_kind,
                        .q = round.q,
                        .first_row = rows,
                        .counts = &counts[i]});
    for (const auto& row : round.raw) raw.insert(raw.end(), row.begin(), row.end());
    rows += static_cast<int64_t>(round.raw.size());
  }
  const auto group = make_single_collectives();
  ShardedVerifier verifier(*group);
  std::vector<float> shard(raw.size());
  const LogitsShard logits{TensorView<float, 2>(shard.data(), {rows, 3000}), {0, 3000}, 3000};
  for (int pass = 0; pass < 3; ++pass) {
    std::copy(raw.begin(), raw.end(), shard.begin());
    const int64_t before = allocations;
    verifier.verify(requests, logits);
    if (pass > 0) {
      EXPECT_EQ(allocations - before, 0) << "pass " << pass;
    } else {
      EXPECT_GT(allocations - before, 0);
    }
  }
}

}  // namespace
}  // namespace outrider
