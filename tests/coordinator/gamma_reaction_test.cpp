// Behaviour of policies over time: steps of known cost and acceptance, one sequence, a virtual clock. Seeds
// are fixed, so nothing here can fail by chance. A comment marks each bound that was widened for its seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "coordinator/gamma/ewma.h"
#include "gamma_world.h"

namespace outrider {
namespace {

using namespace gamma_world;  // NOLINT: the names of these tests

// A drafter that never helps, and one that is as slow as the target: probes and the first rounds are all that
// it may cost.
TEST(GammaReaction, AUselessDrafterCostsOnePercent) {
  for (const std::string& policy : guarded_policies()) {
    for (const World& world : {World{.alpha = 0.02, .draft = 0.1}, World{.alpha = 0.5, .draft = 1.0},
                               World{.alpha = 0.3, .draft = 0.5, .per_row = 0.05, .batch = 8}}) {
      Rounds rounds(policy, world);
      rounds.speedup(100);
      EXPECT_GE(rounds.speedup(3000), 0.985) << policy << " alpha " << world.alpha;
    }
  }
}

// Two tokens' rows and a draft cost what they bring, and the first plain pass after a draft costs more than
// those that follow it: a plain step that is tried between drafts must not look like plain decoding.
TEST(GammaReaction, PlainDecodingIsNotJudgedByThePassesAfterADraft) {
  for (const ProbeDraftMode probe_drafts : {ProbeDraftMode::kNone, ProbeDraftMode::kTests})
    for (const double waking : {0.25, 0.5})
      for (const double alpha : {0.5, 0.65, 0.77, 0.85}) {
        const World world{
            .alpha = alpha, .draft = 0.15, .per_row = 0.4, .probe_drafts = probe_drafts, .waking = waking};
        double settled = 0, whole = 0;
        for (uint64_t seed = 1; seed <= 10; ++seed) {
          Rounds rounds("ewma", world, seed);
          whole += rounds.speedup(400) / 10;
          settled += rounds.speedup(2000) / 10;
        }
        EXPECT_GE(whole, 0.95) << waking << " " << alpha;
        EXPECT_GE(settled, 0.98) << waking << " " << alpha;
      }
}

// A short text in a fresh process: the first trial of plain decoding may not take it up where drafts plainly
// gain.
TEST(GammaReaction, AShortTextThatGainsMuchIsDraftedFor) {
  for (const ProbeDraftMode probe_drafts : {ProbeDraftMode::kNone, ProbeDraftMode::kTests}) {
    double tokens = 0;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Rounds rounds("ewma", {.alpha = 0.8, .draft = 0.1, .probe_drafts = probe_drafts}, seed);
      rounds.speedup(16);
      tokens += rounds.tokens / 20;
    }
    EXPECT_GE(tokens, 40) << "of the first 16 rounds; the best length has 4 in each";
  }
}

// The same where drafts gain a little, as they do where rows are dear: a target that measured them before it
// joined needs no trial at once. Nor does a measurement that is off by a third end that.
TEST(GammaReaction, AShortTextIsDraftedForWhereTheRowsPriceIsKnown) {
  for (const ProbeDraftMode probe_drafts : {ProbeDraftMode::kNone, ProbeDraftMode::kTests})
    for (const double error : {0.67, 1.0, 1.33}) {
      const World world{.alpha = 0.8,
                        .draft = 0.15,
                        .per_row = 0.15,
                        .probe_drafts = probe_drafts,
                        .row_price = error * 0.15 / (1 + 0.15)};
      double known = 0, unknown = 0;
      for (uint64_t seed = 1; seed <= 40; ++seed) {
        known += Rounds("ewma", world, seed).speedup(32) / 40;
        World untold = world;
        untold.row_price.reset();
        unknown += Rounds("ewma", untold, seed).speedup(32) / 40;
      }
      EXPECT_GE(known, 0.97 * best_fixed(world)) << error;
      EXPECT_LE(unknown, 0.93 * best_fixed(world)) << "else this shows nothing";
    }
}

// A drafter of the coordinator's own process is asked at once; it can be slow, but neither far nor dead. One
// that is slow costs no more than one draft of one token before it is known.
TEST(GammaReaction, ADrafterOfTheOwnProcessIsAskedAtOnce) {
  for (const double draft : {0.1, 4.0}) {
    Rounds rounds("ewma",
                  {.alpha = 0.8, .draft = draft, .probe_drafts = ProbeDraftMode::kTests, .local = true});
    EXPECT_EQ(rounds.play(), 1);
    for (int i = 0; i < 100 && draft > 1; ++i) EXPECT_EQ(rounds.play(), 0) << i;
    if (draft < 1) {
      EXPECT_GE(rounds.play(), 1);
    }
  }
  Rounds several("ewma", {.alpha = 0.8, .batch = 4, .probe_drafts = ProbeDraftMode::kTests, .local = true});
  EXPECT_EQ(several.play(), 0) << "all of a batch would wait for it";
}

// Q4_K_M pairs of 1.5 and 0.5 billion parameters on two cores: a draft token takes half a pass, and a probe
// draft delays the pass that it runs beside. The first draft looks slow; the second measurement must end the
// doubt, or probe drafts go on without end.
TEST(GammaReaction, ADearDrafterIsNotDoubtedForEver) {
  for (const bool local : {true, false})
    for (const double alpha : {0.3, 0.6, 0.9}) {
      double speedup = 0, probe_drafts = 0;
      for (uint64_t seed = 1; seed <= 10; ++seed) {
        Rounds rounds("ewma",
                      {.alpha = alpha,
                       .draft = 0.53,
                       .per_row = 0.13,
                       .probe_drafts = ProbeDraftMode::kTests,
                       .local = local,
                       .shares_cores = true,
                       .row_price = 0.13},
                      seed);
        speedup += rounds.speedup(96) / 10;
        probe_drafts += rounds.probe_drafts / 10.0;
      }
      EXPECT_LE(probe_drafts, 8) << local << " " << alpha;
      EXPECT_GE(speedup, 0.95) << local << " " << alpha;
    }
}

// Row curves of that pair (Qwen2.5-Coder) on two machines; the draft model runs on the same two cores.
TEST(GammaReaction, ADraftModelThatTakesHalfAPassIsWeighedByWhatRowsCost) {
  const std::vector<double> avx2{1, 1.15, 1.38, 1.75, 2.1, 2.4, 2.7, 3.02, 3.34};
  const std::vector<double> avx512{1, 1.01, 1.15, 1.32, 1.56, 1.8, 2.08, 2.35};
  struct Bound {
    int tokens;
    double of_plain, of_best;
  };
  for (const auto& curve : {avx2, avx512})
    for (const double alpha : {0.05, 0.5, 0.7, 0.85, 0.95})
      for (const Bound& bound :
           {Bound{16, 0.88, 0.88}, Bound{32, 0.93, 0.93}, Bound{96, 0.97, 0.95}, Bound{512, 0.985, 0.95}}) {
        World world{.alpha = alpha, .draft = 0.48, .probe_drafts = ProbeDraftMode::kTests, .local = true};
        world.curve = curve;
        world.shares_cores = true;
        world.is_measured = true;
        double speedup = 0;
        for (uint64_t seed = 1; seed <= 40; ++seed) {
          Rounds rounds("ewma", world, seed);
          while (rounds.tokens < bound.tokens) rounds.play();
          speedup += rounds.tokens / rounds.seconds / 40;
        }
        EXPECT_GE(speedup, bound.of_plain) << curve.size() << " " << alpha << " " << bound.tokens;
        EXPECT_GE(speedup, bound.of_best * best_fixed(world))
            << curve.size() << " " << alpha << " " << bound.tokens;
      }
}

// The first round uses the measurements of both workers: no first draft of one token, and no trial.
TEST(GammaReaction, MeasuredWorkersDraftRightlyFromTheFirstRoundOn) {
  const std::vector<double> avx2{1, 1.15, 1.38, 1.75, 2.1, 2.4, 2.7, 3.02, 3.34};
  const std::vector<double> avx512{1, 1.01, 1.15, 1.32, 1.56, 1.8, 2.08, 2.35};
  for (const auto& curve : {avx2, avx512})
    for (const int batch : {1, 4})
      for (const double alpha : {0.5, 0.7, 0.85})
        for (const int tokens : {16, 48, 128}) {
          World world{.alpha = alpha,
                      .draft = 0.3,
                      .batch = batch,
                      .probe_drafts = ProbeDraftMode::kTests,
                      .local = true,
                      .shares_cores = true,
                      .curve = curve,
                      .is_measured = true};
          double speedup = 0;
          for (uint64_t seed = 1; seed <= 40; ++seed) {
            Rounds rounds("ewma", world, seed);
            while (rounds.tokens < tokens * batch) rounds.play();
            speedup += rounds.tokens / rounds.seconds * pass_of(world, batch) / batch / 40;
          }
          EXPECT_GE(speedup, 0.97) << curve.size() << " " << batch << " " << alpha << " " << tokens;
          EXPECT_GE(speedup, 0.96 * best_fixed(world))
              << curve.size() << " " << batch << " " << alpha << " " << tokens;
        }
}

// Passes of Qwen2.5-Coder 1.5B (Q4_K_M) by rows, as its warm-up measured them on two cores of an AMD EPYC
// with AVX2, straight lines between 3, 5 and 9 rows; a draft step of the 0.5B model there. Whatever the
// acceptance, drafting is never much slower than plain decoding.
TEST(GammaReaction, OnAMeasuredStaircaseItIsNeverMuchSlowerThanPlainDecoding) {
  const std::vector<double> curve{1, 1.11, 1.37, 1.77, 2.17, 2.52, 2.87, 3.21, 3.56};
  for (const int batch : {1, 4})
    for (const double alpha : {0.05, 0.5, 0.7, 0.8, 0.9})
      for (const auto& [tokens, least] : {std::pair{48, 0.96}, {256, 0.98}, {1024, 0.99}}) {
        World world{.alpha = alpha,
                    .draft = 0.47,
                    .batch = batch,
                    .probe_drafts = ProbeDraftMode::kTests,
                    .local = true,
                    .shares_cores = true,
                    .curve = curve,
                    .is_measured = true};
        double speedup = 0;
        for (uint64_t seed = 1; seed <= 20; ++seed) {
          Rounds rounds("ewma", world, seed);
          while (rounds.tokens < tokens * batch) rounds.play();
          speedup += rounds.tokens / rounds.seconds * pass_of(world, batch) / batch / 20;
        }
        EXPECT_GE(speedup, least) << batch << " " << alpha << " " << tokens;
      }
}

// The target is behind a link of ten passes, which its own measurement does not show. A draft model joins
// late, on cores that are busy: it measured its steps and its prefill several times too high.
TEST(GammaReaction, BehindALinkDraftsAreLongWhateverWasMeasured) {
  for (const double measured_draft : {1.0, 8.0})
    for (const double alpha : {0.7, 0.9}) {
      const World world{.alpha = alpha,
                        .draft = 0.2,
                        .target_link = 10,
                        .probe_drafts = ProbeDraftMode::kTests,
                        .curve = {1, 1.15, 1.6, 2.2, 2.8, 3.3, 3.8, 4.3, 4.8},
                        .is_measured = true,
                        .measured_draft = measured_draft};
      double speedup = 0;
      for (uint64_t seed = 1; seed <= 20; ++seed) {
        Rounds rounds("ewma", world, seed);
        speedup += rounds.speedup(200) / 20;
      }
      EXPECT_GE(speedup, 0.9 * best_fixed(world)) << alpha << " " << measured_draft;
    }
}

TEST(GammaReaction, TheDefaultIsNearTheBestFixedLength) {
  for (const double alpha : {0.3, 0.6, 0.8, 0.95})
    for (const double draft : {0.01, 0.1, 0.5}) {
      const World world{.alpha = alpha, .draft = draft};
      Rounds rounds("ewma", world, 7);
      rounds.speedup(50);
      // 4000 rounds: the rate's own standard error is below 1 %.
      EXPECT_GE(rounds.speedup(4000), 0.95 * best_fixed(world)) << alpha << " " << draft;
    }
}

// As on a processor: every row of the pass costs, and four texts of a few hundred tokens are all there is.
// From the first round on.
TEST(GammaReaction, SettlesInAFewRoundsWhereRowsAreDear) {
  for (const double alpha : {0.5, 0.7, 0.95}) {
    const World world{.alpha = alpha, .draft = 0.1, .per_row = 0.08, .batch = 4};
    double speedup = 0;
    for (uint64_t seed = 1; seed <= 20; ++seed) speedup += Rounds("ewma", world, seed).speedup(200) / 20;
    EXPECT_GE(speedup, 0.95 * best_fixed(world)) << alpha;
    EXPECT_GE(speedup, 0.98) << alpha;
  }
}

// A tenth of all passes is held up by something else: no reason to give drafting up, nor to draft longer.
TEST(GammaReaction, ABusyMachineIsNotTheDraftersFault) {
  const World quiet{.alpha = 0.8, .draft = 0.1, .per_row = 0.05, .batch = 4};
  World busy = quiet;
  busy.spell_every = 160;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Rounds rounds("ewma", busy, seed);
    int32_t plain = 0, drafted = 0;
    for (int i = 0; i < 800; ++i) {
      const int32_t gamma = rounds.play();
      drafted += gamma;
      plain += gamma == 0;
    }
    EXPECT_LE(plain, 80) << "seed " << seed;
    EXPECT_LE(drafted, 800 * 5) << "seed " << seed;
  }
}

