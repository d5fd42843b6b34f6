#include "coordinator/gamma/goodspeed.h"

#include <algorithm>
#include <memory>
#include <queue>

#include "coordinator/gamma/by_group.h"
#include "coordinator/gamma/policies.h"

namespace outrider {

std::vector<int32_t> fair_shares(std::span<const double> acceptance, std::span<const double> goodput,
                                 std::span<const int32_t> limits, int32_t budget) {
  struct Gain {
    double gain;
    size_t sequence;
    bool operator<(const Gain& other) const {  // the lower sequence first among equals
      return gain != other.gain ? gain < other.gain : sequence > other.sequence;
    }
  };
  std::vector<int32_t> lengths(acceptance.size(), 0);
  std::priority_queue<Gain> gains;
  for (size_t i = 0; i < acceptance.size(); ++i)
    if (limits[i] > 0) gains.push({acceptance[i] / goodput[i], i});
  for (; budget > 0 && !gains.empty(); --budget) {
    const auto [gain, i] = gains.top();
    gains.pop();
    if (++lengths[i] < limits[i]) gains.push({gain * acceptance[i], i});
  }
  return lengths;
}

namespace {

struct GoodSpeedOptions {
  int32_t max = 16, budget = 16;
  double eta = 0.1;   // weight of a round in the acceptance
  double beta = 0.1;  // weight of a round in the goodput
};

class GoodSpeedGamma;
using FairBatch = PolicyBatch<GoodSpeedGamma>;

class GoodSpeedGamma : public GammaPolicy {
 public:
  GoodSpeedGamma(const GoodSpeedOptions& options, std::shared_ptr<ByGroup<FairBatch>> batches)
      : options_(options), batches_(std::move(batches)) {}

  int32_t next(const GammaContext& context) override {
    FairBatch& batch = membership_.join(batches_->of(context.group));
    limit_ = std::min(options_.max, context.limit);
    batch.stale |= limit_ < gamma_;
    if (batch.stale) share(batch, options_.budget);
    return gamma_;
  }

  void update(const RoundOutcome& outcome) override {
    const int32_t tested = outcome.accepted + (outcome.accepted < outcome.drafted ? 1 : 0);
    if (tested > 0)
      acceptance_ += options_.eta * (static_cast<double>(outcome.accepted) / tested - acceptance_);
    goodput_ += options_.beta * (outcome.accepted + 1 - goodput_);
    membership_.make_stale();
  }

 private:
  static void share(FairBatch& batch, int32_t budget) {
    std::vector<double> acceptance, goodput;
    std::vector<int32_t> limits;
    for (const GoodSpeedGamma* member : batch.members) {
      acceptance.push_back(std::clamp(member->acceptance_, 0.01, 0.99));
      goodput.push_back(member->goodput_);
      limits.push_back(member->limit_);
    }
    const std::vector<int32_t> lengths = fair_shares(acceptance, goodput, limits, budget);
    for (size_t i = 0; i < lengths.size(); ++i) batch.members[i]->gamma_ = lengths[i];
    batch.stale = false;
  }

  const GoodSpeedOptions options_;
  const std::shared_ptr<ByGroup<FairBatch>> batches_;
  InBatch<GoodSpeedGamma> membership_{*this};
  double acceptance_ = 0.7, goodput_ = 1;
  int32_t gamma_ = 0, limit_ = 0;
};

}  // namespace

Result<GammaPolicyFactory> goodspeed_gamma_from(const GammaArguments& arguments) {
  GoodSpeedOptions options;
  ASSIGN_OR_RETURN(options.max, gamma_integer(arguments, "max", 1, 1024));
  ASSIGN_OR_RETURN(options.budget, gamma_integer(arguments, "budget", 0, 1 << 20));
  ASSIGN_OR_RETURN(options.eta, gamma_number(arguments, "eta", 1e-6, 1));
  ASSIGN_OR_RETURN(options.beta, gamma_number(arguments, "beta", 1e-6, 1));
  const auto batches = std::make_shared<ByGroup<FairBatch>>(FairBatch());
  return GammaPolicyFactory(
      [options, batches] { return std::make_unique<GoodSpeedGamma>(options, batches); });
}

}  // namespace outrider
