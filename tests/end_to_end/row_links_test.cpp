// Dense q sent from the draft worker's device to the devices of the target's ranks. The text equals that of
// rows sent through sockets, whatever happens to the link. Models run on the emulation; NCCL is a stand-in.
#include <gtest/gtest.h>

#include "tests/support/fake_nccl.h"
#include "tests/support/test_cluster.h"

namespace outrider {
namespace {

using namespace std::chrono_literals;

using testing::ClusterOptions;
using testing::DrafterKind;
using testing::fake_nccl;
using testing::Finished;
using testing::TestCluster;
using testing::Wire;

constexpr const char* kTarget = "qwen3";
constexpr int kRowMaxTokens = 16;

std::vector<Request> requests(int count) {
  std::vector<Request> all;
  for (int i = 0; i < count; ++i)
    for (const Rule rule : {Rule::kToken, Rule::kBlock}) {
      Request request{.prompt = {TokenId(10 + i), TokenId(12), TokenId(11)}, .max_tokens = kRowMaxTokens};
      request.sampling.rule = rule;
      request.sampling.temperature = 1.5f;
      if (i % 2 == 1) request.sampling.top_k = 40;
      request.sampling.seed = Seed{static_cast<uint64_t>(i)};
      request.ignore_eos = true;
      all.push_back(std::move(request));
    }
  return all;
}

ClusterOptions on_devices(int ranks, int batch) {
  static const testing::PerturbedModel draft(kTarget, 0.2f);
  ClusterOptions options{
      .target = kTarget, .draft = draft.path(), .drafter = DrafterKind::kModel, .max_num_seqs = batch};
  options.device = {.kind = Device::Kind::kCuda};
  options.tp_size = ranks;
  options.wire = Wire::kZmqIpc;
  options.slices = true;
  return options;
}

// An end of links of the stand-in, with these limits.
std::function<RowLinks(RowLinkOptions)> links(std::chrono::milliseconds timeout = 60s,
                                              std::chrono::milliseconds connect_timeout = 60s) {
  return [=](RowLinkOptions end) {
    end.timeout = timeout;
    end.connect_timeout = connect_timeout;
    return cuda::nccl_row_links(testing::fake_nccl_api(), 0, end);
  };
}

const std::vector<Finished>& expected() {
  static const std::vector<Finished> texts = [] {
    ClusterOptions options = on_devices(1, 2);
    options.slices = false;
    return TestCluster(options).run(requests(4));
  }();
  return texts;
}

void expect_the_text(const std::vector<Finished>& actual) {
  ASSERT_LE(actual.size(), expected().size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(actual[i].error.ok()) << actual[i].error.message();
    EXPECT_EQ(expected()[i].ids, actual[i].ids) << "request " << i;
  }
}

// Sockets carry until both ends have joined, which takes long on a busy machine.
void run_until_linked(TestCluster& cluster) {
  for (int i = 0; i < 100 && cluster.totals().link_bytes == 0; ++i) expect_the_text(cluster.run(requests(1)));
}

void expect_whole(const std::vector<Finished>& finished) {
  for (const Finished& f : finished) {
    EXPECT_TRUE(f.error.ok()) << f.error.message();
    EXPECT_EQ(f.ids.size(), static_cast<size_t>(kRowMaxTokens));
  }
}

// Bytes of rows that went over sockets. Both counters include rows that were received and rows whose draft
// was dropped.
int64_t socket_bytes(const Totals& totals) { return totals.slice_bytes - totals.link_bytes; }

class RowLinksTest : public ::testing::Test {
 protected:
  void SetUp() override { fake_nccl().reset(); }
  void TearDown() override {
    EXPECT_EQ(fake_nccl().mismatched, 0);
    EXPECT_EQ(fake_nccl().made, fake_nccl().aborted);
  }
};

TEST_F(RowLinksTest, GiveTheTextOfWholeRows) {
  for (const auto& [ranks, batch] : {std::pair(1, 1), {1, 4}, {2, 4}, {4, 2}}) {
    SCOPED_TRACE(fmt::format("{} ranks, batch {}", ranks, batch));
    ClusterOptions options = on_devices(ranks, batch);
    options.links = links();
    options.drafters = ranks == 2 ? 2 : 1;
    options.pipeline =
        ranks == 4 ? Pipeline::kFanout : Pipeline::kLockstep;  // rows of the host among those of the device
    TestCluster cluster(options);
    run_until_linked(cluster);
    const int64_t bytes = cluster.totals().link_bytes, drafted = cluster.totals().rounds.drafted;
    expect_the_text(cluster.run(requests(4)));
    EXPECT_EQ(cluster.totals().dropped(DropReason::kSliceMissing), 0);
    EXPECT_GT(cluster.totals().link_bytes - bytes, 604 * (cluster.totals().rounds.drafted - drafted) / 2);
  }
}

// Drafts whose message the coordinator lost or received twice send their rows over the link too. Their
// transfers complete without delaying a step.
TEST_F(RowLinksTest, DraftsThatAreDroppedPassUnused) {
  ClusterOptions options = on_devices(2, 4);
  options.links = links();
  options.link = "loss=0.2,duplicate=0.1,seed=4";
  TestCluster cluster(options);
  run_until_linked(cluster);
  expect_the_text(cluster.run(requests(2)));
  EXPECT_GT(cluster.totals().proposals_repeated, 0);
  EXPECT_GT(cluster.totals().link_bytes, 0);
}

TEST_F(RowLinksTest, UntilEverybodyHasJoinedSocketsCarry) {
  fake_nccl().init_hangs = true;
  ClusterOptions options = on_devices(2, 2);
  options.links = links(60s, 200ms);
  TestCluster cluster(options);
  expect_the_text(cluster.run(requests(4)));
  EXPECT_EQ(cluster.totals().link_bytes, 0);
  EXPECT_GT(socket_bytes(cluster.totals()), 0);
  EXPECT_EQ(cluster.totals().dropped(DropReason::kSliceMissing), 0);
}

// The worker's end breaks while it sends no rows, so nothing is lost. One draft is: if the worker has announced
// its rows and not yet sent them. A text without that draft is another one.
TEST_F(RowLinksTest, AnErrorOfTheWorkersEndTurnsItToItsSockets) {
  fake_nccl().fail_after = 6;
  ClusterOptions options = on_devices(2, 1);
  options.links = links();
  TestCluster cluster(options);
  const std::vector<Finished> finished = cluster.run(requests(4));
  const int64_t lost = cluster.totals().dropped(DropReason::kSliceMissing);
  lost == 0 ? expect_the_text(finished) : expect_whole(finished);
  EXPECT_LE(lost, 1);
  EXPECT_GT(cluster.totals().link_bytes, 0);
  EXPECT_GT(socket_bytes(cluster.totals()), 0);
}

// All ranks give the draft up and end the link; the worker hears of it.
void expect_fall_back(ClusterOptions options) {
  options.links = links();
  options.slice_timeout = 100ms;
  TestCluster cluster(options);
  expect_whole(cluster.run(requests(4)));
  const Totals& totals = cluster.totals();
  EXPECT_GE(totals.dropped(DropReason::kSliceMissing), 1);
  EXPECT_LE(totals.dropped(DropReason::kSliceMissing), 2 * options.max_num_seqs);
  EXPECT_GT(totals.link_bytes, 0);
  EXPECT_GT(socket_bytes(totals), 604 * totals.rounds.drafted / 4);  // more than a quarter of all rows
  int64_t dropped = 0;
  for (const int64_t count : totals.drafts_dropped) dropped += count;
  EXPECT_EQ(totals.drafts_received, totals.drafts_used + dropped);
}

TEST_F(RowLinksTest, RowsThatNeverComeEndTheLinkOnAllRanks) {
  fake_nccl().mute_after = 4;
  for (const int ranks : {1, 2}) expect_fall_back(on_devices(ranks, 2));
}

TEST_F(RowLinksTest, SoDoesOneRankThatGetsNothing) {
  fake_nccl().deaf_rank = 2;
  expect_fall_back(on_devices(2, 1));
}

// Dies right after it sent its n-th Draft.
class MortalWire final : public Transport {
 public:
  MortalWire(std::unique_ptr<Transport> inner, int drafts) : inner_(std::move(inner)), drafts_(drafts) {}
  Status send(PeerId to, const Message& message) override {
    if (drafts_ == 0) return unavailable("its worker is dead");
    Status status = inner_->send(to, message);
    if (std::holds_alternative<Draft>(message) && --drafts_ == 0) throw testing::WorkerDeath();
    return status;
  }
  std::optional<Incoming> receive(Clock::time_point deadline) override { return inner_->receive(deadline); }
  const TransportStats& stats() const override { return inner_->stats(); }

