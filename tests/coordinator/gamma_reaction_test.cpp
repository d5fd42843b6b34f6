// Behaviour of policies over time: steps of known cost and acceptance, one sequence, a virtual clock. Seeds
// are fixed, so nothing here can fail by chance. A comment marks each bound that was widened for its seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "coordinator/costs/settled_passes.h"
#include "coordinator/gamma/ewma.h"
#include "coordinator/gamma/policies.h"

namespace outrider {
namespace {

struct World {
  double alpha = 0.8;
  double draft = 0.05;  // per token; a plain pass takes about 1
  double per_row = 0.01;
  int batch = 1;           // all sequences decide alike
  int spell_every = 0;     // passes; each such spell is 16 passes that take 3 more
  int slow_drafts = 0;     // the first `slow_drafts` drafts take 5 to arrive
  double link = 0;         // round trip
  double target_link = 0;  // round trip of every pass
  double prefill = 0;      // of a probe draft: the prefill of its worker
  ProbeDraftMode probe_drafts = ProbeDraftMode::kNone;
  bool answers = true;             // else no probe draft ever comes
  bool local = false;              // the drafter is in the coordinator's process
  bool shares_cores = false;       // a probe draft delays the pass beside it
  std::vector<double> curve = {};  // passes of 1, 2, ... rows in place of per_row; then its last slope
  std::optional<double> row_price = std::nullopt;  // measured by the target before the first pass
  bool is_measured = false;   // passes and a draft step, by the workers before they joined
  double measured_draft = 1;  // times the draft step
  // Extra time of every forward pass that follows a draft, because helper threads have gone to sleep and
  // caches hold the draft model. The first plain pass afterwards pays it too, and each further plain pass
  // pays 0.6 times the last.
  double waking = 0;
  // Other programs use these cores: `preempted` times per second of work, one takes a core for 2 to 40
  // seconds (1 to 20 ms where a pass takes half of one).
  double preempted = 0;
};

double pass_of(const World& world, int rows) {
  if (world.curve.empty()) return 1 + world.per_row * (rows - 1);
  const auto last = static_cast<int>(world.curve.size());
  if (rows <= last) return world.curve[static_cast<size_t>(rows - 1)];
  const double slope = world.curve.back() - world.curve[static_cast<size_t>(last - 2)];
  return world.curve.back() + (rows - last) * slope;
}

// All sequences of a batch, in lockstep. Seconds are of the world; the policies' cost model measures them.
class Rounds {
 public:
  Rounds(const std::string& policy, const World& initial, uint64_t seed = 1)
      : world(initial), factory_(parse_gamma_policy(policy).value()), random_(seed) {
    if (world.row_price)
      cost_.expect_passes({.by_rows = {{2, static_cast<float>(1 + *world.row_price)},
                                       {5, static_cast<float>(1 + 4 * *world.row_price)}}});
    if (!world.is_measured) return;
    PassTimes target{.row_ns = static_cast<int64_t>(1e9 * pass_of(world, 1))};
    for (const int32_t rows : {2, 3, 5, 9, 17})
      target.by_rows.push_back({rows, static_cast<float>(pass_of(world, rows) / pass_of(world, 1))});
    cost_.expect_passes(target);
    cost_.expect_drafts({.row_ns = static_cast<int64_t>(1e9 * world.measured_draft * world.draft)});
  }

