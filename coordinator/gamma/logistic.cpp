#include "coordinator/gamma/logistic.h"

#include <algorithm>
#include <utility>

#include "coordinator/gamma/policies.h"

namespace outrider {
namespace {

// Clamps the margin, since a drafter may send any value.
double margin_of(const RoundOutcome& outcome, size_t place) {
  return std::clamp(static_cast<double>(outcome.margins[place]), -static_cast<double>(kMaxMargin),
                    static_cast<double>(kMaxMargin));
}

constexpr double kForgetStep = 0.98;  // weight of old steps at each new one, as in the cost model
constexpr int32_t kFurtherRows = 4;   // rows that the price of one is averaged over: kernels have steps
constexpr int32_t kSendsFirst = 32;   // rounds, of which one sends its first token, however unlikely: else
                                      // nothing would tell that it has become likelier

}  // namespace

void LogisticBatch::settle(const CostModel& cost) {
  if (step_.rounds == 0) return;
  const Step step = std::exchange(step_, {});
  const int64_t context = std::exchange(context_, 0);
  if (step.drafted == 0) return;
  for (double* sum : {&tokens_, &seconds_, &steps_, &rows_, &sequences_}) *sum *= kForgetStep;
  tokens_ += step.tokens;
  seconds_ += cost.verify_seconds(step.rounds + step.drafted, context) +
              cost.draft_phase_seconds(step.longest, step.drafted);
  steps_ += 1;
  rows_ += step.rounds + step.drafted;
  sequences_ += step.rounds;
  drafting_.resize(std::max(drafting_.size(), step.drafting.size()));
  for (size_t place = 0; place < drafting_.size(); ++place)
    drafting_[place] =
        kForgetStep * drafting_[place] + (place < step.drafting.size() ? step.drafting[place] : 0);
}

// Uses expected tokens where margins are known: the actual tokens of a step scatter by a multiple of what a
// price may.
double LogisticBatch::tokens_of(const RoundOutcome& outcome, double base) const {
  if (outcome.margins.size() < static_cast<size_t>(outcome.drafted)) return outcome.accepted + 1;
  double survival = 1, tokens = 1;
  for (size_t place = 0; place < static_cast<size_t>(outcome.drafted); ++place) {
    const ChanceLine line = fit_.line(place);
    survival *= chance_of_log_odds(base + line.slope * margin_of(outcome, place) + line.offset);
    tokens += survival;
  }
  return tokens;
}

void LogisticBatch::learn(const RoundOutcome& outcome, double base) {
  ++step_.rounds;
  step_.tokens += tokens_of(outcome, base);
  step_.drafted += outcome.drafted;
  step_.longest = std::max(step_.longest, outcome.drafted);
  const auto drafted = static_cast<size_t>(outcome.drafted);
  step_.drafting.resize(std::max(step_.drafting.size(), drafted));
  for (size_t place = 0; place < drafted; ++place) ++step_.drafting[place];
  const auto tested = static_cast<size_t>(std::min(outcome.drafted, outcome.accepted + 1));
  if (outcome.margins.size() < tested) return;
  for (size_t place = 0; place < tested; ++place)
    fit_.observe(place, base, margin_of(outcome, place), place < static_cast<size_t>(outcome.accepted));
}

// Seconds that one more row adds to a pass of the usual size.
double LogisticBatch::row_seconds(const CostModel& cost) const {
  const auto rows = static_cast<int32_t>(rows_ / steps_);
  const double seconds = cost.verify_seconds(rows + kFurtherRows, 0) - cost.verify_seconds(rows, 0);
  return std::max(0.0, seconds / kFurtherRows);
}

// The expected number of sequences that draft a token at this place, at least 1. These sequences share the
// next pass of the draft model. The usual number alone would not do: where no sequence usually drafts, one
// sequence would have to pay for the whole pass, and would never draft.
double LogisticBatch::drafting(size_t place) const {
  const double usual = place < drafting_.size() ? drafting_[place] / steps_ : 0;
  return std::clamp(usual, 1.0, std::max(1.0, sequences_ / steps_));
}

std::vector<PlaceRule> LogisticBatch::places(double chance, int32_t limit, bool sends_first,
                                             const CostModel& cost) const {
  const double rate = tokens_ / seconds_, base = log_odds_of(chance);
  const double row = rate * row_seconds(cost);
  const DraftCost draft = cost.draft();
  std::vector<PlaceRule> places;
  for (size_t place = 0; place < static_cast<size_t>(limit); ++place) {
    const ChanceLine line = fit_.line(place);
    const double together = drafting(place);
    const double drafted = draft.per_further + std::max(0.0, draft.per_step - draft.per_further) / together;
    places.push_back({.slope = static_cast<float>(line.slope),
                      .offset = static_cast<float>(base + line.offset),
                      .least_sent = place == 0 && sends_first ? 0 : static_cast<float>(row),
                      .least_extended = static_cast<float>((row + rate * drafted) / chance)});
  }
  return places;
}

// Trials of ewma stay trials. Until the fit is known, drafts have ewma's lengths and are not ended early, or
// only likely tokens would ever be tested.
int32_t LogisticGamma::next(const GammaContext& context) {
  const CostModel& cost = cost_of(context.cost);
  batch_ = &batches_->of(context.group);
  batch_->settle(cost);
  batch_->plan(context.context_length);
  const int32_t length = lengths_.next(context);
  rule_ = {.kind = StopKind::kChances};
  if (length == 0 || lengths_.chosen() == 0 || !cost.draft_known() || !batch_->known()) return length;
  const int32_t limit = std::min(options_.max, context.limit);
  const bool sends_first = ++rounds_ % kSendsFirst == 0;
  rule_.places = batch_->places(lengths_.estimate(), limit, sends_first, cost);
  return limit;
}

// A draft that was ended early counts as a draft of that length; one that was not sent counts as rejected.
void LogisticGamma::update(const RoundOutcome& outcome) {
  batch_->learn(outcome, log_odds_of(lengths_.estimate()));
  RoundOutcome ended = outcome;
  if (!rule_.places.empty() && outcome.proposed > 0) ended.proposed = std::max(1, outcome.drafted);
  lengths_.update(ended);
}

Result<GammaPolicyFactory> logistic_gamma_from(const GammaArguments& arguments) {
  LogisticOptions options;
  ASSIGN_OR_RETURN(options.max, gamma_integer(arguments, "max", 1, 1024));
  ASSIGN_OR_RETURN(options.memory, gamma_number(arguments, "memory", 0.5, 0.99999));
  ASSIGN_OR_RETURN(options.ridge, gamma_number(arguments, "ridge", 1, 1e6));
  ASSIGN_OR_RETURN(options.known_from, gamma_integer(arguments, "known-from", 0, 1000000));
  const auto batches = std::make_shared<ByGroup<LogisticBatch>>(LogisticBatch(options));
  const auto lengths = std::make_shared<EwmaBatches>(EwmaBatch({.max = options.max}));
  return GammaPolicyFactory(
      [options, batches, lengths] { return std::make_unique<LogisticGamma>(options, batches, lengths); });
}

}  // namespace outrider
