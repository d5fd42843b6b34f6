// Blocks of prompts from rank to rank: whole or not at all, in any order, and only those that are meant.
#include "target_worker/block_exchange.h"

#include <gtest/gtest.h>

#include <deque>

#include "model/kv/cpu_kv_storage.h"

namespace outrider::block_exchange_test {
namespace {

// A block is 0.8 MiB: a message each. The second layer reads the first one's keys and values.
const KvShape kShape{.layers = 2,
                     .kv_heads = 2,
                     .head_dim = 3200,
                     .hidden_state_size = 8,
                     .layer_sizes = {{2, 3200, 0}, {2, 3200, 0}}};
constexpr int kBlocks = 8;
constexpr BlockSource kSource{.model = 5, .rank = 1, .ranks = 2};

struct Cache {
  Cache() : Cache(new CpuKvStorage(kShape, kBlocks)) {}
  explicit Cache(CpuKvStorage* owned) : storage(*owned), kv(std::unique_ptr<KvStorage>(owned), kBlocks) {
    sequence = kv.create();
  }
  void fill(int tokens) {
    ASSERT_TRUE(kv.append(sequence, tokens).ok());
    for (int i = 0; i < tokens; ++i) {
      const std::vector<float> row(static_cast<size_t>(kShape.head_dim), static_cast<float>(i) + 0.5f);
      for (int64_t head = 0; head < kShape.kv_heads; ++head)
        store_kv(storage.layer(0), kv.slot(sequence, i).block, kv.slot(sequence, i).slot, head, row, row);
      storage.store_hidden_state(kv.slot(sequence, i), 0, std::span(row).first(8));
    }
  }
  CpuKvStorage& storage;
  KvCache kv;
  KvHandle sequence;
};

std::vector<TokenId> text(int length) {
  std::vector<TokenId> ids;
  for (int i = 0; i < length; ++i) ids.emplace_back(3 * i % 17);
  return ids;
}

class BlockExchange : public ::testing::Test {
 protected:
  void SetUp() override { from_.fill(70); }
  BlockSender::Connect connect() {
    return [hub = hub_](uint64_t inbox) -> Result<std::unique_ptr<Transport>> {
      if (inbox != 7) return invalid_argument("there is no such inbox");
      return hub->connect();
    };
  }
  BlockInbox inbox(int64_t most_blocks = kBlocks, BlockSource source = kSource) {
    const int64_t size = from_.kv.block_bytes();
    return {hub_->coordinator_end(),
            {.source = source, .block_bytes = size, .most_bytes = most_blocks * size}};
  }
  static Clock::time_point soon() { return Clock::now() + std::chrono::seconds(30); }