  // The longest draft of the step.
  int32_t play() {
    policies_.resize(static_cast<size_t>(world.batch));
    std::vector<int32_t> gammas, accepted;
    for (auto& policy : policies_) {
      if (!policy) policy = factory_();
      gammas.push_back(policy->next({.limit = 64,
                                     .batch_size = world.batch,
                                     .context_length = 100,
                                     .cost = &cost_,
                                     .probe_drafts = world.probe_drafts,
                                     .probe_draft_out = probe_draft_ > 0,
                                     .local = world.local}));
    }
    if (probe_draft_ == 0 && policies_[0]->probe_draft() > 0) {
      probe_draft_ = policies_[0]->probe_draft();
      probe_draft_due_ = seconds + probe_draft_ * world.draft + world.link;
      if (world.shares_cores) seconds += probe_draft_ * world.draft;
      ++probe_drafts;
    }
    const int32_t longest = *std::max_element(gammas.begin(), gammas.end());
    const int32_t total = std::accumulate(gammas.begin(), gammas.end(), 0);
    const bool held_up = world.spell_every > 0 && passes_++ % world.spell_every >= world.spell_every - 16;
    double verify = world.target_link + pass_of(world, world.batch + total) + (held_up ? 3 : 0);
    verify += longest > 0 ? world.waking : waking_;
    waking_ = longest > 0 ? world.waking : 0.6 * waking_;
    double draft = world.draft * longest;
    double exchange = longest > 0 ? world.link + (drafts_++ < world.slow_drafts ? 5 : 0) : 0;
    work += verify + draft + exchange;
    for (double* part : {&verify, &draft, &exchange}) *part += lost_to_others(*part);
    cost_.observe_draft_phase(longest, total, draft, draft + exchange);
    if (longest > 0) settled_.draft();
    if (settled_.next()) cost_.observe_verify(world.batch + total, 100 * world.batch, verify);
    last_accepted = 0;
    for (size_t i = 0; i < gammas.size(); ++i) {
      int32_t count = 0;
      while (count < gammas[i] && std::uniform_real_distribution<>()(random_) < world.alpha) ++count;
      policies_[i]->update({.proposed = gammas[i],
                            .drafted = gammas[i],
                            .accepted = count,
                            .round_ns = static_cast<int64_t>((verify + draft) * 1e9),
                            .batch_size = world.batch,
                            .cost = &cost_});
      tokens += count + 1;
      last_accepted = std::max(last_accepted, count);
    }
    seconds += verify + draft + (world.link > 0 ? exchange : 0);
    if (probe_draft_ > 0 && world.answers && seconds >= probe_draft_due_) take_probe_draft();
    return longest;
  }
  // Rate relative to plain decoding in the same world.
  double speedup(int rounds) {
    seconds = tokens = 0;
    for (int i = 0; i < rounds; ++i) play();
    return tokens / seconds * (world.target_link + pass_of(world, world.batch)) / world.batch;
  }

  // The speed-up in work, not in time: other programs take their share of whatever is done, so it is the same
  // at any length of drafts, and only scatters.
  double speedup_of_work(int rounds) {
    work = tokens = 0;
    for (int i = 0; i < rounds; ++i) play();
    return tokens / work * (1 + world.per_row * (world.batch - 1)) / world.batch;
  }

  // A request ends and another takes its place.
  void replace(int which) {
    if (!policies_.empty()) policies_[static_cast<size_t>(which)] = nullptr;
  }

  World world;
  double seconds = 0, work = 0, tokens = 0;
  int32_t last_accepted = 0, probe_drafts = 0;

 private:
  double lost_to_others(double busy) {
    if (world.preempted == 0 || busy == 0) return 0;
    double lost = 0;
    const int times = std::poisson_distribution<int>(world.preempted * busy)(random_);
    for (int i = 0; i < times; ++i) lost += 2 * std::pow(20, std::uniform_real_distribution<>()(random_));
    return lost;
  }

  // All sequences', read at the end of a pass.
  void take_probe_draft() {
    const double own = probe_draft_ * world.draft, busy = own + lost_to_others(own);
    settled_.probe_draft();
    cost_.observe_probe_draft({.tokens = probe_draft_,
                               .busy = busy,
                               .exchange = seconds - probe_draft_due_ + world.link,
                               .prefill = world.prefill});
    for (auto& policy : policies_) {
      int32_t count = 0;
      while (count < probe_draft_ && std::uniform_real_distribution<>()(random_) < world.alpha) ++count;
      policy->observe_probe_draft(world.probe_drafts == ProbeDraftMode::kTests ? probe_draft_ : 0, count);
    }
    probe_draft_ = 0;
  }

