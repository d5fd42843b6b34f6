// Requests that together cover every rule and filter, and the comparison of the texts of two runs.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/support/test_cluster.h"
#include "tests/support/whole_tests.h"

namespace outrider::grid {

using testing::ClusterOptions;
using testing::DrafterKind;
using testing::Finished;
using testing::TestCluster;
using testing::Wire;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // tenfold slower: a sample of the grid
#else
constexpr bool kSanitized = false;
#endif
// Accepted drafts, and rejections, that a run over the grid must have seen to prove anything.
constexpr int64_t kEnough = 20;

constexpr const char* kTarget = "qwen3";
// The draft model is the target with perturbed weights: most of its tokens are accepted, and many are
// rejected.
inline std::string draft_model() {
  static const testing::PerturbedModel model(kTarget, 0.2f);
  return model.path();
}
constexpr int kVocab = 302;
constexpr int kMaxTokens = 20;

struct Filters {
  const char* name;
  SamplingParams params;
};

inline std::vector<Filters> filter_grid() {
  std::vector<Filters> grid{
      {"none", {}},
      {"top_k", {.top_k = 12}},
      {"top_p", {.top_p = 0.8f}},
      {"min_p", {.min_p = 0.05f}},
      {"penalties", {.repetition_penalty = 1.3f, .presence_penalty = 0.5f, .frequency_penalty = 0.4f}},
      {"bias", {.logit_bias = {{TokenId(7), 4.0f}, {TokenId(9), -100.0f}}}},
      {"all",
       {.top_k = 40,
        .top_p = 0.9f,
        .min_p = 0.01f,
        .repetition_penalty = 1.2f,
        .presence_penalty = 0.2f,
        .frequency_penalty = 0.1f,
        .logit_bias = {{TokenId(7), 2.0f}}}}};
  if (kSanitized) grid = {grid[0], grid[6]};
  return grid;
}

inline std::vector<std::vector<TokenId>> prompts() {
  std::mt19937 random(17);
  std::vector<std::vector<TokenId>> out;
  for (int length : {1, 3, 8, 17, 30, 5}) {
    std::vector<TokenId> ids;
    // Few different tokens, so that n-gram lookup finds something.
    for (int i = 0; i < length; ++i) ids.emplace_back(static_cast<int32_t>(random() % 6 + 10));
    out.push_back(std::move(ids));
  }
  if (kSanitized) out.resize(3);
  return out;
}

// All requests of the grid for one gamma; the temperature is high enough that drafts are rejected now and
// then.
inline std::vector<Request> whole_grid(const std::vector<Rule>& rules, const std::string& policy) {
  std::vector<Request> requests;
  for (Rule rule : rules)
    for (const Filters& filters : filter_grid())
      for (const auto& prompt : prompts()) {
        Request request{.prompt = prompt, .sampling = filters.params, .max_tokens = kMaxTokens};
        request.sampling.rule = rule;
        request.sampling.temperature = rule == Rule::kGreedy ? 0.0f : 1.5f;
        request.sampling.seed = Seed{1000 + requests.size()};
        if (!policy.empty()) request.gamma = parse_gamma_policy(policy).value();
        requests.push_back(std::move(request));
      }
  return requests;
}

// One request in `one_in` of the whole grid, 3 or 6: every filter with two prompts or one under each rule,
// others for the next filter. Entries labelled slow run all.
inline std::vector<Request> some_of_grid(size_t one_in, const std::vector<Rule>& rules,
                                         const std::string& policy) {
  auto all = whole_grid(rules, policy);
  if (kSanitized || testing::runs_whole_grids()) return all;
  const size_t prompt_count = prompts().size(), filter_count = filter_grid().size();
  std::vector<Request> some;
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t prompt = i % prompt_count, filter = i / prompt_count % filter_count;
    const size_t rule = i / prompt_count / filter_count;
    if ((prompt + filter + rule) % one_in == 0) some.push_back(std::move(all[i]));
  }
  return some;
}

// Requests of the tests of heads and trees, for each of many shapes, ranks and batches.
inline std::vector<Request> grid_requests(const std::vector<Rule>& rules, const std::string& policy) {
  return some_of_grid(6, rules, policy);
}
// Requests of tests that count, or take the first ones.
inline std::vector<Request> more_requests(const std::vector<Rule>& rules, const std::string& policy) {
  return some_of_grid(3, rules, policy);
}

inline const std::vector<Rule> kMatchRules{Rule::kGreedy, Rule::kInvariant, Rule::kNaive};
inline const std::vector<Rule> kPqRules{Rule::kToken, Rule::kBlock};

inline void expect_same(const std::vector<Finished>& expected, const std::vector<Finished>& actual,
                        const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size());
  size_t different = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(actual[i].error.ok()) << what << ", request " << i << ": " << actual[i].error.message();
    different += expected[i].ids != actual[i].ids || expected[i].reason != actual[i].reason;
  }
  EXPECT_EQ(different, 0u) << what << ": of " << expected.size() << " texts";
}

}  // namespace outrider::grid
