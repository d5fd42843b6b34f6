// Hidden states sent from the device of a target's leader to the device of a draft worker with a head. The
// text is plain text, whatever happens to the link. Models run on the emulation; NCCL is a stand-in.
#include <gtest/gtest.h>

#include "tests/heads/golden_heads.h"
#include "tests/support/dying_wire.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/test_cluster.h"

namespace outrider {
namespace {

using namespace std::chrono_literals;

using testing::ClusterOptions;
using testing::fake_nccl;
using testing::GoldenHead;
using testing::TestCluster;
using testing::Wire;

constexpr int kMaxTokens = 16;
constexpr Device kDevice{.kind = Device::Kind::kCuda};

std::vector<Request> some_requests(int gamma) {
  std::vector<Request> all;
  for (int i = 0; i < 6; ++i) {
    Request request{.max_tokens = kMaxTokens};
    // Some prompts take more than one transfer.
    for (int t = 0; t < 3 + 5 * (i % 3); ++t) request.prompt.emplace_back((10 + 7 * i + 13 * t) % 280);
    request.sampling.rule = i % 2 ? Rule::kInvariant : Rule::kGreedy;
    request.sampling.temperature = i % 2 ? 1.2f : 0;
    request.sampling.seed = Seed{static_cast<uint64_t>(i)};
    request.gamma = parse_gamma_policy(fmt::format("fixed:gamma={}", gamma)).value();
    request.ignore_eos = true;
    all.push_back(std::move(request));
  }
  return all;
}

std::vector<std::vector<TokenId>> texts(const std::vector<testing::Finished>& finished) {
  std::vector<std::vector<TokenId>> ids;
  for (const auto& one : finished) {
    EXPECT_TRUE(one.error.ok()) << one.error.message();
    ids.push_back(one.ids);
  }
  return ids;
}

const std::vector<std::vector<TokenId>>& plain_texts() {
  static const auto ids = [] {
    TestCluster plain({.target = testing::kHeadsTarget, .device = kDevice});
    return texts(plain.run(some_requests(0)));
  }();
  return ids;
}

ClusterOptions linked(const GoldenHead& head, std::chrono::milliseconds connect_timeout = 60s) {
  ClusterOptions options{.target = testing::kHeadsTarget,
                         .head = testing::golden_head(head.name).string(),
                         .head_at_worker = true,
                         .head_kind = head.kind,
                         .head_on_device = true,
                         .max_num_seqs = 3,
                         .device = kDevice,
                         .wire = Wire::kZmqIpc};
  options.hidden_state_links = [=](RowLinkOptions end) {
    end.timeout = 60s;
    end.connect_timeout = connect_timeout;
    return cuda::nccl_row_links(testing::fake_nccl_api(), 0, end);
  };
  return options;
}

void expect_plain(TestCluster& cluster) {
  EXPECT_EQ(plain_texts(), texts(cluster.run(some_requests(3))));
  EXPECT_TRUE(cluster.totals().workers_lost > 0 || cluster.totals().draft_deadlines_missed == 0);
}

// Until both ends have joined sockets carry, which takes long on a busy machine.
void await_link(TestCluster& cluster) {
  for (int i = 0; i < 100 && cluster.totals().hidden_state_link_bytes == 0; ++i) expect_plain(cluster);
  ASSERT_GT(cluster.totals().hidden_state_link_bytes, 0);
}

// The message kind that announces rows of hidden states, and that carries the rows which do not go over a
// link.
const size_t kRowsKind = Message(HiddenStateRows()).index();
int64_t message_bytes(const TestCluster& cluster) {
  return static_cast<int64_t>(cluster.transport_stats().sent_bytes[kRowsKind]);
}
int64_t messages_of(const TestCluster& cluster) {
  return static_cast<int64_t>(cluster.transport_stats().sent_messages[kRowsKind]);
}

int64_t row_bytes(const GoldenHead& head) {
  const auto target = read_model_config(testing::golden_model(testing::kHeadsTarget)).value();
  const auto config = read_head_config(testing::golden_head(head.name), head.kind, target).value();
  return config.layer.hidden_size * 2;
}

class HiddenStateLinksTest : public ::testing::Test {
 protected:
  void SetUp() override { fake_nccl().reset(); }
  void TearDown() override {
    EXPECT_EQ(fake_nccl().mismatched, 0);
    EXPECT_EQ(fake_nccl().made, fake_nccl().aborted);
  }
  const GoldenHead head_{"eagle3", HeadKind::kEagle3};
};

TEST_F(HiddenStateLinksTest, TextIsPlainText) {
  int turn = 0;
  for (const GoldenHead& head : {GoldenHead{"eagle3", HeadKind::kEagle3},
                                 {"hydra-prefix", HeadKind::kHydra},
                                 {"dflash", HeadKind::kDFlash}}) {
    SCOPED_TRACE(head.name);
    ClusterOptions options = linked(head);
    options.tp_size = 1 + turn % 2;
    options.drafters = 1 + turn / 2 % 2;
    options.max_num_seqs = 1 + turn;
    if (turn++ % 2) options.tree = {.widths = {2, 2, 1}};
    TestCluster cluster(options);
    await_link(cluster);
    const int64_t linked = cluster.totals().hidden_state_link_bytes, told = message_bytes(cluster);
    const int64_t messages = messages_of(cluster), emitted = cluster.totals().rounds.emitted;
    expect_plain(cluster);
    if (options.drafters > 1) continue;  // the other's link may not be ready
    // Most rows, of prompts and of tokens that were emitted, and messages without rows.
    EXPECT_GE(cluster.totals().hidden_state_link_bytes - linked,
              row_bytes(head) * (cluster.totals().rounds.emitted - emitted) * 3 / 4);
    EXPECT_LT(message_bytes(cluster) - told, (100 + row_bytes(head)) * (messages_of(cluster) - messages));
    EXPECT_EQ(cluster.totals().resyncs, 0);
  }
}

// Transfers without a message are never claimed, and are evicted to make room for others.
TEST_F(HiddenStateLinksTest, RowsWhoseMessagesAreLostComeAgain) {
  ClusterOptions options = linked(head_);
  options.link = "loss=0.2,duplicate=0.2,seed=4";
  TestCluster cluster(options);
  await_link(cluster);
  expect_plain(cluster);
  EXPECT_GT(cluster.totals().proposals_repeated, 0);
}

TEST_F(HiddenStateLinksTest, UntilBothHaveJoinedSocketsCarry) {
  fake_nccl().init_hangs = true;
  TestCluster cluster(linked(head_, 200ms));
  expect_plain(cluster);
  EXPECT_EQ(cluster.totals().hidden_state_link_bytes, 0);
  EXPECT_EQ(cluster.totals().resyncs, 0);
}

// Rows that were in flight are sent again. From then on rows travel in messages.
void expect_fall_back(const GoldenHead& head, const std::function<void()>& fault) {
  ClusterOptions options = linked(head);
  options.slice_timeout = 100ms;
  TestCluster cluster(options);
  await_link(cluster);
  fault();
  expect_plain(cluster);
  const int64_t linked = cluster.totals().hidden_state_link_bytes, told = message_bytes(cluster);
  const int64_t emitted = cluster.totals().rounds.emitted;
  expect_plain(cluster);
  EXPECT_EQ(cluster.totals().hidden_state_link_bytes, linked);
  EXPECT_GT(message_bytes(cluster) - told, row_bytes(head) * (cluster.totals().rounds.emitted - emitted));
  EXPECT_GT(cluster.totals().rounds.accepted + cluster.totals().rounds.rollbacks, 0);
}

TEST_F(HiddenStateLinksTest, AnErrorOfEitherEndTurnsThemToSockets) {
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(rank);
    fake_nccl().reset();
    expect_fall_back(head_, [=] {
      fake_nccl().fail_rank = rank;
      fake_nccl().fail_after = 0;
    });
    EXPECT_EQ(fake_nccl().made, fake_nccl().aborted);
  }
}

TEST_F(HiddenStateLinksTest, SoDoRowsThatNeverCome) {
  expect_fall_back(head_, [] { fake_nccl().mute_after = 0; });
}

TEST_F(HiddenStateLinksTest, SoDoesAWorkerThatGetsNothing) {
  expect_fall_back(head_, [] { fake_nccl().deaf_rank = 1; });
}

// Under a rule with q a text depends on every draft: none is another, or missing, because of the way its rows
// took or because they were lost on it.
TEST_F(HiddenStateLinksTest, PqRulesGiveTheTextOfSockets) {
  const auto requests = [] {
    auto all = some_requests(3);
    for (Request& request : all) {
      request.sampling.rule = Rule::kToken;
      request.sampling.temperature = 1.3f;
    }
    return all;
  };
  ClusterOptions options = linked(head_);
  options.slice_timeout = 2s;  // a busy machine gives up no link before it is muted
  TestCluster by_links(options);
  options.hidden_state_links = {};
  TestCluster by_sockets(options);
  const auto expected = texts(by_sockets.run(requests()));
  for (int i = 0; i < 100 && by_links.totals().hidden_state_link_bytes == 0; ++i)
    EXPECT_EQ(expected, texts(by_links.run(requests())));
  const int64_t linked = by_links.totals().hidden_state_link_bytes;
  EXPECT_EQ(expected, texts(by_links.run(requests())));
  EXPECT_GT(by_links.totals().hidden_state_link_bytes, linked);
  fake_nccl().mute_after = 0;
  EXPECT_EQ(expected, texts(by_links.run(requests())));
  EXPECT_GT(by_links.totals().resyncs, 0);
  EXPECT_EQ(by_links.totals().liveness_timeouts, 0);
}

TEST_F(HiddenStateLinksTest, AWorkerThatDiesDisturbsNobody) {
  ClusterOptions options = linked(head_);
  options.drafters = 2;
  std::atomic<int> made{0};
  options.drafter_wire = [&](std::unique_ptr<Transport> wire) {
    return std::make_unique<testing::DyingWire<Draft>>(std::move(wire), made++ > 0 ? 1 << 30 : 14);
  };
  TestCluster cluster(options);
  await_link(cluster);
  for (int i = 0; i < 20 && cluster.totals().workers_lost == 0; ++i) expect_plain(cluster);
  EXPECT_EQ(cluster.totals().workers_lost, 1);
  const int64_t linked = cluster.totals().hidden_state_link_bytes;
  expect_plain(cluster);
  EXPECT_GT(cluster.totals().hidden_state_link_bytes, linked);
}

}  // namespace
}  // namespace outrider