 private:
  const std::unique_ptr<Transport> inner_;
  int drafts_;
};

// Its last rows are announced, and the coordinator may have planned them; they never come. The others' links
// and the requests go on.
TEST_F(RowLinksTest, AWorkerThatDiesWithItsRowsUnderWayDisturbsNobody) {
  ClusterOptions options = on_devices(2, 2);
  options.links = links();
  options.slice_timeout = 100ms;
  options.drafters = 2;
  std::atomic<int> made{0};
  options.drafter_wire = [&](std::unique_ptr<Transport> wire) -> std::unique_ptr<Transport> {
    if (made++ > 0) return wire;
    return std::make_unique<MortalWire>(std::move(wire), 12);
  };
  TestCluster cluster(options);
  expect_whole(cluster.run(requests(6)));
  const Totals& totals = cluster.totals();
  EXPECT_EQ(totals.workers_lost, 1);
  EXPECT_LE(totals.dropped(DropReason::kSliceMissing), 2);
  EXPECT_GT(totals.link_bytes, 604 * totals.rounds.drafted / 2);
}

// A kernel of an aborted link may still write: the next link has other slots until it has ended.
TEST_F(RowLinksTest, SlotsAreTakenAgainWhenTheirStreamsAreIdle) {
  const auto end = [](int rank) {
    return cuda::nccl_row_links(testing::fake_nccl_api(), 0,
                                {.bounds = {0, 64}, .rank = rank, .rows = 1, .slots = 1});
  };
  const RowLinks sender = end(0), receiver = end(1);
  const uint16_t* first = nullptr;
  {
    const std::string id = sender.new_id().value();
    const auto from = sender.join(id).value(), to = receiver.join(id).value();
    for (bool ready = false; !ready;) {
      const LinkState at_target = to->state();  // both ends must be asked
      ready = from->state() == LinkState::kReady && at_target == LinkState::kReady;
    }
    first = from->slot(0);
    fake_nccl().lingers = true;
    from->transfer(0, 1);
    for (int i = 0; i < 10; ++i) from->state();  // until it is on its stream
  }
  const auto while_it_writes = sender.join(sender.new_id().value()).value();
  EXPECT_NE(while_it_writes->slot(0), first);
  fake_nccl().lingers = false;
  const auto behind_it = sender.join(sender.new_id().value()).value();
  EXPECT_EQ(behind_it->slot(0), first);
}

}  // namespace
}  // namespace outrider