// Passes, drafts and messages are held up by whole slices of the scheduler, each in proportion to its work:
// that says nothing about what pays. One text of a thousand rounds, from the first on.
TEST(GammaReaction, LosingTheCoreIsNobodysCost) {
  for (const double preempted : {0.02, 0.15})
    for (const ProbeDraftMode probe_drafts : {ProbeDraftMode::kNone, ProbeDraftMode::kTests})
      for (const double alpha : {0.02, 0.6, 0.8, 0.9})
        for (const double draft : {0.05, 0.2}) {
          const World world{.alpha = alpha,
                            .draft = draft,
                            .per_row = 0.06,
                            .link = 0.03,
                            .probe_drafts = probe_drafts,
                            .preempted = preempted};
          double least = 1e9, mean = 0;
          for (uint64_t seed = 1; seed <= 20; ++seed) {
            const double speedup = Rounds("ewma", world, seed).speedup_of_work(1000);
            least = std::min(least, speedup);
            mean += speedup / 20;
          }
          const double best = best_fixed(world);
          const auto told = ::testing::Message()
                            << preempted << " times, alpha " << alpha << ", draft " << draft << ", shadows "
                            << static_cast<int>(probe_drafts) << ", best " << best;
          EXPECT_GE(mean, (preempted < 0.1 ? 0.95 : 0.92) * best) << told;
          EXPECT_GE(least, 0.97) << told;
        }
}

