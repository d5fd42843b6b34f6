#include "model/led_model.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/log.h"
#include "base/log_line.h"
#include "model/logits_gathering.h"

namespace outrider {
namespace {

constexpr size_t kMaxOrderBytes = size_t{64} << 20;
constexpr size_t kMaxCalls = 4096;  // KV cache calls collected between two passes before they are broadcast

enum class Order : int64_t { kForward, kCalls, kEnd };

// The leader's next order, as words that all ranks decode alike: the order, the free blocks of the KV cache,
// the cache's calls since the last order, and the slices of a pass.
class OrderWriter {
 public:
  void begin(Order order, const KvCache& kv, std::span<const KvCall> calls) {
    words_.clear();
    add(static_cast<int64_t>(order));
    add(kv.free_blocks());
    add(static_cast<int64_t>(calls.size()));
    for (const KvCall& call : calls) {
      add(static_cast<int64_t>(call.kind));
      add(call.handle.index);
      add(call.length);
    }
  }

  void add(std::span<const BatchSlice> batch) {
    add(static_cast<int64_t>(batch.size()));
    for (const BatchSlice& slice : batch) {
      add(slice.sequence.index);
      add(slice.logit_rows);
      add(slice.hidden_only ? 1 : 0);
      add(static_cast<int64_t>(slice.tokens.size()));
      add(static_cast<int64_t>(slice.parents.size()));
      for (const TokenId token : slice.tokens) add(token.value());
      for (const int32_t parent : slice.parents) add(parent);
    }
  }

  void tell(Collectives& group) {
    bytes_.resize(words_.size() * sizeof(int64_t));
    std::memcpy(bytes_.data(), words_.data(), bytes_.size());
    group.broadcast_message(bytes_, 0, kMaxOrderBytes);
  }

 private:
  void add(int64_t word) { words_.push_back(word); }

  std::vector<int64_t> words_;
  std::vector<std::byte> bytes_;
};

// Reads an order. All ranks run the same program, so a malformed order is a programming error.
class OrderReader {
 public:
  void receive(Collectives& group) {
    group.broadcast_message(bytes_, 0, kMaxOrderBytes);
    words_.resize(bytes_.size() / sizeof(int64_t));
    std::memcpy(words_.data(), bytes_.data(), words_.size() * sizeof(int64_t));
    at_ = 0;
  }

  int64_t next() {
    CHECK(at_ < words_.size(), "an order of {} words", words_.size());
    return words_[at_++];
  }

  void replay_calls(KvCache& kv) {
    for (int64_t count = next(); count > 0; --count) {
      const auto kind = static_cast<KvCall::Kind>(next());
      const KvHandle handle{static_cast<int32_t>(next())};
      kv.replay({.kind = kind, .handle = handle, .length = next()});
    }
  }

  // Valid until the next order.
  std::span<const BatchSlice> batch() {
    slices_.clear();
    tokens_.clear();
    parents_.clear();
    tokens_.reserve(words_.size());  // slices point into them
    parents_.reserve(words_.size());
    for (int64_t count = next(); count > 0; --count) slices_.push_back(slice());
    return slices_;
  }

 private:
  BatchSlice slice() {
    BatchSlice slice{.sequence = {static_cast<int32_t>(next())}, .tokens = {}};
    slice.logit_rows = next();
    slice.hidden_only = next() != 0;
    const auto tokens = static_cast<size_t>(next()), parents = static_cast<size_t>(next());
    for (size_t i = 0; i < tokens; ++i) tokens_.emplace_back(static_cast<int32_t>(next()));
    for (size_t i = 0; i < parents; ++i) parents_.push_back(static_cast<int32_t>(next()));
    slice.tokens = std::span(tokens_).last(tokens);
    slice.parents = std::span(parents_).last(parents);
    return slice;
  }

  std::vector<std::byte> bytes_;
  std::vector<int64_t> words_;
  size_t at_ = 0;
  std::vector<BatchSlice> slices_;
  std::vector<TokenId> tokens_;
  std::vector<int32_t> parents_;
};

class LedModel final : public Model {
 public:
  LedModel(std::unique_ptr<Model> shard, Collectives& group)
      : shard_(std::move(shard)), group_(group), gathering_(group, shard_->config().vocab_size) {
    shard_->kv().record(calls_);
  }
  ~LedModel() override {
    try {
      tell(Order::kEnd);
    } catch (const CollectiveError& error) {
      log_line(LogLevel::kDebug, "a model over several ranks ends: {}", error.what());
    }
  }

  // A pass that there is no room for fails on all ranks alike, before they need each other.
  Result<LogitsShard> forward(std::span<const BatchSlice> batch) override {
    order_.begin(Order::kForward, shard_->kv(), calls_);
    order_.add(batch);
    order_.tell(group_);
    calls_.clear();
    ASSIGN_OR_RETURN(const LogitsShard mine, shard_->forward(batch));
    const int64_t all = mine.vocab_size;
    gathering_.exchange(mine);
    return LogitsShard{
        .logits = gathering_.rows(), .vocab_range = {0, all}, .vocab_size = all, .hidden = mine.hidden};
  }

  KvCache& kv() override {
    if (calls_.size() >= kMaxCalls) tell_calls();
    return shard_->kv();
  }
  const ModelConfig& config() const override { return shard_->config(); }
  int64_t max_positions() const override { return shard_->max_positions(); }
  int64_t max_rows() const override { return shard_->max_rows(); }
  int64_t max_logit_rows() const override { return shard_->max_logit_rows(); }
  int64_t weight_bytes() const override { return shard_->weight_bytes(); }
  int threads() const override { return shard_->threads(); }
  std::string isa() const override { return shard_->isa(); }

 private:
  // A group that fails here fails in the next pass too, whose caller is ready for it.
  void tell_calls() {
    try {
      tell(Order::kCalls);
    } catch (const CollectiveError& error) {
      log_line(LogLevel::kDebug, "a model over several ranks: {}", error.what());
      calls_.clear();
    }
  }
  void tell(Order order) {
    order_.begin(order, shard_->kv(), calls_);
    order_.tell(group_);
    calls_.clear();
  }

  std::vector<KvCall> calls_;  // of the cache, since the last order
  const std::unique_ptr<Model> shard_;
  Collectives& group_;
  LogitsGathering gathering_;
  OrderWriter order_;
};

}  // namespace

std::unique_ptr<Model> make_led_model(std::unique_ptr<Model> shard, Collectives& group) {
  CHECK(group.rank() == 0, "rank {} does not lead", group.rank());
  return std::make_unique<LedModel>(std::move(shard), group);
}

Status follow_leader(Model& shard, Collectives& group) {
  LogitsGathering gathering(group, shard.config().vocab_size);
  OrderReader order;
  while (true) {
    order.receive(group);
    const auto what = static_cast<Order>(order.next());
    const int64_t free_blocks = order.next();
    order.replay_calls(shard.kv());
    if (what == Order::kEnd) return {};
    if (shard.kv().free_blocks() != free_blocks)
      return malformed(fmt::format("rank {} of a model has {} free KV blocks, its leader {}", group.rank(),
                                   shard.kv().free_blocks(), free_blocks));
    if (what != Order::kForward) continue;
    if (const auto logits = shard.forward(order.batch()); logits.ok()) gathering.exchange(*logits);
  }
}

}  // namespace outrider
