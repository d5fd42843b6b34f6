// A model over several ranks that follow one leader: every sequence of operations gives the bits of one rank.
#include "model/led_model.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "tests/model/model_suite.h"

namespace outrider {
namespace {

constexpr int64_t kTokens = 512;

ModelOptions options_of(Shard shard = {}) {
  return {.shard = shard, .threads = 1, .max_positions = 64, .kv_tokens = kTokens, .stand_in = TokenId(0)};
}

// The ranks as threads; a follower ends as its group is left.
class LedRanks {
 public:
  LedRanks(const std::string& name, int ranks) : group_(make_thread_collectives(ranks)) {
    for (int r = 1; r < ranks; ++r)
      followers_.emplace_back([this, name, r, ranks] {
        try {
          const auto shard =
              testing::load_or_die(testing::golden_model(name), options_of({r, ranks}), *group_[r]);
          const Status status = follow_leader(*shard, *group_[r]);
          EXPECT_TRUE(status.ok()) << status.message();
          EXPECT_EQ(shard->kv().free_blocks(), shard->kv().num_blocks())
              << "what the leader released is free";
        } catch (const CollectiveError&) {
          lost_ = true;
        }
      });
    model = make_led_model(
        testing::load_or_die(testing::golden_model(name), options_of({0, ranks}), *group_[0]), *group_[0]);
  }
  ~LedRanks() {
    model.reset();
    for (std::thread& follower : followers_) follower.join();
  }
  void lose_rank(int r) { group_[static_cast<size_t>(r)]->abort(); }
  bool lost() const { return lost_; }

  std::unique_ptr<Model> model;

 private:
  std::vector<std::unique_ptr<Collectives>> group_;
  std::vector<std::thread> followers_;
  std::atomic<bool> lost_ = false;
};

// Imitates a drafter at random: it opens, prefills, forks, truncates and closes sequences, in batches of any
// shape.
class RandomUser {
 public:
  explicit RandomUser(Model& model, uint32_t seed) : model_(model), random_(seed) {}

  // The logits of all rows; nothing where there was no room.
  std::vector<float> act() {
    const int what = pick(8);
    if (open_.empty() || what == 0) {
      if (open_.size() < 24) open_.push_back(model_.kv().create());
    } else if (what == 1) {
      open_.push_back(model_.kv().fork(open_[any()]));
    } else if (what == 2) {
      const size_t i = any();
      model_.kv().truncate(open_[i], pick(static_cast<int>(model_.kv().length(open_[i])) + 1));
    } else if (what == 3 && open_.size() > 4) {
      const size_t i = any();
      model_.kv().release(open_[i]);
      open_.erase(open_.begin() + static_cast<ptrdiff_t>(i));
    } else {
      return pass();
    }
    return {};
  }
  void close() {
    for (const KvHandle handle : open_) model_.kv().release(handle);
    open_.clear();
  }
  int64_t refused() const { return refused_; }

 private:
  std::vector<float> pass() {
    std::vector<std::vector<TokenId>> ids;
    std::vector<BatchSlice> batch;
    ids.reserve(open_.size());
    static constexpr int32_t kTree[]{-1, 0, 0};
    for (const KvHandle handle : open_) {
      const int64_t room = model_.max_positions() - model_.kv().length(handle);
      const int64_t count = std::min<int64_t>(room, 1 + pick(6));
      if (count < 1 || pick(2) == 0) continue;
      auto& tokens = ids.emplace_back();
      for (int64_t i = 0; i < count; ++i)
        tokens.emplace_back(pick(static_cast<int>(model_.config().vocab_size) + 2));  // some are unknown
      BatchSlice& slice = batch.emplace_back(BatchSlice{handle, tokens, pick(static_cast<int>(count) + 1)});
      if (count >= 3 && pick(4) == 0) slice.parents = kTree;
    }
    if (batch.empty()) return {};
    std::vector<int64_t> before;
    for (const BatchSlice& slice : batch) before.push_back(model_.kv().length(slice.sequence));
    const auto logits = model_.forward(batch);
    if (!logits.ok()) {
      ++refused_;
      return {};
    }
    std::vector<float> out;
    for (int64_t row = 0; row < logits->logits.extent(0); ++row) {
      const auto values = logits->logits.row(row);
      out.insert(out.end(), values.begin(), values.end());
      const auto state = logits->hidden.row(row);
      out.insert(out.end(), state.begin(), state.end());
    }
    for (size_t i = 0; i < batch.size(); ++i)
      if (!batch[i].parents.empty()) model_.kv().truncate(batch[i].sequence, before[i]);
    return out;
  }
  int pick(int below) { return static_cast<int>(random_() % static_cast<uint32_t>(below)); }
  size_t any() { return static_cast<size_t>(pick(static_cast<int>(open_.size()))); }

  Model& model_;
  std::mt19937 random_;
  std::vector<KvHandle> open_;
  int64_t refused_ = 0;
};

TEST(LedModel, GivesTheBitsOfOneRankWhateverIsDone) {
  for (const std::string name : {"qwen3", "llama-bias", "qwen3-bf16"})
    for (const int ranks : {2, 4, 8}) {
      const auto single = make_single_collectives();
      const auto alone = testing::load_or_die(testing::golden_model(name), options_of(), *single);
      LedRanks led(name, ranks);
      RandomUser expected(*alone, 7), actual(*led.model, 7);
      size_t floats = 0;
      for (int i = 0; i < 400; ++i) {
        const auto logits = expected.act();
        ASSERT_TRUE(testing::same_bits(logits, actual.act())) << name << " " << ranks << ", act " << i;
        floats += logits.size();
      }
      EXPECT_GT(floats, 10'000u);
      EXPECT_GT(expected.refused(), 0) << "some passes find no room";
      EXPECT_EQ(expected.refused(), actual.refused());
      actual.close();
    }
}

// Thousands of sequences come and go without a pass: what is to be told does not grow without end.
TEST(LedModel, TellsManyCallsWithoutAPass) {
  LedRanks led("qwen3", 2);
  for (int i = 0; i < 20'000; ++i) led.model->kv().release(led.model->kv().create());
  RandomUser user(*led.model, 3);
  for (int i = 0; i < 50; ++i) (void)user.act();
  user.close();
}

TEST(LedModel, ARankThatIsGoneEndsAllOthers) {
  for (const int gone : {0, 1, 3}) {
    LedRanks led("qwen3", 4);
    const KvHandle sequence = led.model->kv().create();
    const std::vector<TokenId> ids{TokenId(3), TokenId(4)};
    const BatchSlice slice{sequence, ids, 1};
    ASSERT_TRUE(led.model->forward({&slice, 1}).ok());
    led.lose_rank(gone);
    EXPECT_THROW((void)led.model->forward({&slice, 1}), CollectiveError);
  }
}

}  // namespace
}  // namespace outrider
