// Groups that only prefill: prompts are computed in one target group and decoded in another. Texts, and
// log-probabilities to their last bits, equal those of one group, also when blocks or groups are lost.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/end_to_end/request_grid.h"
#include "tests/support/dying_wire.h"

namespace outrider::prefill_groups_test {
namespace {

using namespace grid;  // NOLINT: the grid's names
using testing::DrafterKind;

// Prompts of no, one and several whole blocks; some begin alike, and one is asked about twice. A salt for
// each filter keeps most from being in the prefix cache. A third of all combinations, as of more_requests().
std::vector<Request> requests_of(const std::vector<Rule>& rules, const std::string& policy) {
  std::mt19937 random(31);
  const auto ids = [&](int length) {
    std::vector<TokenId> out;
    for (int i = 0; i < length; ++i) out.emplace_back(static_cast<int32_t>(random() % 6 + 10));
    return out;
  };
  std::vector<std::vector<TokenId>> prompts;
  for (const int length : {3, 16, 17, 40, 64, 90}) prompts.push_back(ids(length));
  for (const int more : {0, 9}) {
    prompts.push_back(prompts[3]);
    for (const TokenId id : ids(more)) prompts.back().push_back(id);
  }
  if (kSanitized) prompts.resize(5);
  std::vector<Request> requests;
  size_t combination = 0;
  for (const Rule rule : rules)
    for (const Filters& filters : filter_grid())
      for (const auto& prompt : prompts) {
        const size_t row = combination / prompts.size();
        if ((combination++ + row) % 3 != 0 && !kSanitized) continue;
        Request request{.prompt = prompt, .sampling = filters.params, .max_tokens = kMaxTokens};
        request.cache_salt = fmt::format("{}", row);
        request.sampling.rule = rule;
        request.sampling.temperature = rule == Rule::kGreedy ? 0.0f : 1.5f;
        request.sampling.seed = Seed{700 + combination};
        request.sampling.logprobs = requests.size() % 3 == 0 ? 2 : -1;
        if (requests.size() % 11 == 10) request.prompt_logprobs = 1;
        if (!policy.empty()) request.gamma = parse_gamma_policy(policy).value();
        requests.push_back(std::move(request));
      }
  return requests;
}

bool same_bits(const std::vector<PositionLogprobs>& a, const std::vector<PositionLogprobs>& b) {
  const auto equal = [](const PositionLogprobs& x, const PositionLogprobs& y) {
    return x.chosen.id == y.chosen.id && x.chosen.logprob == y.chosen.logprob;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), equal);
}

void expect_same_bits(const std::vector<Finished>& expected, const std::vector<Finished>& actual,
                      const std::string& what) {
  expect_same(expected, actual, what);
  for (size_t i = 0; i < std::min(expected.size(), actual.size()); ++i) {
    EXPECT_TRUE(same_bits(expected[i].logprobs, actual[i].logprobs)) << what << ", request " << i;
    EXPECT_TRUE(same_bits(expected[i].prompt_logprobs, actual[i].prompt_logprobs))
        << what << ", request " << i;
  }
}

const std::vector<Finished>& plainly() {
  static const std::vector<Finished> finished = [] {
    TestCluster plain({.target = kTarget, .prefix_caching = false});
    return plain.run(requests_of(kMatchRules, ""));
  }();
  return finished;
}

std::string policy_for(DrafterKind drafter) { return drafter == DrafterKind::kNone ? "" : "fixed:gamma=4"; }

class PrefillGroups : public ::testing::TestWithParam<int> {};  // ranks of a group

TEST_P(PrefillGroups, TextsAreThoseOfOneGroup) {
  for (const int batch : {1, 4})
    for (const DrafterKind drafter : {DrafterKind::kNone, DrafterKind::kModel, DrafterKind::kNgram}) {
      if (GetParam() > 1 && drafter == DrafterKind::kNgram) continue;
      TestCluster cluster({.target = kTarget,
                           .draft = draft_model(),
                           .drafter = drafter,
                           .tp_size = GetParam(),
                           .prefill_groups = 1,
                           .max_num_seqs = batch});
      const auto what =
          fmt::format("{} ranks, batch {}, drafter {}", GetParam(), batch, static_cast<int>(drafter));
      expect_same_bits(plainly(), cluster.run(requests_of(kMatchRules, policy_for(drafter))), what);
      const Totals& totals = cluster.totals();
      EXPECT_GT(totals.handoffs, 10) << what;
      EXPECT_GT(totals.handoff_blocks, totals.handoffs) << what;
      EXPECT_GT(totals.handoff_bytes, 0) << what;
      EXPECT_EQ(totals.handoffs_lost, 0) << what;
      EXPECT_EQ(std::min(totals.groups[0].emitted, totals.groups[1].emitted), 0) << what;
      EXPECT_GT(totals.rounds.accepted, drafter == DrafterKind::kNone ? -1 : kEnough) << what;
    }
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, PrefillGroups, ::testing::Values(1, 2));

// Layers that keep something else for a token: a latent, what a recurrent state follows from, values without
// keys of their own; or that forget it, behind a window.
TEST(PrefillGroupsToo, EveryKindOfLayerIsCarried) {
  for (const char* target : {"deepseek-v2-lite", "lfm2", "qwen3-next", "gemma3", "gemma4", "gpt-oss"}) {
    std::vector<Request> requests = requests_of({Rule::kGreedy}, "fixed:gamma=3");
    requests.resize(std::min<size_t>(requests.size(), 24));
    ClusterOptions options{.target = target, .drafter = DrafterKind::kNgram, .max_num_seqs = 3};
    TestCluster one(options);
    options.prefill_groups = 1;
    TestCluster two(options);
    expect_same_bits(one.run(requests), two.run(requests), target);
    EXPECT_GT(two.totals().handoffs, 3) << target;
    EXPECT_EQ(two.totals().handoffs_lost, 0) << target;
  }
}

// Drafts and their tests depend on the text, the round and the request alone.
TEST(PrefillGroupsToo, TokenAndBlockRulesGiveTheTextOfOneGroup) {
  ClusterOptions options{
      .target = kTarget, .draft = draft_model(), .drafter = DrafterKind::kModel, .max_num_seqs = 3};
  TestCluster one(options);
  options.prefill_groups = 1;
  options.groups = 2;
  TestCluster three(options);
  expect_same_bits(one.run(requests_of(kPqRules, "fixed:gamma=3")),
                   three.run(requests_of(kPqRules, "fixed:gamma=3")), "p/q rules");
  EXPECT_GT(three.totals().handoffs, 10);
  EXPECT_EQ(three.totals().handoffs_lost, 0);
}

// A head beside the target reads hidden states of the prompt, which travel with its keys and values.
TEST(PrefillGroupsToo, HeadsReadTheStatesOfAnotherGroup) {
  const std::string pair = (source_dir() / "launch/demo_pair").string();
  for (const bool at_worker : {false, true}) {
    ClusterOptions options{.target = pair + "/target",
                           .head = pair + "/eagle3",
                           .head_at_worker = at_worker,
                           .tp_size = at_worker ? 1 : 2,
                           .max_num_seqs = 2};
    TestCluster one(options);
    options.prefill_groups = 1;
    TestCluster two(options);
    expect_same_bits(one.run(requests_of({Rule::kInvariant}, "fixed:gamma=4")),
                     two.run(requests_of({Rule::kInvariant}, "fixed:gamma=4")), "a head");
    EXPECT_GT(two.totals().handoffs, 4);
    EXPECT_EQ(two.totals().handoffs_lost, 0);
    EXPECT_GT(two.totals().rounds.accepted, kEnough);
    if (at_worker) continue;  // drafts may be late
    EXPECT_EQ(two.totals().rounds.accepted, one.totals().rounds.accepted);
  }
}

// The cache of each group has room for one or two texts.
TEST(PrefillGroupsToo, PreemptedSequencesAreReadWhereTheyRun) {
  for (const bool prefix_caching : {true, false}) {
    TestCluster tight({.target = kTarget,
                       .draft = draft_model(),
                       .drafter = DrafterKind::kModel,
                       .prefill_groups = 1,
                       .max_num_seqs = 5,
                       .prefix_caching = prefix_caching,
                       .kv_tokens = 9 * kBlockTokens});
    // Which texts meet in a cache depends on the time that each group gets; a few runs meet a full one.
    for (int i = 0; i < 20 && tight.totals().preemptions == 0; ++i)
      expect_same_bits(plainly(), tight.run(requests_of(kMatchRules, "fixed:gamma=4")), "a small cache");
    EXPECT_GT(tight.totals().preemptions, 0);
    EXPECT_GT(tight.totals().handoffs, 10);
  }
}

// ---- what goes wrong ------------------------------------------------------------------------------------

// A sender's connection that loses or changes messages: each that `strikes` says.
class BadWire final : public Transport {
 public:
  enum class Fault { kLose, kRename, kRefuse };
  BadWire(std::unique_ptr<Transport> inner, Fault fault, std::shared_ptr<std::atomic<int>> count)
      : inner_(std::move(inner)), fault_(fault), count_(std::move(count)) {}
  Status send(PeerId to, const Message& message) override {
    if ((*count_)++ % 2 == 0) return inner_->send(to, message);
    if (fault_ == Fault::kLose) return {};
    if (fault_ == Fault::kRefuse) return unavailable("the test refuses");
    KvBlocks other = std::get<KvBlocks>(message);
    other.name ^= 1;  // of another text, model or rank
    return inner_->send(to, other);
  }
  std::optional<Incoming> receive(Clock::time_point deadline) override { return inner_->receive(deadline); }
  const TransportStats& stats() const override { return inner_->stats(); }

