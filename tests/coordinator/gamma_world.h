// Steps of known cost and acceptance on a virtual clock, for tests of draft length policies.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "coordinator/costs/settled_passes.h"
#include "coordinator/gamma/acceptance.h"
#include "coordinator/gamma/policies.h"

namespace outrider::gamma_world {

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

inline double pass_of(const World& world, int rows) {
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

inline double best_fixed(const World& world) {
  double best = 0;
  for (int g = 0; g <= 16; ++g)
    best = std::max(best, expected_tokens(world.alpha, g) /
                              (world.target_link + world.draft * g + pass_of(world, world.batch * (g + 1))));
  return best * (world.target_link + pass_of(world, world.batch));
}

inline std::vector<std::string> guarded_policies() {
  std::vector<std::string> names;
  for (const GammaPolicyInfo& policy : gamma_policy_table())
    if (policy.name != "fixed" && policy.name != "replay" && policy.name != "table" &&
        policy.name != "bandit" && policy.name != "tiers" && policy.name != "goodspeed" &&
        policy.name != "vllm")
      names.push_back(policy.name);
  return names;
}

}  // namespace outrider::gamma_world