// The first draft of a run may wait for what is used for the first time; a link is slow every time.
TEST(GammaReaction, OneSlowFirstDraftDoesNotEndDrafting) {
  const auto drafted_rounds = [](int slow_drafts, uint64_t seed) {
    Rounds rounds("ewma", {.alpha = 0.85, .draft = 0.05, .slow_drafts = slow_drafts}, seed);
    int drafted = 0;
    for (int i = 0; i < 100; ++i) drafted += rounds.play() > 0;
    return drafted;
  };
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_GE(drafted_rounds(1, seed), 80) << seed;
    EXPECT_LE(drafted_rounds(100, seed), 5) << seed;
  }
}

// The policy never waits for a drafter that has not answered yet, nor for a drafter whose link is known to be
// too slow.
TEST(GammaReaction, StrangersAndFarDraftersAreNeverWaitedFor) {
  for (const ProbeDraftMode probe_drafts : {ProbeDraftMode::kCosts, ProbeDraftMode::kTests}) {
    Rounds silent("ewma", {.alpha = 0.9, .probe_drafts = probe_drafts, .answers = false});
    Rounds far("ewma", {.alpha = 0.9, .link = 60, .probe_drafts = probe_drafts});
    for (int i = 0; i < 2000; ++i) {
      EXPECT_EQ(silent.play(), 0);
      EXPECT_EQ(far.play(), 0);
    }
    EXPECT_EQ(silent.probe_drafts, 1);
    EXPECT_GT(far.probe_drafts, 1);
  }
}

