// The adaptive draft length of SGLang 0.5 (speculative adaptive, strategy "ema"): a few allowed lengths for
// each batch size, and an average of the accepted tokens that moves between them. It weighs no costs: lengths
// of 0 in the tiers of large batches stand for them. All sequences share the averages, as requests of a batch
// do there.
#include <algorithm>
#include <memory>

#include "coordinator/gamma/batch_steps.h"

namespace outrider {
namespace {

struct Constants {
  double alpha = 0.2;    // weight of a batch's accepted tokens in the average
  int32_t interval = 5;  // batches between two decisions
  int32_t warmup = 10;   // batches before the first decision
};
constexpr double kDown = -0.25;  // hysteresis

// Lengths for batches of this size and above, up to the next tier's.
class Tier {
 public:
  Tier(int32_t batch, std::vector<int32_t> lengths) : batch_(batch), lengths_(std::move(lengths)) {
    at_ = lengths_.size() / 2;
    average_ = length() - 1;
  }
  int32_t batch() const { return batch_; }
  int32_t length() const { return lengths_[at_]; }

  // One sequence's round. The rounds of a batch count once.
  void add(int32_t accepted, int32_t batch_size, const Constants& constants) {
    accepted_ += accepted;
    if (++rounds_ < batch_size) return;
    if (length() > 0) average_ += constants.alpha * (static_cast<double>(accepted_) / rounds_ - average_);
    accepted_ = rounds_ = 0;
    ++batches_;
    if (batches_ > constants.warmup && (batches_ - constants.warmup) % constants.interval == 0) decide();
  }

 private:
  void decide() {
    const size_t before = at_, last = lengths_.size() - 1;
    if (length() == 0) {  // after a while without drafts the shortest one is tried
      at_ = std::min(at_ + 1, last);
      if (average_ < 0) average_ = length() - 1;
      return;
    }
    // Tiers that may decode plainly have no hysteresis in SGLang's defaults.
    const double down = lengths_.front() == 0 ? 0 : kDown;
    while (at_ > 0 && average_ <= std::max(0.5, lengths_[at_ - 1] - 0.5) + down) --at_;
    if (at_ < before) return;
    while (at_ < last && average_ > length() - 0.5) ++at_;
  }

  int32_t batch_;
  std::vector<int32_t> lengths_;  // ascending
  size_t at_ = 0;
  double average_ = 0;  // of accepted tokens
  int32_t accepted_ = 0, rounds_ = 0, batches_ = 0;
};

class Tiers {
 public:
  Tiers(std::vector<Tier> tiers, Constants constants) : tiers_(std::move(tiers)), constants_(constants) {}
  int32_t length(int32_t batch_size) { return at(batch_size).length(); }
  void add(const RoundOutcome& outcome) {
    at(outcome.batch_size).add(outcome.accepted, std::max(1, outcome.batch_size), constants_);
  }

 private:
  Tier& at(int32_t batch_size) {
    size_t found = 0;
    for (size_t i = 0; i < tiers_.size(); ++i)
      if (tiers_[i].batch() <= batch_size) found = i;
    return tiers_[found];
  }

  std::vector<Tier> tiers_;
  Constants constants_;
};

class TiersGamma : public GammaPolicy {
 public:
  explicit TiersGamma(std::shared_ptr<Tiers> tiers) : tiers_(std::move(tiers)) {}
  int32_t next(const GammaContext& context) override { return tiers_->length(context.batch_size); }
  void update(const RoundOutcome& outcome) override { tiers_->add(outcome); }

 private:
  const std::shared_ptr<Tiers> tiers_;
};

// "1-3-5-7"
std::vector<int32_t> growing_lengths(std::string_view text) {
  std::vector<int32_t> lengths;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find('-'));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    const std::optional<int32_t> length = read_step_number(one);
    if (!length || (!lengths.empty() && *length <= lengths.back())) return {};
    lengths.push_back(*length);
  }
  return lengths;
}

}  // namespace

Result<GammaPolicyFactory> tiers_gamma_from(const GammaArguments& arguments) {
  // "1:1-3-5-7/8:0-1-3"
  ASSIGN_OR_RETURN(
      std::vector<BatchStep> steps,
      read_batch_steps(arguments, "tiers",
                       "BATCH:LENGTHS with growing batch sizes and lengths, e.g. 1:1-3-5-7/8:0-1-3",
                       &growing_lengths));
  Constants constants;
  ASSIGN_OR_RETURN(constants.alpha, gamma_number(arguments, "alpha", 0.001, 1));
  ASSIGN_OR_RETURN(constants.interval, gamma_integer(arguments, "interval", 1, 1000));
  ASSIGN_OR_RETURN(constants.warmup, gamma_integer(arguments, "warmup", 0, 1000));
  std::vector<Tier> tiers;
  for (BatchStep& step : steps) tiers.emplace_back(step.batch, std::move(step.lengths));
  const auto shared = std::make_shared<Tiers>(std::move(tiers), constants);
  return GammaPolicyFactory([shared] { return std::make_unique<TiersGamma>(shared); });
}

}  // namespace outrider
