// The default policy with a drafter that uses the text alone and ends its drafts itself. The clock is
// virtual, and the texts have repetitive stretches. Seeds are fixed, so nothing here can fail by chance.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "coordinator/costs/settled_passes.h"
#include "coordinator/gamma/policies.h"

namespace outrider {
namespace {

constexpr double kPass = 1e-3;  // seconds that a plain pass takes

// Times in plain passes.
struct Text {
  double row = 0.02, wait = 0.05;  // of a drafted token in the pass; for the drafter's answer
  double repeats = 0.3;            // share of the text that stands in stretches of some 60 tokens
  bool probe_drafts_test = true;   // as under match rules
};

// Tokens a plain pass.
class TextPlay {
 public:
  explicit TextPlay(const Text& text, uint64_t seed = 1) : text_(text), random_(seed) {}

  double rate(GammaPolicy& policy, int rounds) {
    double seconds = 0;
    int64_t tokens = 0;
    for (int i = 0; i < rounds; ++i) {
      const int32_t gamma = policy.next(
          {.limit = 64,
           .context_length = 100,
           .cost = &cost_,
           .probe_drafts = text_.probe_drafts_test ? ProbeDraftMode::kTests : ProbeDraftMode::kCosts,
           .found = true});
      const int32_t probe_draft = gamma > 0 ? 0 : policy.probe_draft();
      asked += gamma > 0;
      const int32_t most = gamma == 0                          ? probe_draft
                           : policy.longest_suffix_match() > 0 ? policy.longest_suffix_match()
                                                               : gamma;
      auto [drafted, accepted] = look_up(most);
      if (gamma == 0) drafted = accepted = 0;
      const double verify = 1 + text_.row * drafted, wait = gamma > 0 ? text_.wait : 0;
      if (gamma > 0)
        cost_.observe_draft_phase(std::max(1, drafted), std::max(1, drafted), 0, wait * kPass),
            settled_.draft();
      if (probe_draft > 0)
        cost_.observe_probe_draft(
            {.tokens = probe_draft_.first, .busy = 0.0, .exchange = text_.wait * kPass}),
            settled_.probe_draft();
      if (settled_.next()) cost_.observe_verify(1 + drafted, 100, verify * kPass);
      seconds += verify + wait;
      tokens += accepted + 1;
      written_ += accepted + 1;
      policy.update({.proposed = gamma > 0 ? std::max(1, drafted) : 0,
                     .drafted = drafted,
                     .accepted = accepted,
                     .cost = &cost_,
                     .found = gamma > 0});
      if (probe_draft > 0)
        policy.observe_probe_draft(text_.probe_drafts_test ? probe_draft_.first : 0, probe_draft_.second);
    }
    return static_cast<double>(tokens) / seconds;
  }
  int64_t asked = 0;

 private:
  // In a stretch drafts are as long as it still is; elsewhere two tokens are found in one round of three,
  // and each is right in one case of five.
  std::pair<int32_t, int32_t> look_up(int32_t most) {
    if (written_ >= stretch_end_) {
      stretch_ = std::uniform_real_distribution<>()(random_) < text_.repeats;
      stretch_end_ = written_ + std::poisson_distribution<int64_t>(60)(random_);
    }
    int32_t drafted = 0, right = 0;
    if (stretch_) {
      drafted = right = static_cast<int32_t>(std::clamp<int64_t>(stretch_end_ - written_, 0, most));
      if (std::uniform_real_distribution<>()(random_) < 0.2) right = drafted / 2;
    } else if (std::uniform_real_distribution<>()(random_) < 1.0 / 3) {
      drafted = std::min(2, most);
      while (right < drafted && std::uniform_real_distribution<>()(random_) < 0.2) ++right;
    }
    probe_draft_ = {drafted, right};
    return {drafted, right};
  }

  Text text_;
  CostModel cost_;
  SettledPasses settled_;
  std::mt19937_64 random_;
  int64_t written_ = 0, stretch_end_ = 0;
  bool stretch_ = false;
  std::pair<int32_t, int32_t> probe_draft_;
};

// Asks in every round.
class Always : public GammaPolicy {
 public:
  int32_t next(const GammaContext&) override { return 1; }
  int32_t longest_suffix_match() const override { return 64; }
  void update(const RoundOutcome&) override {}
};

// Never behind plain decoding, and hardly behind asking in every round where that is best; mostly ahead of
// it, since stretches are noticed.
TEST(FoundDrafts, AreAskedForWhereTheyPay) {
  const auto factory = parse_gamma_policy("ewma").value();
  double least_of_plain = 2, least_of_best = 2, most_where_asking_loses = 0;
  for (const double row : {0.005, 0.25})
    for (const double wait : {0.005, 0.05, 0.3})
      for (const double repeats : {0.0, 0.02, 0.1, 0.5})
        for (const bool probe_drafts_test : {true, false}) {
          const Text text{
              .row = row, .wait = wait, .repeats = repeats, .probe_drafts_test = probe_drafts_test};
          const auto policy = factory();
          Always always;
          constexpr int kRounds = 20000;
          TextPlay play(text);
          const double rate = play.rate(*policy, kRounds), asking = TextPlay(text).rate(always, kRounds);
          SCOPED_TRACE(fmt::format("row {}, wait {}, repeats {}, shadows test {}: asked {} times", row, wait,
                                   repeats, probe_drafts_test, play.asked));
          EXPECT_GT(rate, 0.99);
          EXPECT_GT(rate, 0.95 * asking);
          least_of_plain = std::min(least_of_plain, rate);
          if (asking < 1) most_where_asking_loses = std::max(most_where_asking_loses, rate);
          least_of_best = std::min(least_of_best, rate / std::max(1.0, asking));
        }
  RecordProperty("least_of_plain", fmt::format("{:.3f}", least_of_plain));
  EXPECT_GT(most_where_asking_loses, 1.05) << "asking in the stretches alone";
  RecordProperty("most_where_asking_loses", fmt::format("{:.3f}", most_where_asking_loses));
  RecordProperty("least_of_best", fmt::format("{:.3f}", least_of_best));
}

}  // namespace
}  // namespace outrider
