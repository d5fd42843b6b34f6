#include "coordinator/gamma/ewma.h"

#include <cmath>

#include "coordinator/gamma/policies.h"
#include "coordinator/gamma/probe_budget.h"

namespace outrider {
namespace {

constexpr int32_t kIdleRounds = 32;  // then one token is tried: the round waits for the others' drafts anyway

}  // namespace

EwmaGamma::EwmaGamma(const EwmaOptions& options, std::shared_ptr<EwmaBatches> batches)
    : options_(options),
      batches_(batches ? std::move(batches) : std::make_shared<EwmaBatches>(EwmaBatch(options))),
      batch_(&batches_->of(0)),
      self_{.acceptance = {batch_->mean(), options.prior_tests, options.decay}} {}

EwmaGamma::~EwmaGamma() {
  if (joined_) leave();
}

// Charges the prefill of a text that ended sooner than expected: its cost was not recovered.
void EwmaGamma::leave() {
  batch_->charge(std::exchange(owed_, 0.0));
  batch_->leave(&self_);
}

int32_t EwmaGamma::next(const GammaContext& context) {
  self_.limit = std::min(options_.max, context.limit);
  self_.context = context.context_length;
  self_.early = context.early;
  self_.probe_drafts = context.probe_drafts;
  self_.probe_draft_out = context.probe_draft_out;
  self_.local = context.local && (context.batch_size == 1 || cost_of(context.cost).draft_expected());
  self_.found = context.found;
  self_.unread = {.seconds = context.prefill_seconds, .remaining = context.remaining};
  if (!joined_) batches_->of(context.group).expect_unread(self_.unread);
  join(context.group);
  batch_->expect_members(context.in_prefill);
  batch_->decide(cost_of(context.cost));
  const int32_t gamma = length();
  if (self_.unread.seconds > 0 && !self_.probe_draft_out && (gamma > 0 || probe_draft() > 0)) read();
  return gamma;
}

int32_t EwmaGamma::length() {
  if (batch_->rehearses() || self_.is_read_aside()) return 0;
  if (batch_->trial() == Trials::Kind::kDraft)
    return self_.explores ? std::min(ProbeBudget::kLength, self_.limit) : 0;
  if (batch_->trial() == Trials::Kind::kPlain) return 0;
  idle_ = self_.gamma == 0 && !batch_->off() && self_.unread.seconds == 0 ? idle_ + 1 : 0;
  if (idle_ < kIdleRounds) return std::min(self_.gamma, self_.limit);
  idle_ = 0;
  return std::min(1, self_.limit);
}

// Accounts for the prefill of its prompt from now on. In a trial the prefill is paid from the budget for
// trials.
void EwmaGamma::read() {
  if (probe_draft() > 0) self_.probe_draft_out = true;
  if (batch_->trial() == Trials::Kind::kDraft) return;
  owed_ += self_.unread.seconds / batch_->plain_seconds();
  owed_tokens_ = std::max(1, self_.unread.remaining);
}

// A sequence that moves to another group keeps its own evidence, but not its length, which was chosen for
// another batch.
void EwmaGamma::join(int32_t group) {
  EwmaBatch* const batch = &batches_->of(group);
  if (joined_ && batch == batch_) return;
  if (joined_)
    leave();
  else if (batch != batch_)
    self_.acceptance = AcceptanceEwma(batch->mean(), options_.prior_tests, options_.decay);
  if (batch != batch_) self_.gamma = -1;
  batch_ = batch;
  joined_ = true;
  batch_->join(&self_);
}

void EwmaGamma::update(const RoundOutcome& outcome) {
  batch_->learn(outcome);
  learn(outcome.drafted, outcome.accepted);
  if (outcome.drafted == 0) return;
  self_.unread.seconds = 0;
  if (owed_ == 0) return;
  const int32_t tokens = std::min(outcome.accepted + 1, owed_tokens_);
  const double part = owed_ * tokens / owed_tokens_;
  owed_ = tokens < owed_tokens_ ? owed_ - part : 0;
  owed_tokens_ -= tokens;
  batch_->charge(part);
}

int32_t EwmaGamma::probe_draft() const {
  return batch_->rehearses() && self_.explores ? std::min(ProbeBudget::kLength, self_.limit) : 0;
}

void EwmaGamma::observe_probe_draft(int32_t drafted, int32_t accepted) {
  self_.unread.seconds = 0;
  self_.probe_draft_out = false;
  batch_->learn_probe_draft(drafted, accepted);
  learn(drafted, accepted);
}

void EwmaGamma::learn(int32_t drafted, int32_t accepted) {
  if (drafted == 0) return;
  self_.acceptance.update(drafted, accepted);
  watch_for_change(drafted, accepted);
}

// When acceptance falls, tests become rare and the average follows slowly; when it rises, old evidence weighs
// too much. So half of the evidence is dropped after a run that the estimate finds too unlikely: rounds
// without an accepted token (three at 0.85, fifteen at 0.3), or tokens without a rejection (five at 0.35).
void EwmaGamma::watch_for_change(int32_t drafted, int32_t accepted) {
  zeros_ = accepted == 0 ? zeros_ + 1 : 0;
  streak_ = accepted == drafted ? streak_ + accepted : 0;
  const bool fell = std::pow(1 - self_.acceptance.mean(), zeros_) < options_.surprise;
  const bool rose = std::pow(self_.acceptance.mean(), streak_) < options_.surprise;
  if (!fell && !rose) return;
  zeros_ = streak_ = 0;
  self_.acceptance.forget(0.5);
  if (fell && batch_->alone()) self_.gamma = (self_.gamma + 1) / 2;
}

Result<GammaPolicyFactory> ewma_gamma_from(const GammaArguments& arguments) {
  EwmaOptions options;
  ASSIGN_OR_RETURN(options.max, gamma_integer(arguments, "max", 1, 1024));
  ASSIGN_OR_RETURN(options.suffix_match_max, gamma_integer(arguments, "found-max", 1, 1024));
  ASSIGN_OR_RETURN(options.decay, gamma_number(arguments, "decay", 0.01, 0.999));
  ASSIGN_OR_RETURN(options.prior_mean, gamma_number(arguments, "prior", 0.01, 0.99));
  ASSIGN_OR_RETURN(options.prior_tests, gamma_number(arguments, "prior-tests", 0.1, 1e6));
  ASSIGN_OR_RETURN(options.switch_gain, gamma_number(arguments, "switch-gain", 0, 10));
  ASSIGN_OR_RETURN(options.surprise, gamma_number(arguments, "surprise", 0, 1));
  ASSIGN_OR_RETURN(options.shrink, gamma_number(arguments, "shrink", 0, 1e6));
  const auto batches = std::make_shared<EwmaBatches>(EwmaBatch(options));
  return GammaPolicyFactory([options, batches] { return std::make_unique<EwmaGamma>(options, batches); });
}

}  // namespace outrider
