// Forward passes that resume rows from the layer where they exited early. They give the bits of passes that
// compute every layer, in logits, caches and hidden states, whatever else is in the batch.
#include <gtest/gtest.h>

#include "model/cpu_model.h"
#include "tests/model/model_suite.h"

namespace outrider {
namespace {

int64_t rows_taken_up(const Model& model) { return dynamic_cast<const CpuModel&>(model).rows_taken_up(); }

constexpr int64_t kDrafted = 4;  // passes through the first layers; a draft's last token is in none

ModelOptions exit_options_of(Shard shard) {
  return {.shard = shard, .threads = 2, .bytes_per_thread = 1, .kv_tokens = 288, .aux_layers = {0, 1}};
}

// Texts beside each other, drafts for them, and the pass that verifies those.
class Batch {
 public:
  Batch(Model& model, int64_t layers) : model_(model), layers_(layers) {
    uint32_t seed = 1;
    for (const size_t known : {3u, 14u, 15u, 30u, 0u}) {
      texts_.push_back({.kv = model_.kv().create(),
                        .ids = testing::random_ids(static_cast<int>(known) + 1 + 7, vocab(), ++seed),
                        .known = known});
      const BatchSlice slice{texts_.back().kv, std::span(texts_.back().ids).first(known), 0};
      if (known > 0) {
        EXPECT_TRUE(model_.forward({&slice, 1}).ok());
      }
    }
    for (Text& text : texts_) text.verified = text.ids;
    TokenId& other = texts_[1].verified[texts_[1].known + 2];
    other = TokenId(static_cast<int32_t>((other.value() + 1) % vocab()));
  }
  ~Batch() {
    for (const Text& text : texts_) model_.kv().release(text.kv);
  }

  // All but the last text, which is a prompt.
  void draft() {
    for (size_t i = 0; i + 1 < texts_.size(); ++i)
      texts_[i].exited.begin(static_cast<int64_t>(texts_[i].known), kDrafted);
    for (size_t step = 0; step < kDrafted; ++step) {
      std::vector<BatchSlice> slices;
      std::vector<ExitedTokens*> keep;
      for (size_t i = 0; i + 1 < texts_.size(); ++i) {
        slices.push_back({texts_[i].kv, std::span(texts_[i].ids).subspan(texts_[i].known + step, 1), 1});
        keep.push_back(&texts_[i].exited);
      }
      ASSERT_TRUE(model_.forward_first(slices, layers_, keep).ok());
    }
    forget();
  }

  // Text 0 goes on as drafted, 1 with another third token, 2 is cut short, 3 branches behind its last token.
  std::vector<float> verify(bool takes_up) {
    std::vector<BatchSlice> slices;
    const std::array<size_t, 5> tokens{5, 5, 3, 6, 8};
    for (size_t i = 0; i < texts_.size(); ++i) {
      slices.push_back({.sequence = texts_[i].kv,
                        .tokens = std::span(texts_[i].verified).subspan(texts_[i].known, tokens[i]),
                        .logit_rows = 2,
                        .exited = takes_up ? &texts_[i].exited : nullptr});
      if (i == 3) slices.back().parents = kTree;
    }
    return pass(slices);
  }
  static constexpr int64_t kTakenUp = 4 + 2 + 3 + 1;

  // A pass of rows that have all exited.
  std::vector<float> go_on(bool takes_up) {
    std::vector<BatchSlice> slices;
    for (size_t i = 0; i < 4; i += 2)
      slices.push_back({.sequence = texts_[i].kv,
                        .tokens = std::span(texts_[i].ids).subspan(texts_[i].known, kDrafted - i),
                        .logit_rows = 1,
                        .exited = takes_up ? &texts_[i].exited : nullptr});
    return pass(slices);
  }

  void forget() {
    for (const Text& text : texts_) model_.kv().truncate(text.kv, static_cast<int64_t>(text.known));
  }
  // Writes over all that was forgotten.
  void reuse_blocks() {
    std::vector<KvHandle> others;
    const auto ids = testing::random_ids(60, vocab(), 77);
    while (model_.kv().free_blocks() >= kv_blocks_for(60)) {
      others.push_back(model_.kv().create());
      const BatchSlice slice{others.back(), ids, 0};
      EXPECT_TRUE(model_.forward({&slice, 1}).ok());
    }
    for (const KvHandle other : others) model_.kv().release(other);
  }
  std::vector<uint64_t> hashes() const {
    std::vector<uint64_t> out;
    for (const Text& text : texts_) out.push_back(model_.kv().content_hash(text.kv));
    return out;
  }