  std::shared_ptr<InprocHub> hub_ = make_inproc_hub({.high_water_mark = 64});
  Cache from_, to_;
  const std::vector<TokenId> ids_ = text(70);
  BlockSender sender_{connect(), {.source = kSource}};
};

TEST_F(BlockExchange, BlocksArriveWithTheirBits) {
  BlockInbox inbox = this->inbox();
  const BlockExport all{.transfer = 1, .first = Position(16), .count = 48, .inbox = 7};
  EXPECT_EQ(sender_.send(all, ids_, from_.kv, from_.sequence, soon()), 3 * from_.kv.block_bytes());
  to_.fill(32);  // its first two blocks: the second is there already
  const BlockImport rest{.transfer = 1, .first = Position(32), .count = 32};
  ASSERT_TRUE(inbox.has(rest, ids_, soon()));
  EXPECT_EQ(inbox.bytes(), 3 * from_.kv.block_bytes());
  ASSERT_TRUE(to_.kv.append(to_.sequence, 32).ok());
  inbox.take(rest, to_.kv, to_.sequence);
  EXPECT_EQ(inbox.bytes(), 0);
  from_.kv.truncate(from_.sequence, 64);
  EXPECT_EQ(to_.kv.content_hash(to_.sequence), from_.kv.content_hash(from_.sequence));
  std::vector<float> state(8);
  to_.storage.read_hidden_state(to_.kv.slot(to_.sequence, 63), state);
  EXPECT_EQ(state.back(), 63.5f);
  EXPECT_FALSE(inbox.has(rest, ids_, Clock::now()));
}

TEST_F(BlockExchange, BlocksOfAnotherTextModelOrRankAreNotTaken) {
  BlockInbox inbox = this->inbox();
  const BlockExport all{.transfer = 1, .first = Position(0), .count = 64, .inbox = 7};
  EXPECT_GT(sender_.send(all, ids_, from_.kv, from_.sequence, soon()), 0);
  const BlockImport wanted{.transfer = 1, .first = Position(0), .count = 64};
  auto other = ids_;
  other[40] = TokenId(99);
  inbox.look();
  EXPECT_FALSE(inbox.has({.sequence = SequenceId(9), .transfer = 1, .first = Position(0), .count = 64}, other,
                         Clock::now()));
  EXPECT_TRUE(inbox.has(wanted, ids_, soon()));
  EXPECT_FALSE(inbox.has({.transfer = 2, .first = Position(0), .count = 64}, ids_, Clock::now()));
  EXPECT_FALSE(inbox.has({.transfer = 1, .first = Position(0), .count = 48}, ids_, Clock::now()));
  for (const BlockSource source :
       {BlockSource{.model = 6, .rank = 1, .ranks = 2}, BlockSource{.model = 5, .rank = 0, .ranks = 2},
        BlockSource{.model = 5, .rank = 1, .ranks = 4}}) {
    const auto hub = std::exchange(hub_, make_inproc_hub({.high_water_mark = 64}));
    BlockInbox strange = this->inbox(kBlocks, source);
    BlockSender sender(connect(), {.source = kSource});
    EXPECT_GT(sender.send(all, ids_, from_.kv, from_.sequence, soon()), 0);
    EXPECT_FALSE(strange.has(wanted, ids_, Clock::now() + std::chrono::milliseconds(20)));
    hub_ = hub;
  }
}

// A block that was lost, and blocks of a wrong size or place.
TEST_F(BlockExchange, PartsAreNotTaken) {
  BlockInbox inbox = this->inbox();
  EXPECT_GT(sender_.send({.transfer = 1, .first = Position(0), .count = 32, .inbox = 7}, ids_, from_.kv,
                         from_.sequence, soon()),
            0);
  const BlockImport wanted{.transfer = 1, .first = Position(0), .count = 64};
  EXPECT_FALSE(inbox.has(wanted, ids_, Clock::now() + std::chrono::milliseconds(20)));
  const auto liar = hub_->connect();
  const auto size = static_cast<size_t>(from_.kv.block_bytes());
  for (const KvBlocks& lie :
       {KvBlocks{.transfer = 1, .first = 2, .count = 2, .name = 1, .bytes = std::vector<uint8_t>(2 * size)},
        KvBlocks{.transfer = 1, .first = 2, .count = 2, .name = 1, .bytes = std::vector<uint8_t>(size)},
        KvBlocks{.transfer = 1, .first = -1, .count = 1, .name = 1, .bytes = std::vector<uint8_t>(size)},
        KvBlocks{.transfer = 1, .first = 1 << 30, .count = 1, .bytes = std::vector<uint8_t>(size)},
        KvBlocks{.transfer = 1, .first = 0, .count = -1, .name = 1, .bytes = {}}})
    ASSERT_TRUE(liar->send(kCoordinatorPeer, lie).ok());
  EXPECT_FALSE(inbox.has(wanted, ids_, Clock::now() + std::chrono::milliseconds(20)));
  EXPECT_LE(inbox.bytes(), 5 * from_.kv.block_bytes());
  EXPECT_EQ(to_.kv.length(to_.sequence), 0);
}

TEST_F(BlockExchange, AnInboxIsBounded) {
  BlockInbox inbox = this->inbox(5);
  for (uint64_t transfer = 1; transfer <= 4; ++transfer)
    EXPECT_GT(sender_.send({.transfer = transfer, .first = Position(0), .count = 32, .inbox = 7}, ids_,
                           from_.kv, from_.sequence, soon()),
              0);
  inbox.look();
  EXPECT_EQ(inbox.bytes(), 4 * from_.kv.block_bytes());  // the last two of two blocks each
  EXPECT_FALSE(inbox.has({.transfer = 2, .first = Position(0), .count = 32}, ids_, Clock::now()));
  EXPECT_TRUE(inbox.has({.transfer = 3, .first = Position(0), .count = 32}, ids_, Clock::now()));
  EXPECT_TRUE(inbox.has({.transfer = 4, .first = Position(0), .count = 32}, ids_, Clock::now()));
}

// Blocks that has() found stay until take(), even if the inbox fills up meanwhile.
TEST_F(BlockExchange, BlocksThatWereFoundAreNotDroppedForOthers) {
  BlockInbox inbox = this->inbox(4);
  const auto send = [&](uint64_t transfer, int count) {
    EXPECT_GT(sender_.send({.transfer = transfer, .first = Position(0), .count = count, .inbox = 7}, ids_,
                           from_.kv, from_.sequence, soon()),
              0);
  };
  const auto wanted = [](uint64_t transfer, int count) {
    return BlockImport{.transfer = transfer, .first = Position(0), .count = count};
  };
  send(1, 32);
  EXPECT_TRUE(inbox.has(wanted(1, 32), ids_, soon()));
  send(2, 48);  // one block more than there is room for
  EXPECT_FALSE(inbox.has(wanted(2, 48), ids_, Clock::now() + std::chrono::milliseconds(20)));
  ASSERT_TRUE(to_.kv.append(to_.sequence, 32).ok());
  inbox.take(wanted(1, 32), to_.kv, to_.sequence);
  from_.kv.truncate(from_.sequence, 32);
  EXPECT_EQ(to_.kv.content_hash(to_.sequence), from_.kv.content_hash(from_.sequence));
  from_.fill(32);
  send(3, 48);  // not taken before the next look: oldest again
  inbox.look();
  send(4, 48);
  EXPECT_TRUE(inbox.has(wanted(4, 48), ids_, soon()));
}

// Messages from memory, in this order.
class Queue final : public Transport {
 public:
  Status send(PeerId, const Message&) override { return unavailable("it only receives"); }
  std::optional<Incoming> receive(Clock::time_point) override {
    if (messages.empty()) return std::nullopt;
    Incoming incoming{.peer = PeerId{1}, .message = std::move(messages.front())};
    messages.pop_front();
    ++received;
    return incoming;
  }
  const TransportStats& stats() const override { return stats_; }

