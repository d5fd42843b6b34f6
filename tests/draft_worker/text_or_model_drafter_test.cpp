#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "base/hash.h"
#include "draft_worker/text/text_drafter.h"

namespace outrider {
namespace {

constexpr SequenceId kOnly(1);
constexpr int kPrompt = 40;

// A text of which stretches were there before: each piece of eight tokens with this chance.
std::vector<TokenId> text_with_repeats(double chance, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> text;
  while (text.size() < 2500) {
    const bool repeats = text.size() > 200 && random() % 1000 < 1000 * chance;
    const size_t from = repeats ? random() % (text.size() - 100) : 0, length = repeats ? 40 : 8;
    for (size_t i = 0; i < length; ++i)
      text.push_back(repeats ? text[from + i] : TokenId(static_cast<int32_t>(random() % 5000)));
  }
  return text;
}

// A draft model that is right about each token of the text with one chance, and takes its time.
class FakeModel final : public Drafter {
 public:
  FakeModel(const std::vector<TokenId>& text, double acceptance, int64_t token_ns)
      : text_(text), acceptance_(acceptance), token_ns_(token_ns) {}
  Status open(const Open& open) override {
    read_ = open.ids.size();
    ++opened;
    return {};
  }
  void close(SequenceId) override {}
  Status begin(const Propose& propose) override {
    const auto base = static_cast<size_t>(propose.base.value());
    if (base - propose.committed.size() > read_) return malformed("a gap");
    read_ = base;
    Draft draft{.sequence = propose.sequence, .round = propose.round, .base = propose.base};
    for (size_t i = base; draft.ids.size() < static_cast<size_t>(propose.gamma); ++i)
      draft.ids.push_back(i < text_.size() && random_() % 1000 < 1000 * acceptance_ ? text_[i]
                                                                                    : TokenId(6000));
    draft.draft_ns = token_ns_ * propose.gamma;
    answer_ = DraftAnswer{.status = {}, .draft = std::move(draft), .wanted = propose.gamma > 0};
    return {};
  }
  bool work(std::vector<DraftAnswer>& answers) override {
    if (!answer_) return false;
    answers.push_back(*std::exchange(answer_, std::nullopt));
    return true;
  }
  Resync held(SequenceId sequence) const override { return {.sequence = sequence}; }
  int32_t max_context() const override { return 1 << 20; }
  int opened = 0;
  size_t read() const { return read_; }

