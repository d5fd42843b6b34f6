// Lossless speculation for every model family: text with chains and trees, on any number of ranks, is plain
// text.
#include <gtest/gtest.h>

#include "tests/end_to_end/request_grid.h"

namespace outrider {
namespace {

using namespace grid;  // NOLINT: the names of this test
using testing::DrafterKind;

// A part of the grid; all prompts and filters come up.
std::vector<Request> some_requests(const std::string& policy) {
  std::vector<Request> kept;
  auto all = grid_requests({Rule::kGreedy, Rule::kInvariant}, policy);
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

INSTANTIATE_TEST_SUITE_P(Goldens, Families, ::testing::ValuesIn(testing::kFamilyModels),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace outrider