 private:
  const std::unique_ptr<Transport> inner_;
  const Fault fault_;
  const std::shared_ptr<std::atomic<int>> count_;
};

// Wraps the connections of senders.
template <class Wrap>
std::function<BlockEnd(int, BlockEnd)> wrapping(Wrap wrap) {
  return [wrap](int, BlockEnd end) {
    if (!end.connect) return end;
    end.connect = [connect = std::move(end.connect),
                   wrap](uint64_t inbox) -> Result<std::unique_ptr<Transport>> {
      auto inner = connect(inbox);
      if (!inner.ok()) return inner;
      return std::unique_ptr<Transport>(wrap(std::move(inner).value()));
    };
    return end;
  };
}

TEST(PrefillGroupsThatFail, MissingBlocksAreComputedWhereTheyAreMissing) {
  using Fault = BadWire::Fault;
  for (const Fault fault : {Fault::kLose, Fault::kRename, Fault::kRefuse})
    for (const int tp_size : {1, 2}) {
      const auto count = std::make_shared<std::atomic<int>>(0);
      TestCluster cluster({.target = kTarget,
                           .draft = draft_model(),
                           .drafter = tp_size == 1 ? DrafterKind::kModel : DrafterKind::kNone,
                           .tp_size = tp_size,
                           .prefill_groups = 1,
                           .max_num_seqs = 4,
                           .handoff_timeout = std::chrono::milliseconds(30),
                           .block_wire = wrapping([fault, count](std::unique_ptr<Transport> inner) {
                             return std::make_unique<BadWire>(std::move(inner), fault, count);
                           })});
      const auto what = fmt::format("fault {}, {} ranks", static_cast<int>(fault), tp_size);
      expect_same_bits(plainly(), cluster.run(requests_of(kMatchRules, tp_size == 1 ? "fixed:gamma=4" : "")),
                       what);
      // Three lost ones in a row end the attempts. Others may have brought the same beginning.
      EXPECT_GT(cluster.totals().handoffs_lost, 0) << what;
      EXPECT_EQ(cluster.totals().failovers, 0) << what;
    }
}

// The group dies with its fourth message of blocks. Prompts that it has, and those that come, go elsewhere.
TEST(PrefillGroupsThatFail, AGroupThatDiesInATransferCostsTimeOnly) {
  for (const int tp_size : {1, 2}) {
    const auto count = std::make_shared<std::atomic<int>>(0);
    TestCluster cluster({.target = kTarget,
                         .tp_size = tp_size,
                         .prefill_groups = 1,
                         .max_num_seqs = 4,
                         .handoff_timeout = std::chrono::milliseconds(30),
                         .block_wire = wrapping([](std::unique_ptr<Transport> inner) {
                           return std::make_unique<testing::DyingWire<KvBlocks>>(std::move(inner), 3);
                         })});
    const auto what = fmt::format("{} ranks", tp_size);
    expect_same_bits(plainly(), cluster.run(requests_of(kMatchRules, "")), what);
    EXPECT_EQ(cluster.totals().groups[0].lost + cluster.totals().groups[1].lost, 1) << what;
    EXPECT_GT(cluster.totals().handoffs, 0) << what;
    EXPECT_LT(cluster.totals().handoffs, 5) << what;
  }
}

}  // namespace
}  // namespace outrider::prefill_groups_test
