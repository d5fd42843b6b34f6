// Token and block rules whose q travels as hidden states. The text does not depend on ranks, pipeline or
// wire, and the output distribution is the target's. Requests and workers that cannot use this form use
// compact rows.
#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "tests/support/law_samples.h"
#include "tests/support/test_cluster.h"
#include "tests/support/token_law.h"

namespace outrider::hidden_states_test {
namespace {

using testing::ClusterOptions;
using testing::DrafterKind;
using testing::Finished;
using testing::TestCluster;
using testing::Wire;

constexpr const char* kTarget = "qwen3";

ClusterOptions with_states() {
  static const testing::PerturbedModel draft(kTarget, 0.2f);
  return {.target = kTarget,
          .draft = draft.path(),
          .drafter = DrafterKind::kModel,
          .max_num_seqs = 4,
          .q_kind = QKind::kHidden,
          .row_bytes = 24};
}

// Every third has a filter, a penalty or a bias.
std::vector<Request> requests(int count = 24) {
  std::vector<Request> all;
  for (int i = 0; i < count; ++i)
    for (const Rule rule : {Rule::kToken, Rule::kBlock}) {
      Request request{
          .prompt = {TokenId(10 + i), TokenId(12), TokenId(11)}, .max_tokens = 24, .ignore_eos = true};
      request.sampling.rule = rule;
      request.sampling.temperature = 1.5f;
      if (i % 9 == 2) request.sampling.top_p = 0.9f;
      if (i % 9 == 5) request.sampling.presence_penalty = 0.5f;
      if (i % 9 == 8) request.sampling.logit_bias = {{TokenId(7), 2.0f}};
      request.sampling.seed = Seed{static_cast<uint64_t>(i)};
      all.push_back(std::move(request));
    }
  return all;
}

void expect_same(const std::vector<Finished>& expected, const std::vector<Finished>& actual,
                 const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(actual[i].error.ok()) << what << ": " << actual[i].error.message();
    EXPECT_EQ(expected[i].ids, actual[i].ids) << what << ", request " << i;
  }
}

// Counts the drafts of each kind that a worker sends, and may change them.
struct Seen {
  std::atomic<int> hidden = 0, sparse = 0, other = 0;
  std::function<void(Draft&)> change;
};

class WatchedWire final : public Transport {
 public:
  WatchedWire(std::unique_ptr<Transport> inner, Seen& seen) : inner_(std::move(inner)), seen_(seen) {}
  Status send(PeerId to, const Message& message) override {
    const auto* draft = std::get_if<Draft>(&message);
    if (!draft || draft->ids.empty()) return inner_->send(to, message);
    ++(draft->q_kind == QKind::kHidden   ? seen_.hidden
       : draft->q_kind == QKind::kSparse ? seen_.sparse
                                         : seen_.other);
    Draft changed = *draft;
    if (seen_.change) seen_.change(changed);
    return inner_->send(to, changed);
  }
  std::optional<Incoming> receive(Clock::time_point deadline) override { return inner_->receive(deadline); }
  const TransportStats& stats() const override { return inner_->stats(); }

 private:
  const std::unique_ptr<Transport> inner_;
  Seen& seen_;
};

std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)> watched(Seen& seen) {
  return [&seen](std::unique_ptr<Transport> inner) {
    return std::make_unique<WatchedWire>(std::move(inner), seen);
  };
}

TEST(HiddenStates, GiveOneTextOverRanksPipelinesAndWires) {
  Seen seen;
  ClusterOptions options = with_states();
  options.drafter_wire = watched(seen);
  TestCluster reference(options);
  const auto expected = reference.run(requests());
  EXPECT_GT(reference.totals().rounds.accepted, 100);
  EXPECT_GT(reference.totals().rounds.rollbacks, 100);
  EXPECT_GT(seen.hidden, seen.sparse);
  EXPECT_GT(seen.sparse, 10);
  EXPECT_EQ(seen.other, 0);
  const auto expect_same_text = [&](auto change, const char* what) {
    ClusterOptions other = with_states();
    change(other);
    TestCluster cluster(other);
    expect_same(expected, cluster.run(requests()), what);
    EXPECT_EQ(cluster.totals().dropped(DropReason::kBadQ), 0) << what;
  };
  expect_same_text([](ClusterOptions& o) { o.tp_size = 2; }, "2 ranks");
  expect_same_text([](ClusterOptions& o) { o.tp_size = 4, o.wire = Wire::kZmqIpc; }, "4 ranks, ipc");
  expect_same_text([](ClusterOptions& o) { o.pipeline = Pipeline::kAhead; }, "ahead");
  expect_same_text([](ClusterOptions& o) { o.pipeline = Pipeline::kFanout, o.max_num_seqs = 1; }, "fanout");
  expect_same_text([](ClusterOptions& o) { o.pipeline = Pipeline::kAuto, o.drafters = 2; },
                   "auto, 2 drafters");
}

