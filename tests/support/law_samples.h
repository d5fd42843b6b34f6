// Samples of one prompt's continuation, from the whole engine, for comparison with token_law.h.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "tests/support/test_cluster.h"
#include "tests/support/whole_tests.h"

namespace outrider::testing {

// Samples for a law that lossless_test proves with 12,000 for another drafter. OUTRIDER_TEST_WHOLE=1 (label slow): 12,000.
inline int repeated_law_samples() { return runs_whole_grids() ? 12000 : 3000; }

// `samples` requests that differ in their seeds alone.
inline std::vector<Request> seeded_requests(const std::vector<TokenId>& prompt, SamplingParams sampling,
                                            int samples) {
  std::vector<Request> all;
  for (int i = 0; i < samples; ++i) {
    sampling.seed = Seed{static_cast<uint64_t>(i) * 7919 + 1};
    Request request{.prompt = prompt, .max_tokens = 4, .ignore_eos = true};
    request.sampling = sampling;
    all.push_back(std::move(request));
  }
  return all;
}

// How often each id came as the second token.
inline std::vector<int> count_second(TestCluster& cluster, std::vector<Request> requests, size_t vocabulary) {
  std::vector<int> seen(vocabulary);
  for (const Finished& f : cluster.run(std::move(requests))) {
    EXPECT_TRUE(f.error.ok()) << f.error.message();
    if (f.ids.size() > 1) ++seen[static_cast<size_t>(f.ids[1].value())];
  }
  return seen;
}

// How often each text came. Drafts have one token in every second request and up to four in the others.
inline std::map<std::vector<int32_t>, int> count_texts(TestCluster& cluster, std::vector<Request> requests) {
  for (size_t i = 0; i < requests.size(); ++i)
    requests[i].gamma = parse_gamma_policy(i % 2 ? "fixed:gamma=1" : "fixed:gamma=4").value();
  std::map<std::vector<int32_t>, int> seen;
  for (const Finished& f : cluster.run(std::move(requests))) {
    EXPECT_TRUE(f.error.ok()) << f.error.message();
    std::vector<int32_t> key;
    for (const TokenId id : f.ids) key.push_back(id.value());
    ++seen[key];
  }
  return seen;
}

}  // namespace outrider::testing
