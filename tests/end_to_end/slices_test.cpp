// Dense q in slices, sent from the draft worker directly to each target rank. The text equals that of rows
// sent through the coordinator. Covers drafts whose slices do not all arrive.
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "tests/support/test_cluster.h"

namespace outrider::slices_test {
namespace {

using testing::ClusterOptions;
using testing::DrafterKind;
using testing::Finished;
using testing::TestCluster;
using testing::Wire;

constexpr const char* kTarget = "qwen3";
constexpr int kMaxTokens = 24;

std::vector<Request> requests(int count = 6) {
  std::vector<Request> all;
  for (int i = 0; i < count; ++i)
    for (const Rule rule : {Rule::kToken, Rule::kBlock, Rule::kInvariant}) {
      Request request{.prompt = {TokenId(10 + i), TokenId(12), TokenId(11)}, .max_tokens = kMaxTokens};
      request.sampling.rule = rule;
      request.sampling.temperature = 1.5f;
      if (i % 2 == 1) request.sampling.top_k = 40;
      request.sampling.seed = Seed{static_cast<uint64_t>(i)};
      request.ignore_eos = true;
      all.push_back(std::move(request));
    }
  return all;
}

ClusterOptions with_draft() {
  static const testing::PerturbedModel draft(kTarget, 0.2f);
  return {.target = kTarget, .draft = draft.path(), .drafter = DrafterKind::kModel, .max_num_seqs = 4};
}

void expect_same(const std::vector<Finished>& expected, const std::vector<Finished>& actual,
                 const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(actual[i].error.ok()) << what << ": " << actual[i].error.message();
    EXPECT_EQ(expected[i].ids, actual[i].ids) << what << ", request " << i;
  }
}

TEST(Slices, GiveTheTextOfWholeRows) {
  TestCluster whole(with_draft());
  const auto expected = whole.run(requests());
  EXPECT_EQ(whole.totals().slice_bytes, 0);
  for (const int ranks : {1, 2, 4, 8})
    for (const Wire wire : {Wire::kInproc, Wire::kZmqTcp}) {  // TCP: with keys
      ClusterOptions options = with_draft();
      options.slices = true;
      options.tp_size = ranks;
      options.wire = wire;
      options.drafters = ranks == 2 ? 2 : 1;
      options.pipeline = ranks == 4 ? Pipeline::kFanout : Pipeline::kLockstep;
      TestCluster cluster(options);
      expect_same(expected, cluster.run(requests()), fmt::format("{} ranks", ranks));
      const Totals& totals = cluster.totals();
      EXPECT_GT(totals.rounds.accepted, 100);
      EXPECT_EQ(totals.dropped(DropReason::kSliceMissing), 0);
      // Two bytes for each of 302 tokens at least, of every drafted token of two rules in three.
      EXPECT_GT(totals.slice_bytes, totals.rounds.drafted / 2 * 604);
    }
}

// Swallows the slices of the drafts with these numbers, also when they come again: a drafter that seems slow
// is asked again.
class LeakyEndpoint final : public Transport {
 public:
  LeakyEndpoint(std::unique_ptr<Transport> inner, size_t first, size_t last)
      : inner_(std::move(inner)), first_(first), last_(last) {}
  Status send(PeerId to, const Message& message) override { return inner_->send(to, message); }
  std::optional<Incoming> receive(Clock::time_point deadline) override {
    auto incoming = inner_->receive(deadline);
    while (incoming && swallows(incoming->message)) incoming = inner_->receive(deadline);
    return incoming;
  }
  const TransportStats& stats() const override { return inner_->stats(); }

 private:
  bool swallows(const Message& message) {
    const auto& slice = std::get<QSlice>(message);
    const auto draft = numbers_.try_emplace({slice.sequence, slice.round}, numbers_.size() + 1).first;
    return draft->second >= first_ && draft->second <= last_;
  }

  const std::unique_ptr<Transport> inner_;
  const size_t first_, last_;
  std::map<std::pair<SequenceId, Round>, size_t> numbers_;  // of drafts, as they come
};

// One rank misses one slice: all ranks give that draft up, its round is a plain one, and from then on this
// worker's rows come whole.
TEST(Slices, ADraftIsGivenUpByAllRanksIfOneMissesItsSlice) {
  for (const int ranks : {2, 4}) {
    ClusterOptions options = with_draft();
    options.slices = true;
    options.tp_size = ranks;
    options.slice_timeout = std::chrono::milliseconds(500);  // of the one slice; others are there long before
    options.endpoint = [](int rank, std::unique_ptr<Transport> endpoint) -> std::unique_ptr<Transport> {
      if (rank != 1) return endpoint;
      return std::make_unique<LeakyEndpoint>(std::move(endpoint), 7, 7);
    };
    TestCluster cluster(options);
    const auto results = cluster.run(requests());
    for (const Finished& f : results) {
      EXPECT_TRUE(f.error.ok()) << f.error.message();
      EXPECT_EQ(f.ids.size(), static_cast<size_t>(kMaxTokens));
    }
    const Totals& totals = cluster.totals();
    EXPECT_EQ(totals.dropped(DropReason::kSliceMissing), 1);
    int64_t dropped = 0;
    for (const int64_t count : totals.drafts_dropped) dropped += count;
    EXPECT_EQ(totals.drafts_received, totals.drafts_used + dropped);
    EXPECT_GT(totals.rounds.accepted, 100);  // mostly after the loss, from whole rows
  }
}

// The token emitted in place of a lost draft is the token that plain decoding draws there, so it cannot
// depend on the draft. Each of the eight sequences loses its first draft. If the target verified one all the
// same, its token would often differ.
TEST(Slices, TheRoundOfALostDraftIsAPlainOne) {
  static constexpr int kSequences = 8;
  const auto second_tokens = [](ClusterOptions options) {
    options.max_num_seqs = kSequences;
    TestCluster cluster(options);
    std::vector<Request> all;
    for (uint64_t i = 0; i < kSequences; ++i) {
      Request request{.prompt = {TokenId(11), TokenId(14), TokenId(10)}, .max_tokens = 6, .ignore_eos = true};
      request.sampling = {.rule = Rule::kToken, .temperature = 4.0f, .seed = Seed{i}};
      all.push_back(std::move(request));
    }
    std::vector<TokenId> tokens;
    for (const Finished& f : cluster.run(std::move(all))) tokens.push_back(f.ids.at(1));
    return std::pair(tokens, cluster.totals().dropped(DropReason::kSliceMissing));
  };
  ClusterOptions plain = with_draft();
  plain.drafter = DrafterKind::kNone;
  ClusterOptions tested = with_draft();
  tested.slices = true;
  tested.tp_size = 2;
  ClusterOptions lossy = tested;
  lossy.drafters = kSequences;  // each has one sequence, and is cut off by its first loss
  lossy.slice_timeout = std::chrono::milliseconds(50);
  lossy.endpoint = [](int rank, std::unique_ptr<Transport> endpoint) -> std::unique_ptr<Transport> {
    return rank == 0 ? std::move(endpoint)
                     : std::make_unique<LeakyEndpoint>(std::move(endpoint), 1, kSequences);
  };
  const auto expected = second_tokens(plain), seen = second_tokens(lossy);
  EXPECT_EQ(seen.second, kSequences);
  EXPECT_EQ(seen.first, expected.first);
  EXPECT_NE(second_tokens(tested).first, expected.first);
}

}  // namespace
}  // namespace outrider::slices_test