  std::deque<Message> messages;
  int received = 0;

 private:
  TransportStats stats_;
};

// Parts of a block each, in order, backwards and in pairs: each token is hashed once.
TEST(BlockTransfer, EachTokenIsHashedOnceHoweverManyPartsThereAre) {
  constexpr int kParts = 2000;
  const auto ids = text(kParts * static_cast<int>(kBlockTokens) + 5);
  std::vector<Message> parts;
  BlockNames names(kSource);
  for (int i = 0; i < kParts; ++i)
    parts.emplace_back(KvBlocks{
        .transfer = 1, .first = i, .count = 1, .name = names.up_to(ids, i + 1), .bytes = {0, 0, 0, 0}});
  for (const int order : {0, 1, 2}) {
    const auto queue = std::make_shared<Queue>();
    BlockInbox inbox(queue, {.source = kSource, .block_bytes = 4, .most_bytes = 4 * kParts});
    const BlockImport wanted{.transfer = 1, .first = Position(0), .count = kParts * int{kBlockTokens}};
    for (int i = 0; i < kParts; ++i) {
      queue->messages.push_back(parts[static_cast<size_t>(order == 0   ? i
                                                          : order == 1 ? kParts - 1 - i
                                                                       : i ^ 1)]);
      EXPECT_EQ(inbox.has(wanted, ids, Clock::now() + std::chrono::hours(1)), i == kParts - 1);
    }
    EXPECT_EQ(inbox.tokens_hashed(), kParts * kBlockTokens) << "order " << order;
  }
}

// The second half of the transfer belongs to another text. One hash finds this out, not one for each message.
TEST(BlockTransfer, PartsOfAnotherTextAreHashedOnce) {
  constexpr int kParts = 500;
  const auto ids = text(kParts * static_cast<int>(kBlockTokens));
  const auto queue = std::make_shared<Queue>();
  BlockInbox inbox(queue, {.source = kSource, .block_bytes = 4, .most_bytes = 4 * kParts});
  for (int i = 0; i < kParts; ++i) {
    queue->messages.emplace_back(
        KvBlocks{.transfer = 1, .first = 300 + i, .count = 1, .name = 1, .bytes = {0, 0, 0, 0}});
    EXPECT_FALSE(inbox.has({.transfer = 1, .first = Position(300 * int{kBlockTokens}), .count = 64}, ids,
                           Clock::now() + std::chrono::hours(1)));
  }
  EXPECT_EQ(inbox.tokens_hashed(), 301 * kBlockTokens);
}

TEST(BlockTransfer, AQueueThatIsNeverEmptyDoesNotHoldUpARankBeyondTheDeadline) {
  const auto queue = std::make_shared<Queue>();
  BlockInbox inbox(queue, {.source = kSource, .block_bytes = 4, .most_bytes = 400});
  for (int i = 0; i < 10'000; ++i) queue->messages.emplace_back(Shutdown{});
  const auto ids = text(16);
  EXPECT_FALSE(inbox.has({.transfer = 1, .first = Position(0), .count = 16}, ids, Clock::now()));
  EXPECT_EQ(queue->received, 0);
  inbox.look();
  EXPECT_LT(queue->received, 5000);
}

TEST_F(BlockExchange, ATextIsHashedOnceForAllItsParts) {
  BlockInbox inbox = this->inbox();
  EXPECT_GT(sender_.send({.transfer = 1, .first = Position(16), .count = 48, .inbox = 7}, ids_, from_.kv,
                         from_.sequence, soon()),
            0);
  EXPECT_EQ(sender_.tokens_hashed(), 64);
}

// A connection that is full a number of times, or from some message on.
class FullWire final : public Transport {
 public:
  FullWire(std::unique_ptr<Transport> inner, int& refusals) : inner_(std::move(inner)), refusals_(refusals) {}
  Status send(PeerId to, const Message& message) override {
    if (refusals_ == 0) return inner_->send(to, message);
    --refusals_;
    return resource_exhausted("the test's queue is full");
  }
  std::optional<Incoming> receive(Clock::time_point deadline) override { return inner_->receive(deadline); }
  const TransportStats& stats() const override { return inner_->stats(); }

 private:
  const std::unique_ptr<Transport> inner_;
  int& refusals_;
};

TEST_F(BlockExchange, AFullInboxIsWaitedForUntilTheDeadlineAndKept) {
  int refusals = 0, connections = 0;
  BlockSender sender(
      [&](uint64_t) -> Result<std::unique_ptr<Transport>> {
        ++connections;
        return std::unique_ptr<Transport>(std::make_unique<FullWire>(hub_->connect(), refusals));
      },
      {.source = kSource});
  BlockInbox inbox = this->inbox();
  const auto send = [&](uint64_t transfer, Clock::time_point deadline) {
    return sender.send({.transfer = transfer, .first = Position(0), .count = 32, .inbox = 7}, ids_, from_.kv,
                       from_.sequence, deadline);
  };
  refusals = 3;
  EXPECT_GT(send(1, soon()), 0);
  EXPECT_EQ(refusals, 0);
  refusals = 3;
  EXPECT_EQ(send(2, Clock::now()), 0);  // this transfer alone
  EXPECT_EQ(refusals, 2);
  refusals = 0;
  EXPECT_GT(send(3, Clock::now()), 0);
  EXPECT_EQ(connections, 1);
  for (const uint64_t transfer : {1, 3})
    EXPECT_TRUE(inbox.has({.transfer = transfer, .first = Position(0), .count = 32}, ids_, soon()));
}

TEST_F(BlockExchange, AnInboxThatIsNotThereIsTriedAgainAfterAPause) {
  int tries = 0;
  Clock::time_point now = Clock::now();
  BlockInbox inbox = this->inbox();
  BlockSender sender(
      [&](uint64_t) -> Result<std::unique_ptr<Transport>> {
        if (++tries < 3) return unavailable("nobody is there");
        return hub_->connect();
      },
      {.source = kSource, .pause = std::chrono::seconds(30), .now = [&now] { return now; }});
  const auto send = [&] {
    return sender.send({.transfer = 1, .first = Position(0), .count = 32, .inbox = 7}, ids_, from_.kv,
                       from_.sequence, soon());
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(send(), 0);
  EXPECT_EQ(tries, 1);
  now += std::chrono::seconds(29);
  EXPECT_EQ(send(), 0);
  EXPECT_EQ(tries, 1);
  now += std::chrono::seconds(2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(send(), 0);
  EXPECT_EQ(tries, 2);
  now += std::chrono::seconds(31);
  EXPECT_GT(send(), 0);
  EXPECT_GT(send(), 0);
  EXPECT_EQ(tries, 3);
}

}  // namespace
}  // namespace outrider::block_exchange_test