TEST(GammaReaction, GoesDownWithin32RoundsOfAFallInAcceptance) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rounds rounds("ewma", {.alpha = 0.85, .draft = 0.1}, seed);
    for (int i = 0; i < 200; ++i) rounds.play();
    rounds.world.alpha = 0.02;
    for (int i = 0; i < 32; ++i) rounds.play();
    int32_t drafted = 0;
    for (int i = 0; i < 32; ++i) drafted += rounds.play();
    EXPECT_LE(drafted, 16) << "seed " << seed;  // a few probes; it was about 190 before
  }
}

TEST(GammaReaction, ComesBackWithin32RoundsOfTheFirstAcceptedProbe) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rounds rounds("ewma", {.alpha = 0.02, .draft = 0.1}, seed);
    for (int i = 0; i < 400; ++i) rounds.play();
    rounds.world.alpha = 0.9;
    int waited = 0;
    while (rounds.play() == 0 || rounds.last_accepted == 0) ASSERT_LT(++waited, 200) << "no probe";
    int32_t gamma = 0;
    for (int i = 0; i < 32; ++i) gamma = std::max(gamma, rounds.play());
    EXPECT_GE(gamma, 5) << "seed " << seed;
  }
}

TEST(GammaReaction, GoesOffUnderLoadAndBack) {
  Rounds rounds("ewma", {.alpha = 0.87, .draft = 0.1, .per_row = 0.2}, 3);
  for (int i = 0; i < 100; ++i) rounds.play();
  EXPECT_GE(rounds.play(), 2);
  rounds.world.batch = 32;  // every row costs a fifth of a pass now
  for (int i = 0; i < 32; ++i) rounds.play();
  int32_t drafted = 0;
  for (int i = 0; i < 32; ++i) drafted += rounds.play();
  EXPECT_LE(drafted, 4);
  rounds.world.batch = 1;
  int32_t gamma = 0;
  for (int i = 0; i < 32; ++i) gamma = std::max(gamma, rounds.play());
  EXPECT_GE(gamma, 2);
}