TEST(HiddenStates, AWorkerWithAnotherHeadSendsCompactRows) {
  Seen seen;
  ClusterOptions options = with_states();
  options.drafter_wire = watched(seen);
  const TemporaryDirectory directory;
  const auto other = directory.copy(testing::golden_model(kTarget), "other");
  std::fstream file(other / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
  uint64_t header = 0;
  file.read(reinterpret_cast<char*>(&header), sizeof header);
  const auto files = TensorFiles::open(other).value();
  const TensorInfo& head = *files.find("model.embed_tokens.weight");
  const TensorInfo& first = *files.find(files.names().front());
  std::ptrdiff_t at = head.data.data() - first.data.data();
  for (const std::string_view name : files.names())
    at = std::max(at, head.data.data() - files.find(name)->data.data());
  file.seekp(static_cast<std::streamoff>(8 + header) + at + 1);
  file.put('\1');
  file.close();
  options.drafters_head = other.string();
  TestCluster cluster(options);
  const auto results = cluster.run(requests());
  EXPECT_EQ(seen.hidden, 0);
  EXPECT_GT(seen.sparse, 100);
  ClusterOptions compact = with_states();
  compact.q_kind = QKind::kSparse;
  TestCluster sparse(compact);
  expect_same(sparse.run(requests()), results, "compact rows");
}

// States that do not fit their tokens lose that draft; from then on the worker is asked for rows. One that
// makes no sense at all is a miss, after which these timeouts leave the worker alone for good.
TEST(HiddenStates, ALyingWorkerLosesItsDraft) {
  struct Lie {
    void (*tell)(Draft& draft);
    bool is_left_alone;
  };
  for (const auto& [tell, is_left_alone] :
       {Lie{[](Draft& draft) { draft.hidden[0].max = -1e30f; }, false},
        Lie{[](Draft& draft) { draft.hidden[0].max = 1e30f; }, false},
        Lie{[](Draft& draft) { draft.hidden[0].scale = 0x1p120f; }, false},
        Lie{[](Draft& draft) {
              for (HiddenRow& row : draft.hidden) row.codes.resize(3);
            },
            false},
        Lie{[](Draft& draft) { draft.hidden[0].scale = 0; }, true},
        Lie{[](Draft& draft) { draft.hidden.pop_back(); }, true}}) {
    Seen seen;
    int drafts = 0;
    seen.change = [&drafts, tell = tell](Draft& draft) {
      if (draft.q_kind == QKind::kHidden && ++drafts == 5) tell(draft);
    };
    ClusterOptions options = with_states();
    options.drafter_wire = watched(seen);
    options.tp_size = 2;
    options.max_num_seqs = 1;
    TestCluster cluster(options);
    for (const Finished& f : cluster.run(requests())) {
      EXPECT_TRUE(f.error.ok()) << f.error.message();
      EXPECT_EQ(f.ids.size(), 24u);
    }
    EXPECT_EQ(cluster.totals().dropped(DropReason::kBadQ), 1);
    EXPECT_EQ(seen.hidden, 5);
    EXPECT_EQ(seen.sparse > 100, !is_left_alone);
  }
}

// The first of two drafted tokens is tested, over the whole vocabulary without filters.
TEST(HiddenStates, TokensFollowTheTarget) {
  const int samples = testing::repeated_law_samples();
  constexpr float kTemperature = 2.0f;
  const auto single = make_single_collectives();
  auto model = testing::load_or_die(testing::golden_model(kTarget), {}, *single);
  const std::vector<TokenId> prompt{TokenId(11), TokenId(14), TokenId(10)};
  const auto law = testing::law_of_second(*model, prompt, kTemperature);
  for (const int bits : {3, 4}) {
    ClusterOptions options = with_states();
    options.max_num_seqs = 8;
    options.code_bits = bits;
    TestCluster cluster(options);
    for (const Rule rule : {Rule::kToken, Rule::kBlock}) {
      auto all = testing::seeded_requests(prompt, {.rule = rule, .temperature = kTemperature}, samples);
      const auto seen = testing::count_second(cluster, std::move(all), law.size());
      testing::expect_follows(law, seen, fmt::format("{}, {} bits", rule_name(rule), bits));
    }
    EXPECT_GT(cluster.totals().rounds.rollbacks, samples / 12);
  }
}

}  // namespace
}  // namespace outrider::hidden_states_test
