// Each sequence chooses between kinds of drafters by their measured gain.
#include "coordinator/choices/drafter_choice.h"

#include <gtest/gtest.h>

#include <vector>

namespace outrider {
namespace {

constexpr DrafterKind kModel = 11, kNgram = 22;

// Rounds of `sequences` sequences in turn; a round of kind k takes 1 ms and emits rates[k] tokens in the
// mean.
struct Play {
  std::map<DrafterKind, double> rates;
  GoodputByKind run;
  std::map<DrafterKind, int> chosen;
  double owed = 0;

  void rounds(DrafterChoice& choice, std::span<const DrafterKind> available, int count) {
    for (int i = 0; i < count; ++i) {
      const DrafterKind kind = choice.choose(available, run);
      EXPECT_EQ(choice.choose(available, run), kind) << "asked twice, answered differently";
      ++chosen[kind];
      owed += rates[kind];
      const auto emitted = static_cast<int32_t>(owed);
      owed -= emitted;
      choice.add(kind, emitted, 1e-3);
      run[kind].add(emitted, 1e-3);
    }
  }
};

TEST(DrafterChoice, OneKindIsNoChoice) {
  Play play{.rates = {{kModel, 1.0}}};
  DrafterChoice choice;
  play.rounds(choice, std::vector{kModel}, 500);
  EXPECT_EQ(play.chosen[kModel], 500);
}

TEST(DrafterChoice, TheBetterKindDraftsNearlyAlways) {
  for (const auto& [model, ngram] : {std::pair{3.0, 2.0}, std::pair{1.6, 2.0}}) {
    Play play{.rates = {{kModel, model}, {kNgram, ngram}}};
    DrafterChoice choice;
    play.rounds(choice, std::vector{kModel, kNgram}, 3000);
    const DrafterKind best = model > ngram ? kModel : kNgram;
    EXPECT_GT(play.chosen[best], 2800) << model << " against " << ngram;
  }
}

TEST(DrafterChoice, AChangeIsNoticed) {
  Play play{.rates = {{kModel, 3.0}, {kNgram, 2.0}}};
  DrafterChoice choice;
  play.rounds(choice, std::vector{kModel, kNgram}, 500);
  play.rates = {{kModel, 1.2}, {kNgram, 2.0}};
  play.chosen.clear();
  play.rounds(choice, std::vector{kModel, kNgram}, 3000);
  EXPECT_GT(play.chosen[kNgram], 2000);
}

// A new sequence does not try a drafter that failed for many sequences.
TEST(DrafterChoice, SequencesLearnFromEachOther) {
  Play play{.rates = {{kModel, 3.0}, {kNgram, 1.0}}};
  DrafterChoice first;
  play.rounds(first, std::vector{kNgram, kModel}, 200);
  EXPECT_GT(play.chosen[kNgram], 0);
  play.chosen.clear();
  DrafterChoice second;
  play.rounds(second, std::vector{kNgram, kModel}, 200);
  EXPECT_EQ(play.chosen[kNgram], 0);
}

TEST(DrafterChoice, AKindThatLeavesIsReplacedAtOnce) {
  Play play{.rates = {{kModel, 3.0}, {kNgram, 2.0}}};
  DrafterChoice choice;
  play.rounds(choice, std::vector{kModel, kNgram}, 300);
  EXPECT_EQ(choice.choose(std::vector{kNgram}, play.run), kNgram);
  EXPECT_EQ(choice.choose(std::vector{kModel}, play.run), kModel);
}

}  // namespace
}  // namespace outrider
