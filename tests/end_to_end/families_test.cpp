// Lossless speculation for every model family: text with chains and trees, on any number of ranks, is plain
// text.
#include <gtest/gtest.h>

#include "tests/end_to_end/request_grid.h"

namespace outrider::families_test {
namespace {

using namespace grid;  // NOLINT: the names of this test
using testing::DrafterKind;

// A part of the grid; all prompts and filters come up.
std::vector<Request> some_requests(const std::string& policy) {
  std::vector<Request> kept;
  auto all = whole_grid({Rule::kGreedy, Rule::kInvariant}, policy);
  for (size_t i = 0; i < all.size(); i += 5) kept.push_back(std::move(all[i]));
  return kept;
}

class Families : public ::testing::TestWithParam<std::string> {};

TEST_P(Families, TextWithDraftsIsPlainText) {
  const testing::PerturbedModel draft(GetParam(), 0.2f);
  TestCluster plain({.target = GetParam()});
  const auto expected = plain.run(some_requests(""));
  const TreeShape tree{.widths = {2, 2, 1}};
  int64_t accepted = 0, rollbacks = 0;
  for (const auto& [tp_size, batch, shape] : {std::tuple<int, int, TreeShape>{1, 1, {}},
                                              {2, 8, {}},
                                              {4, 3, {}},
                                              {8, 8, {}},
                                              {1, 8, tree},
                                              {2, 1, tree}}) {
    ClusterOptions options{.target = GetParam(),
                           .draft = draft.path(),
                           .drafter = DrafterKind::kModel,
                           .tp_size = tp_size,
                           .max_num_seqs = batch};
    if (!shape.widths.empty()) options.tree = shape;
    TestCluster cluster(options);
    expect_same(
        expected, cluster.run(some_requests("fixed:gamma=3")),
        fmt::format("{}, tp {}, batch {}, tree {}", GetParam(), tp_size, batch, !shape.widths.empty()));
    accepted += cluster.totals().rounds.accepted;
    rollbacks += cluster.totals().rounds.rollbacks;
  }
  // The test would prove little if no draft had been accepted, or none rejected. Gemma 2 rejects ten.
  EXPECT_GT(accepted, 100);
  EXPECT_GT(rollbacks, 5);
}

// A layer with a short convolution or a gated delta net keeps a row of every token beside the keys of other
// layers. It is found again with a prompt's beginning, computed anew after a preemption, and resumed after a
// draft of the first layers. Layers of Gemma 4 that read the keys of others keep none, and get an input of
// each token beside the residual stream.
class KeptRows : public ::testing::TestWithParam<std::string> {};

TEST_P(KeptRows, PrefixHitsPreemptionAndEarlyExitChangeNoText) {
  const std::string& model = GetParam();
  const testing::PerturbedModel draft(model, 0.2f);
  const auto twice = [](const std::string& policy) {
    auto requests = some_requests(policy);
    for (Request& request : some_requests(policy)) requests.push_back(std::move(request));
    return requests;
  };
  TestCluster plain({.target = model, .prefix_caching = false});
  const auto expected = plain.run(twice(""));
  for (const auto& [tp_size, shape] :
       {std::pair<int, TreeShape>{1, {}}, {2, {}}, {1, {.widths = {2, 2, 1}}}}) {
    ClusterOptions options{.target = model,
                           .draft = draft.path(),
                           .drafter = DrafterKind::kModel,
                           .tp_size = tp_size,
                           .max_num_seqs = 5,
                           .kv_tokens = 9 * kBlockTokens};
    if (!shape.widths.empty()) options.tree = shape;
    TestCluster tight(options);
    const auto what = fmt::format("tp {}, tree {}", tp_size, !shape.widths.empty());
    expect_same(expected, tight.run(twice("fixed:gamma=3")), what);
    EXPECT_GT(tight.totals().preemptions, 2) << what;
    EXPECT_GT(tight.totals().prefix_hits, 20) << what;
    EXPECT_GT(tight.totals().rounds.accepted, 100) << what;
  }
  const int64_t whole = read_model_config(testing::golden_model(model)).value().num_layers;
  for (int64_t layers = 1; layers < whole; ++layers) {
    TestCluster exiting({.target = model, .exit_layer = layers, .tp_size = 2, .max_num_seqs = 3});
    expect_same(expected, exiting.run(twice("fixed:gamma=3")), fmt::format("{} layers", layers));
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, KeptRows, ::testing::Values("lfm2", "qwen3-next", "gemma4"),
                         [](const auto& instance) {
                           return instance.param == "qwen3-next" ? "qwen3_next" : instance.param;
                         });

INSTANTIATE_TEST_SUITE_P(Goldens, Families, ::testing::ValuesIn(testing::kFamilyModels),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           for (char& c : name)
                             if (c == '-' || c == '.') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace outrider::families_test