TEST(GammaReaction, ANewSequenceStartsWhereItsPairIs) {
  const EwmaOptions options;
  const auto batch = std::make_shared<EwmaBatches>(EwmaBatch(options));
  const CostModel cost({.base = 1, .per_row = 0.01, .draft_token = 0.3, .weight = 1000, .relative = false});
  const GammaContext context{.limit = 64, .cost = &cost};
  EwmaGamma first(options, batch);
  EXPECT_GT(first.next(context), 0);
  for (int i = 0; i < 200; ++i) {
    const int32_t gamma = first.next(context);
    first.update({.proposed = gamma, .drafted = gamma, .accepted = 0, .round_ns = 1'000'000'000});
  }
  EwmaGamma second(options, batch);
  second.next(context);
  EXPECT_EQ(second.chosen(), 0);
}

// Sixteen texts in two groups are two batches of eight, which share no pass: each has the lengths that it
// would have alone. And a text that goes on in another group counts there from then on.
TEST(GammaReaction, GroupsDecideForThemselves) {
  for (const char* name : {"ewma", "goodput", "logistic", "pipelined"}) {
    const CostModel cost(
        {.base = 1, .per_row = 0.02, .draft_token = 0.05, .weight = 1000, .relative = false});
    using Policies = std::vector<std::unique_ptr<GammaPolicy>>;
    const auto step = [&](Policies& policies, int32_t group) {
      std::vector<int32_t> lengths;
      for (auto& policy : policies) {
        const GammaContext context{
            .limit = 16, .batch_size = static_cast<int32_t>(policies.size()), .group = group, .cost = &cost};
        lengths.push_back(policy->next(context));
      }
      for (size_t i = 0; i < policies.size(); ++i) {
        const int32_t accepted = std::min(lengths[i], static_cast<int32_t>(i % 4));
        policies[i]->update(
            {.proposed = lengths[i], .drafted = lengths[i], .accepted = accepted, .round_ns = 1});
      }
      return lengths;
    };
    const auto alone = parse_gamma_policy(name).value(), shared = parse_gamma_policy(name).value();
    Policies one, first, second;
    for (int i = 0; i < 8; ++i) {
      one.push_back(alone());
      first.push_back(shared());
      second.push_back(shared());
    }
    for (int i = 0; i < 50; ++i) {
      const auto expected = step(one, 0);
      EXPECT_EQ(step(first, 0), expected) << name << " " << i;
      EXPECT_EQ(step(second, 1), expected) << name << " " << i;
    }
    const auto sum = [](const std::vector<int32_t>& lengths) {
      return std::accumulate(lengths.begin(), lengths.end(), 0);
    };
    const int32_t apart = sum(step(first, 0)) + sum(step(second, 1));
    for (auto& policy : second) first.push_back(std::move(policy));  // group 1 is lost
    second.clear();
    for (int i = 0; i < 50; ++i) step(first, 0);
    int32_t together = apart;
    for (int i = 0; i < 20; ++i) together = std::min(together, sum(step(first, 0)));
    EXPECT_LT(together, apart) << name << ": rows of a pass of sixteen are dearer";
  }
}

TEST(GammaReaction, TablesFollowTheBatchAlone) {
  auto policy = parse_gamma_policy("table:steps=1:8/4:5/32:0").value()();
  EXPECT_EQ(policy->next({.limit = 64, .batch_size = 1}), 8);
  EXPECT_EQ(policy->next({.limit = 64, .batch_size = 31}), 5);
  EXPECT_EQ(policy->next({.limit = 64, .batch_size = 32}), 0);
  EXPECT_FALSE(parse_gamma_policy("table:steps=4:5/2:1").ok());
  EXPECT_FALSE(parse_gamma_policy("table:steps=4").ok());
}

TEST(GammaReaction, PipelinedDraftsAsLongAsAVerificationLasts) {
  const auto factory = parse_gamma_policy("pipelined").value();
  const CostModel cost(
      {.base = 1, .per_row = 0.001, .draft_token = 0.125, .weight = 1000, .relative = false});
  auto policy = factory();
  const GammaContext ahead{.limit = 64, .cost = &cost, .ahead = true};
  for (int i = 0; i < 20; ++i) {
    const int32_t gamma = policy->next(ahead);
    policy->update({.proposed = gamma, .drafted = gamma, .accepted = gamma, .round_ns = 1});
  }
  EXPECT_EQ(policy->next(ahead), 8);
  policy->update({.proposed = 8, .drafted = 8, .accepted = 3, .round_ns = 1});
  EXPECT_EQ(policy->next(ahead), 1) << "the first token goes alone";
}

}  // namespace
}  // namespace outrider
