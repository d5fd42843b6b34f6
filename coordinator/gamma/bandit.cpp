// Upper confidence bounds on measured tokens per second. The reward is a ratio of sums, not a mean of
// per-round rates. The sequences of one factory share the arms' history, because a single request is too
// short to try nine lengths.
#include <array>
#include <cmath>

#include "coordinator/gamma/policies.h"

namespace outrider {
namespace {

constexpr std::array<int32_t, 9> kArms = {0, 1, 2, 3, 4, 6, 8, 12, 16};

struct Arm {
  double tokens = 0, seconds = 0, count = 0;
};

struct BanditHistory {
  std::array<Arm, kArms.size()> arms;
  double rounds = 0;
};

class BanditGamma : public GammaPolicy {
 public:
  BanditGamma(double explore, double discount, std::shared_ptr<BanditHistory> history)
      : explore_(explore), discount_(discount), history_(std::move(history)) {}

  int32_t next(const GammaContext& context) override {
    size_t best = 0;
    double best_index = -1;
    for (size_t i = 0; i < kArms.size() && kArms[i] <= context.limit; ++i) {
      const double index = index_of(history_->arms[i]);
      if (index > best_index) best = i, best_index = index;
    }
    return kArms[best];
  }

  void update(const RoundOutcome& outcome) override {
    const auto played = std::find(kArms.begin(), kArms.end(), outcome.proposed);
    if (played == kArms.end() || outcome.round_ns <= 0) return;  // the length was cut by a limit
    for (Arm& arm : history_->arms) {
      arm.tokens *= discount_;
      arm.seconds *= discount_;
      arm.count *= discount_;
    }
    history_->rounds = discount_ * history_->rounds + 1;
    Arm& arm = history_->arms[static_cast<size_t>(played - kArms.begin())];
    arm.tokens += outcome.accepted + 1;
    arm.seconds += static_cast<double>(outcome.round_ns) * 1e-9;
    arm.count += 1;
  }

 private:
  // An arm without a play, or whose plays have decayed away, comes first.
  double index_of(const Arm& arm) const {
    if (arm.count < 1e-3) return INFINITY;
    const double spread = std::sqrt(std::log(std::max(1.0, history_->rounds)) / arm.count);
    return arm.tokens / arm.seconds * (1 + explore_ * spread);
  }

  double explore_, discount_;
  std::shared_ptr<BanditHistory> history_;
};

}  // namespace

Result<GammaPolicyFactory> bandit_gamma_from(const GammaArguments& arguments) {
  ASSIGN_OR_RETURN(const double explore, gamma_number(arguments, "explore", 0, 100));
  ASSIGN_OR_RETURN(const double discount, gamma_number(arguments, "discount", 0.5, 1));
  const auto history = std::make_shared<BanditHistory>();
  return GammaPolicyFactory([=] { return std::make_unique<BanditGamma>(explore, discount, history); });
}

}  // namespace outrider