 private:
  const std::vector<TokenId>& text_;
  const double acceptance_;
  const int64_t token_ns_;
  size_t read_ = 0;
  std::mt19937 random_{7};
  std::optional<DraftAnswer> answer_;
};

struct Costs {
  int64_t pass = 1'000'000, row = 50'000, draft = 100'000;  // ns; of a drafted token
};

// Tokens a second of a run over the text with drafts of this drafter.
double rate_of(const std::vector<TokenId>& text, Drafter& drafter, int32_t gamma, int32_t text_gamma,
               const Costs& costs) {
  const std::vector<TokenId> prompt(text.begin(), text.begin() + kPrompt);
  EXPECT_TRUE(
      drafter.open({.sequence = kOnly, .ids = prompt, .prompt_length = kPrompt, .sampling = {}}).ok());
  size_t base = kPrompt, known = base;
  int64_t ns = 0;
  for (uint32_t round = 1; base + 1 < text.size(); ++round) {
    Draft draft;
    if (gamma > 0 || text_gamma > 0) {
      EXPECT_TRUE(drafter
                      .begin({.sequence = kOnly,
                              .round = Round(round),
                              .base = Position(static_cast<int32_t>(base)),
                              .committed = {text.begin() + static_cast<ptrdiff_t>(known),
                                            text.begin() + static_cast<ptrdiff_t>(base)},
                              .gamma = gamma,
                              .text_gamma = text_gamma,
                              .pass_ns = costs.pass,
                              .row_ns = costs.row})
                      .ok());
      std::vector<DraftAnswer> answers;
      while (drafter.work(answers)) continue;
      EXPECT_EQ(answers.size(), 1u);
      draft = answers.at(0).draft;
      EXPECT_LE(draft.ids.size(), static_cast<size_t>(draft.from_text ? text_gamma : gamma));
      known = base;
    }
    size_t right = 0;
    while (right < draft.ids.size() && base + right + 1 < text.size() &&
           draft.ids[right] == text[base + right])
      ++right;
    ns += costs.pass + costs.row * static_cast<int64_t>(draft.ids.size()) + draft.draft_ns;
    base += right + 1;
  }
  return static_cast<double>(base - kPrompt) / (static_cast<double>(ns) * 1e-9);
}

std::unique_ptr<Drafter> both(const std::vector<TokenId>& text, double acceptance, int64_t draft_ns) {
  return make_text_or_model_drafter(std::make_unique<FakeModel>(text, acceptance, draft_ns),
                                    make_suffix_guesser({}));
}

// Whatever the text and whatever things cost it is as good as the better of the two, and where both have
// their stretches better than either.
TEST(TextOrModelDrafter, IsNeverBehindTheBetterOfBoth) {
  double least = 2, most = 0;
  for (const double repeats : {0.0, 0.1, 0.5})
    for (const double acceptance : {0.3, 0.6, 0.85})
      for (const int64_t draft_ns : {20'000, 300'000})
        for (const int64_t row_ns : {10'000, 250'000}) {
          const Costs costs{.row = row_ns, .draft = draft_ns};
          const auto text = text_with_repeats(repeats, 3);
          double model = 0;
          int32_t best_gamma = 0;
          for (const int32_t gamma : {0, 1, 2, 4, 8}) {  // as a policy that knows all would choose
            FakeModel alone(text, acceptance, draft_ns);
            const double rate = rate_of(text, alone, gamma, 0, costs);
            if (rate > model) model = rate, best_gamma = gamma;
          }
          const double suffix = rate_of(text, *both(text, acceptance, draft_ns), 0, 16, costs);
          const double mixed = rate_of(text, *both(text, acceptance, draft_ns), best_gamma, 16, costs);
          const double gain = mixed / std::max(model, suffix);
          EXPECT_GT(gain, 0.97) << repeats << " " << acceptance << " " << draft_ns << " " << row_ns << ": "
                                << model << " " << suffix << " " << mixed;
          least = std::min(least, gain);
          most = std::max(most, gain);
        }
  EXPECT_GT(most, 1.15);
  RecordProperty("least", std::to_string(least));
  RecordProperty("most", std::to_string(most));
}

TEST(TextOrModelDrafter, TheModelReadsWhatItMissed) {
  const auto text = text_with_repeats(0.5, 4);
  auto fake = std::make_unique<FakeModel>(text, 0.5, 100'000);
  FakeModel& model = *fake;
  const auto drafter = make_text_or_model_drafter(std::move(fake), make_suffix_guesser({}));
  rate_of(text, *drafter, 4, 16, {});
  EXPECT_EQ(model.opened, 1) << "it was never behind";
  EXPECT_GT(model.read(), 2000u);
}

// The rules that need q, and trees, take the model's drafts.
TEST(TextOrModelDrafter, ThePqRulesAndTreesTakeTheModel) {
  const std::vector<TokenId> text(200, TokenId(3));
  for (const bool tree : {false, true}) {
    const auto drafter = both(text, 1, 100);
    ASSERT_TRUE(drafter->open({.sequence = kOnly, .ids = text, .prompt_length = 100, .sampling = {}}).ok());
    Propose propose{.sequence = kOnly,
                    .round = Round(1),
                    .base = Position(200),
                    .gamma = 2,
                    .q_kind = tree ? QKind::kNone : QKind::kSparse,
                    .tree = {.nodes = tree ? 4 : 0},
                    .text_gamma = 16,
                    .pass_ns = 1'000'000};
    ASSERT_TRUE(drafter->begin(propose).ok());
    std::vector<DraftAnswer> answers;
    while (drafter->work(answers)) continue;
    EXPECT_FALSE(answers.at(0).draft.from_text);
    EXPECT_EQ(answers.at(0).draft.ids.size(), 2u);
  }
}

}  // namespace
}  // namespace outrider