 private:
  struct Text {
    KvHandle kv;
    std::vector<TokenId> ids;       // as drafted
    size_t known = 0;               // number of `ids` that are in the cache
    std::vector<TokenId> verified;  // in place of `ids`
    ExitedTokens exited = {};
  };
  static constexpr std::array<int32_t, 5> kTree{-1, 0, 0, -1, 3};

  int64_t vocab() const { return model_.config().vocab_size; }
  std::vector<float> pass(std::span<const BatchSlice> slices) {
    const auto logits = model_.forward(slices);
    EXPECT_TRUE(logits.ok()) << logits.status().message();
    std::vector<float> out;
    for (int64_t r = 0; r < logits->logits.extent(0); ++r)
      out.insert(out.end(), logits->logits.row(r).begin(), logits->logits.row(r).end());
    return out;
  }

  Model& model_;
  const int64_t layers_;
  std::vector<Text> texts_;
};

void expect_same_as_whole_passes(Model& model, int64_t layers, const std::string& what) {
  Batch batch(model, layers);
  for (const bool all_exited : {false, true}) {
    const auto pass = [&](bool takes_up) {
      return all_exited ? batch.go_on(takes_up) : batch.verify(takes_up);
    };
    batch.draft();
    const auto expected = pass(false);
    const auto expected_hashes = batch.hashes();
    batch.forget();
    batch.draft();
    batch.reuse_blocks();
    const int64_t before = rows_taken_up(model);
    EXPECT_TRUE(testing::same_bits(expected, pass(true))) << what;
    EXPECT_EQ(batch.hashes(), expected_hashes) << what;
    EXPECT_EQ(rows_taken_up(model) - before, all_exited ? kDrafted + kDrafted - 2 : Batch::kTakenUp) << what;
    batch.forget();
  }
}

class Exited : public ::testing::TestWithParam<std::string> {};

TEST_P(Exited, RowsGoOnWithTheSameBits) {
  for (const int ranks : {1, 2, 4, 8})
    testing::run_group(ranks, [&](Collectives& group) {
      const auto model = testing::load_or_die(testing::golden_model(GetParam()),
                                              exit_options_of({group.rank(), ranks}), group);
      for (const int64_t layers : {int64_t{1}, model->config().num_layers})
        expect_same_as_whole_passes(
            *model, layers,
            fmt::format("{}, {} layers, rank {} of {}", GetParam(), layers, group.rank(), ranks));
    });
}

// Windows and rotations by layer, mixtures, sinks, latent attention, shared keys, and keys and values in 16
// bits.
INSTANTIATE_TEST_SUITE_P(Families, Exited,
                         ::testing::Values("qwen3", "qwen3-bf16", "gemma3", "mixtral", "gpt-oss",
                                           "deepseek-v2", "gemma4"),
                         [](const auto& of) {
                           std::string name = of.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(ExitedTokens, AreThoseOfTheirPlaceAlone) {
  const auto single = make_single_collectives();
  const auto model = testing::load_or_die(testing::golden_model("qwen3"), exit_options_of({}), *single);
  const auto ids = testing::random_ids(6, model->config().vocab_size, 3);
  const KvHandle kv = model->kv().create();
  ExitedTokens exited;
  exited.begin(0, 6);
  EXPECT_EQ(exited.count_of(0, ids), 0);
  const BatchSlice slice{kv, std::span(ids).first(3), 1};
  ExitedTokens* keep = &exited;
  ASSERT_TRUE(model->forward_first({&slice, 1}, 1, {&keep, 1}).ok());
  EXPECT_EQ(exited.count_of(0, ids), 3);
  EXPECT_EQ(exited.count_of(0, std::span(ids).first(2)), 2);
  EXPECT_EQ(exited.count_of(1, ids), 0);
  EXPECT_EQ(exited.count_of(0, std::span(ids).subspan(1)), ids[0] == ids[1] ? 1 : 0);
  exited.begin(0, 6);
  EXPECT_EQ(exited.count_of(0, ids), 0);
  model->kv().release(kv);
}

}  // namespace
}  // namespace outrider