  CostModel cost_;
  SettledPasses settled_;
  GammaPolicyFactory factory_;
  std::vector<std::unique_ptr<GammaPolicy>> policies_;
  std::mt19937_64 random_;
  int passes_ = 0, drafts_ = 0;
  double waking_ = 0;        // of a plain pass
  int32_t probe_draft_ = 0;  // tokens of the one that is out
  double probe_draft_due_ = 0;
};

double best_fixed(const World& world) {
  double best = 0;
  for (int g = 0; g <= 16; ++g)
    best = std::max(best, expected_tokens(world.alpha, g) /
                              (world.target_link + world.draft * g + pass_of(world, world.batch * (g + 1))));
  return best * (world.target_link + pass_of(world, world.batch));
}

std::vector<std::string> guarded_policies() {
  std::vector<std::string> names;
  for (const GammaPolicyInfo& policy : gamma_policy_table())
    if (policy.name != "fixed" && policy.name != "replay" && policy.name != "table" &&
        policy.name != "bandit" && policy.name != "tiers")
      names.push_back(policy.name);
  return names;
}

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

// A request that joins makes the batch decide again; that is no step, and no part of a trial is over with it.
TEST(GammaReaction, RequestsThatJoinUseUpNoTrial) {
  Rounds together("ewma", {.alpha = 0.9, .batch = 16});
  int plain = 0;
  for (int step = 0; step < 80; ++step) plain += together.play() == 0;
  EXPECT_GE(plain, 12) << "the first trial of plain decoding";

  Rounds coming("ewma", {.alpha = 0.9, .batch = 16});
  int run = 0, longest_run = 0;
  for (int step = 0; step < 80; ++step) {
    coming.replace(step % 16);
    run = coming.play() == 0 ? run + 1 : 0;
    longest_run = std::max(longest_run, run);
  }
  EXPECT_GE(longest_run, 12);
}

// From the very first round, when nothing is known: some plain steps are lost at the start, then 1 % to
// probes.
TEST(GammaReaction, LearningHasABudget) {
  for (uint64_t seed = 1; seed <= 10; ++seed)
    for (const World& world :
         {World{.alpha = 0.02, .draft = 0.1}, World{.alpha = 0.3, .draft = 0.5},
          World{.alpha = 0.6, .draft = 2}, World{.alpha = 0.3, .draft = 0.5, .per_row = 0.02, .batch = 32}}) {
      Rounds rounds("ewma", world, seed);
      const double plain = 1 + world.per_row * (world.batch - 1);
      rounds.speedup(500);
      const double lost = rounds.seconds / plain - rounds.tokens / world.batch;
      EXPECT_LE(lost, 4 + 0.02 * 500)
          << "alpha " << world.alpha << " draft " << world.draft << " seed " << seed;
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

// Where probe drafts are tested there are no other trials: from the first round on a useless drafter costs
// what a few drafts lose before it is known for useless, and nothing afterwards.
TEST(GammaReaction, TrialsInTheProbeDraftLoseNothing) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Rounds rounds("ewma", {.alpha = 0.02, .draft = 0.1, .probe_drafts = ProbeDraftMode::kTests}, seed);
    rounds.speedup(300);
    EXPECT_LE(rounds.seconds - rounds.tokens, 3) << seed;
    EXPECT_GE(rounds.speedup(3000), 0.999) << seed;
    EXPECT_GT(rounds.probe_drafts, 20) << seed;
  }
}

// Where cores are shared the target pays for what drafters read. Trials that never find anything get rare.
TEST(GammaReaction, ReadingIsPartOfTheBudget) {
  Rounds rounds("ewma", {.alpha = 0.02, .draft = 0.1, .prefill = 3, .probe_drafts = ProbeDraftMode::kTests});
  rounds.speedup(1000);  // until it is known for useless
  rounds.probe_drafts = 0;
  rounds.speedup(4000);
  EXPECT_GE(rounds.probe_drafts, 3);
  EXPECT_LE(rounds.probe_drafts * 3.2, 0.0025 * 4000 + 2 * 3.2);
}

// Passes of a second and, if `drafts`, draft tokens of a tenth.
CostModel known_costs(bool drafts) {
  CostModel cost;
  for (int i = 0; i < 40; ++i) cost.observe_verify(1 + i % 9, 100, 1 + 0.01 * (i % 9));
  for (int i = 0; i < 10 && drafts; ++i)
    cost.observe_draft_phase(1 + i % 3, 1 + i % 3, 0.1 * (1 + i % 3), 0.1 * (1 + i % 3));
  return cost;
}

// For each sequence: whether the policy would prefill its prompt now, for a draft that the step waits for or
// for a probe draft.
std::vector<bool> reads(const CostModel& cost, const std::vector<std::pair<double, int32_t>>& prompts) {
  const GammaPolicyFactory factory = parse_gamma_policy("ewma").value();
  std::vector<std::unique_ptr<GammaPolicy>> policies;
  std::vector<bool> read;
  for (const auto& [seconds, remaining] : prompts) {
    policies.push_back(factory());
    const int32_t gamma = policies.back()->next({.limit = 64,
                                                 .batch_size = static_cast<int32_t>(prompts.size()),
                                                 .context_length = 100,
                                                 .cost = &cost,
                                                 .probe_drafts = ProbeDraftMode::kTests,
                                                 .prefill_seconds = seconds,
                                                 .remaining = remaining});
    read.push_back(gamma > 0 || policies.back()->probe_draft() > 0);
  }
  return read;
}

// By what is known here drafts save about half a pass a token.
TEST(GammaReaction, APromptIsReadOnlyForTextsThatAreLongEnough) {
  const CostModel cost = known_costs(true);
  EXPECT_EQ(reads(cost, {{20, 10}}), std::vector<bool>{false});
  EXPECT_EQ(reads(cost, {{20, 1000}}), std::vector<bool>{true});
  EXPECT_EQ(reads(cost, {{2, 10}}), std::vector<bool>{true});
  EXPECT_EQ(reads(cost, {{2, 1}}), std::vector<bool>{false});
  // Nothing is read before a pass was measured: what it might save is not known.
  EXPECT_EQ(reads(CostModel(), {{0.1, 1000}}), std::vector<bool>{false});
}

TEST(GammaReaction, OneSequenceFindsOutWhatDraftsCost) {
  const CostModel unknown = known_costs(false);
  EXPECT_EQ(reads(unknown, {{5, 1000}, {4, 1000}, {6, 1000}}), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(reads(unknown, {{5, 1000}, {0, 1000}, {6, 1000}}), (std::vector<bool>{true, true, false}))
      << "whose text has been read costs nothing more";
  EXPECT_EQ(reads(known_costs(true), {{5, 1000}, {4, 1000}, {6, 1000}}),
            (std::vector<bool>{true, true, true}));
}

// A draft token of this process takes `draft` passes, as both workers measured. Where no acceptance could
// pay, trials are an eighth as frequent: they take the target's cores, and can only find that costs have
// changed.
TEST(GammaReaction, TrialsAreRareWhereNoAcceptanceWouldPay) {
  const auto trials = [](double draft, bool local) {
    Rounds rounds("ewma", {.alpha = 0.02,
                           .draft = draft,
                           .probe_drafts = ProbeDraftMode::kTests,
                           .local = local,
                           .shares_cores = true,
                           .is_measured = true});
    rounds.speedup(8000);
    return rounds.probe_drafts;
  };
  EXPECT_GE(trials(0.8, true), 2 * trials(1.2, true)) << "0.8 passes pay at an acceptance of 0.95";
  EXPECT_GE(trials(1.2, true), 1) << "costs may change";
  EXPECT_GE(trials(1.2, false), 2 * trials(1.2, true)) << "of a worker elsewhere the price is not sure";
}

TEST(GammaReaction, ProbeDraftsBringDraftingBack) {
  for (const ProbeDraftMode probe_drafts : {ProbeDraftMode::kCosts, ProbeDraftMode::kTests})
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Rounds rounds("ewma", {.alpha = 0.02, .draft = 0.1, .probe_drafts = probe_drafts}, seed);
      for (int i = 0; i < 400; ++i) rounds.play();
      rounds.world.alpha = 0.9;
      int32_t gamma = 0;
      for (int i = 0; i < 300; ++i) gamma = std::max(gamma, rounds.play());
      EXPECT_GE(gamma, 5) << "seed " << seed;
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
