#include "coordinator/gamma/ewma.h"

#include <cmath>

#include "coordinator/gamma/goodput.h"
#include "coordinator/gamma/policies.h"
#include "coordinator/gamma/probe_budget.h"
#include "coordinator/settled_passes.h"

namespace outrider {
namespace {

constexpr double kTrialShare = 0.01;
constexpr int32_t kRarest =
    4;  // trials of drafts that found nothing so many times in a row are so much rarer
constexpr double kMaxStanding = 8;   // plain steps: past gains do not pay for a long loss
constexpr double kMinStanding = -2;  // nor is a wrong estimate of one step paid for by a thousand others
constexpr int32_t kFirstLength = 1;  // until it is known what drafting costs
constexpr double kMaxTrials = 4;     // credit for so many: a burst can confirm what one found
// Plain steps are tried where the gain is not clear, and rarely where it is: a wrong fit looks clear, too.
constexpr double kClearGain = 1.3;
constexpr int32_t kPlainTrialMinGap = 16, kPlainTrialMaxGap = 1024;  // steps
// The first steps after a draft say nothing about plain decoding (settled_passes.h). What a plain step costs
// decides more than any other figure, so the first trial finds it out.
constexpr int32_t kPlainTrialSteps = SettledPasses::kUnsettled + 4;
constexpr int32_t kFirstPlainTrialSteps = SettledPasses::kUnsettled + 8;
constexpr int32_t kIdleRounds = 32;  // then one token is tried: the others' drafts are waited for anyway
constexpr double kLongWait = 4;      // plain steps: prompts that take longer to read are not waited for
constexpr double kLeastShadow =
    0.25;  // plain steps that a shadow draft is thought to cost at least: wake-ups

}  // namespace

EwmaBatch::EwmaBatch(const EwmaOptions& options)
    : options_(options), shared_(options.prior_mean, options.prior_tests, 1) {}

void EwmaBatch::join(EwmaGamma* member) {
  members_.push_back(member);
  stale_ = true;
}

void EwmaBatch::leave(EwmaGamma* member) {
  std::erase(members_, member);
  stale_ = true;
}

void EwmaBatch::Step::add(int32_t drafted_tokens, int32_t accepted_tokens, bool waited) {
  ++rounds;
  accepted += accepted_tokens;
  drafted += drafted_tokens;
  longest = std::max({longest, drafted_tokens, waited ? 1 : 0});
}

double EwmaBatch::Step::seconds(const CostModel& cost, int64_t context) const {
  return cost.verify_seconds(rounds + drafted, context) + cost.draft_phase_seconds(longest, drafted);
}

void EwmaBatch::learn(const RoundOutcome& outcome) {
  stale_ = true;
  step_.add(outcome.found ? outcome.drafted : outcome.proposed, outcome.accepted, outcome.proposed > 0);
  if (outcome.found) found_.add(outcome.drafted, outcome.accepted, members_.size());
  learn_acceptance(outcome.drafted, outcome.accepted);
}

void EwmaBatch::learn_shadow(int32_t drafted, int32_t accepted) {
  stale_ = true;
  since_draft_ = 0;
  if (finds_ && shadows_ == Shadows::kTests) found_.add(drafted, accepted, members_.size());
  if (drafted > 0 || finds_) shadow_.add(drafted, accepted, true);
  learn_acceptance(drafted, accepted);
}

void EwmaBatch::learn_acceptance(int32_t drafted, int32_t accepted) {
  if (drafted == 0) return;
  // Decayed once a step, in as many parts as there are sequences.
  shared_.forget((1 - options_.decay) / static_cast<double>(std::max<size_t>(1, members_.size())));
  shared_.update(drafted, accepted);
}

void EwmaBatch::decide(const CostModel& cost) {
  if (!stale_) return;
  stale_ = false;
  acceptance_.clear();
  limits_.clear();
  unread_.clear();
  int64_t total_context = 0;
  bool all_chosen = true, early = false;
  finds_ = true;
  shadows_ = Shadows::kTests;
  shadow_out_ = false;
  for (const EwmaGamma* member : members_) {
    shadows_ = std::min(shadows_, member->shadows_);
    shadow_out_ |= member->shadow_out_;
    acceptance_.push_back(member->estimate());
    const int32_t limit = member->is_read_aside() ? 0 : member->limit_;
    limits_.push_back(cost.draft_known() ? limit : std::min(limit, kFirstLength));
    unread_.push_back(member->unread_);
    total_context += member->context_;
    all_chosen &= member->gamma_ >= 0;
    early |= member->early_;
    finds_ &= member->found_;
  }
  const double plain = cost.verify_seconds(static_cast<int32_t>(members_.size()), total_context);
  plain_seconds_ = plain;
  in_seconds_ = cost.is_in_seconds();
  const bool step_over = step_.rounds > 0;  // else somebody joined or left, or a shadow came
  if (step_over) settle(cost, plain, total_context, early ? trial_before_ : trial_);
  const GoodputChoice best = best_choice(cost, total_context, plain);
  choose(cost, total_context, best, all_chosen);
  if (step_over) {
    trial_before_ = trial_;
    consider_trial(cost, plain, best.rate);
  }
  consider_rehearsal(cost);
}

GoodputChoice EwmaBatch::best_choice(const CostModel& cost, int64_t context, double plain_seconds) {
  if (!finds_) return allocate_goodput(acceptance_, limits_, unread_, cost, context);
  const auto batch = static_cast<int32_t>(members_.size());
  const double asked = found_.rate(cost, batch, context), plain = batch / plain_seconds;
  return {.gammas = std::vector<int32_t>(members_.size(), asked > plain ? 1 : 0),
          .rate = std::max(asked, plain)};
}

void EwmaBatch::choose(const CostModel& cost, int64_t context, const GoodputChoice& best, bool all_chosen) {
  for (size_t i = 0; i < members_.size(); ++i)  // whose prompt is not worth reading
    if (unread_[i].seconds > 0 && limits_[i] == 0) members_[i]->gamma_ = 0;
  if (cost.draft_doubted()) {
    for (size_t i = 0; i < members_.size(); ++i) members_[i]->gamma_ = std::min(kFirstLength, limits_[i]);
  } else if (options_.trials && standing_ < 0) {
    for (EwmaGamma* member : members_) member->gamma_ = 0;
  } else if (!all_chosen || best.rate > (1 + options_.switch_gain) * rate_of_present(cost, context)) {
    for (size_t i = 0; i < members_.size(); ++i) members_[i]->gamma_ = best.gammas[i];
  }
}

double EwmaBatch::rate_of_present(const CostModel& cost, int64_t context) const {
  double tokens = 0;
  int32_t longest = 0, total = 0;
  if (finds_ && std::any_of(members_.begin(), members_.end(), [](const auto* m) { return m->gamma_ > 0; }))
    return found_.rate(cost, static_cast<int32_t>(members_.size()), context);
  for (size_t i = 0; i < members_.size(); ++i) {
    tokens += expected_tokens(acceptance_[i], members_[i]->gamma_);
    longest = std::max(longest, members_[i]->gamma_);
    total += members_[i]->gamma_;
  }
  const auto rows = total + static_cast<int32_t>(members_.size());
  return tokens / (cost.verify_seconds(rows, context) + cost.draft_phase_seconds(longest, total));
}

// The step that ended, at what it costs by the model and not by the clock: a pass that was held up is not the
// drafter's fault, and one that is always slow the model knows.
void EwmaBatch::settle(const CostModel& cost, double plain_seconds, int64_t context, Trial trial) {
  const Step step = std::exchange(step_, {});
  settle_shadows(cost, context);
  const bool asked = step.longest > 0;
  since_draft_ = asked ? 0 : std::min(since_draft_ + 1, kRehearsedFor);
  if (cost.draft_doubted()) {
    uncharged_ += asked;
    return;
  }
  const bool rehearsed_trial = shadows_ != Shadows::kNone && asked;
  const double seconds = step.seconds(cost, context);
  const double gain = step.tokens() - seconds / plain_seconds;
  // A doubted step cost what the one did that settled the doubt.
  const double all = gain * (1 + std::exchange(uncharged_, 0));
  standing_ = std::clamp(standing_ + (asked ? all : kTrialShare), kMinStanding, kMaxStanding);
  const double paid = std::clamp(standing_ - kMinStanding, 0.0, debt_);
  standing_ -= paid;
  debt_ -= paid;
  if (trial == Trial::kDraft)
    credit_ += gain * plain_seconds - (rehearsed_trial ? shadow_seconds(cost, plain_seconds) : 0);
  else if (trial == Trial::kPlain)
    credit_ -= std::max(0.0, seconds - step.rounds / trial_rate_);
  else
    credit_ += kTrialShare / (off_ ? std::clamp(fruitless_, 1, kRarest) : 1) * seconds;
}

// While drafting is off for what it lost, its shadows count as if they had been rounds, so that it comes back
// when they gain. All of them together: those that are wrong at once are known to be so first.
void EwmaBatch::settle_shadows(const CostModel& cost, int64_t context) {
  if (shadow_out_) return;
  const Step shadow = std::exchange(shadow_, {});
  if (shadow.rounds == 0 || standing_ >= 0) return;
  const double plain = cost.verify_seconds(shadow.rounds, context);
  standing_ = std::min(0.0, standing_ + shadow.tokens() - shadow.seconds(cost, context) / plain);
}

// At gamma 0 a short draft is tried now and then, else a plain step: only so is it known what the other
// choice costs. All sequences try in the same step, so the wait is paid once and all of them learn.
void EwmaBatch::consider_trial(const CostModel& cost, double plain_seconds, double best_rate) {
  const auto batch = static_cast<int32_t>(members_.size());
  const bool was_off = off_;
  off_ = std::all_of(members_.begin(), members_.end(), [](const EwmaGamma* m) { return m->gamma_ == 0; });
  if (off_ != was_off) credit_ = 0;
  if (!off_ && trial_ == Trial::kPlain && --plain_left_ > 0) return;
  if (!off_) fruitless_ = 0;
  trial_ = Trial::kNone;
  double extra = 0;
  if (off_ && shadow_out_) return;
  const int32_t explorers = off_ ? choose_explorers() : 0;
  if (off_ && explorers == 0) return;
  if (off_ && shadows_ == Shadows::kTests) {
    extra = shadow_seconds(cost, plain_seconds);
  } else if (off_) {
    extra = cost.verify().per_row * explorers * ProbeBudget::kLength +
            cost.draft_phase_seconds(ProbeBudget::kLength, explorers * ProbeBudget::kLength);
    extra += shadows_ == Shadows::kCosts ? shadow_seconds(cost, plain_seconds) : explorers_reading_;
  } else if (++since_plain_ < kPlainTrialMaxGap) {
    if (since_plain_ < kPlainTrialMinGap || best_rate * plain_seconds > kClearGain * batch) return;
    extra = kPlainTrialSteps * std::max(0.0, plain_seconds - batch / best_rate);
  }
  credit_ = std::min(credit_, kMaxTrials * extra);
  const bool due = !off_ && since_plain_ >= kPlainTrialMaxGap;
  if (!options_.trials || (!due && (credit_ <= 0 || credit_ < extra))) return;
  trial_ = off_ ? Trial::kDraft : Trial::kPlain;
  fruitless_ += off_;
  trial_rate_ = best_rate;
  since_plain_ = 0;
  plain_left_ = off_ || std::exchange(plain_tried_, true) ? kPlainTrialSteps : kFirstPlainTrialSteps;
  if (off_ && shadows_ == Shadows::kTests) credit_ -= extra;
}

// What a shadow draft may take from a target that shares devices or cores with the drafter; the link's time
// it does not.
double EwmaBatch::shadow_seconds(const CostModel& cost, double plain_seconds) const {
  const auto explorers =
      std::count_if(members_.begin(), members_.end(), [](const EwmaGamma* m) { return m->explores_; });
  const int32_t total = static_cast<int32_t>(explorers) * ProbeBudget::kLength;
  const double drafting = cost.draft_phase_seconds(ProbeBudget::kLength, total) - cost.exchange_seconds();
  // Looking into the text is no work: a message there and back is all.
  const double least =
      finds_ ? std::min(kLeastShadow * plain_seconds, cost.exchange_seconds()) : kLeastShadow * plain_seconds;
  return std::max(least, drafting + cost.shadow_reading_seconds() + explorers_reading_);
}

// Who makes the drafts that only tell something: those whose texts have been read, or the one that has the
// least to be read, and further ones as long as all of it is little. How many there are.
int32_t EwmaBatch::choose_explorers() {
  explorers_reading_ = 0;
  std::vector<EwmaGamma*> by_reading;
  int32_t count = 0;
  for (EwmaGamma* member : members_) {
    member->explores_ = member->unread_.seconds == 0;
    if (member->explores_)
      ++count;
    else
      by_reading.push_back(member);
  }
  if (count > 0 || shadow_out_ || !in_seconds_) return count;
  std::stable_sort(by_reading.begin(), by_reading.end(), [](const EwmaGamma* a, const EwmaGamma* b) {
    return a->unread_.seconds < b->unread_.seconds;
  });
  for (EwmaGamma* member : by_reading) {
    const double all = explorers_reading_ + member->unread_.seconds;
    if (count > 0 && all > kLeastShadow * plain_seconds_) break;
    explorers_reading_ = all;
    member->explores_ = true;
    ++count;
  }
  return count;
}

// No round waits for a stranger, nor for prompts that take long to read, nor for drafts of a worker that
// reads them. Until it is known what drafts cost a few of the sequences find it out.
void EwmaBatch::consider_rehearsal(const CostModel& cost) {
  bool drafts = trial_ == Trial::kDraft;
  double to_read = 0, being_read = 0;
  for (const EwmaGamma* member : members_) {
    drafts |= member->gamma_ > 0;
    if (member->gamma_ > 0) to_read += member->unread_.seconds;
    if (member->is_read_aside()) being_read += member->unread_.seconds;
  }
  const bool stranger = since_draft_ >= kRehearsedFor || cost.draft_doubted();
  const bool in_shadow = trial_ == Trial::kDraft && shadows_ == Shadows::kTests;
  const bool is_long = std::max(to_read, being_read) > kLongWait * plain_seconds_;
  rehearses_ = options_.trials && shadows_ != Shadows::kNone && drafts && (stranger || in_shadow || is_long);
  if (!rehearses_ || trial_ == Trial::kDraft) return;
  if (!cost.draft_known()) {
    choose_explorers();
    return;
  }
  for (EwmaGamma* member : members_)
    member->explores_ = member->unread_.seconds == 0 ? stranger && being_read == 0 : member->gamma_ > 0;
}

EwmaGamma::EwmaGamma(const EwmaOptions& options, std::shared_ptr<EwmaBatches> batches)
    : options_(options),
      batches_(batches ? std::move(batches) : std::make_shared<EwmaBatches>(EwmaBatch(options))),
      batch_(&batches_->of(0)),
      acceptance_(batch_->mean(), options.prior_tests, options.decay) {}

EwmaGamma::~EwmaGamma() {
  if (joined_) leave();
}

// What was read for a text that ends sooner than it was thought is lost.
void EwmaGamma::leave() {
  batch_->charge(std::exchange(owed_, 0.0));
  batch_->leave(this);
}

double EwmaGamma::estimate() const {
  if (batch_->alone()) return acceptance_.mean();
  const double own = acceptance_.tested();
  return (own * acceptance_.mean() + options_.shrink * batch_->mean()) / (own + options_.shrink);
}

int32_t EwmaGamma::next(const GammaContext& context) {
  limit_ = std::min(options_.max, context.limit);
  context_ = context.context_length;
  early_ = context.early;
  shadows_ = context.shadows;
  shadow_out_ = context.shadow_out;
  found_ = context.found;
  unread_ = {.seconds = context.reading_seconds, .remaining = context.remaining};
  join(context.group);
  batch_->decide(cost_of(context.cost));
  const int32_t gamma = length();
  if (unread_.seconds > 0 && !shadow_out_ && (gamma > 0 || shadow() > 0)) read();
  return gamma;
}

int32_t EwmaGamma::length() {
  if (batch_->rehearses() || is_read_aside()) return 0;
  if (batch_->trial() == EwmaBatch::Trial::kDraft)
    return explores_ ? std::min(ProbeBudget::kLength, limit_) : 0;
  if (batch_->trial() == EwmaBatch::Trial::kPlain) return 0;
  idle_ = gamma_ == 0 && !batch_->off() && unread_.seconds == 0 ? idle_ + 1 : 0;
  if (idle_ < kIdleRounds) return std::min(gamma_, limit_);
  idle_ = 0;
  return std::min(1, limit_);
}

// Its prompt is read from now on. A trial's reading is paid from the budget for trials.
void EwmaGamma::read() {
  if (shadow() > 0) shadow_out_ = true;
  if (batch_->trial() == EwmaBatch::Trial::kDraft) return;
  owed_ += unread_.seconds / batch_->plain_seconds();
  owed_tokens_ = std::max(1, unread_.remaining);
}

// One that moves takes along what it learnt itself, and no length: that was chosen for another batch.
void EwmaGamma::join(int32_t group) {
  EwmaBatch* const batch = &batches_->of(group);
  if (joined_ && batch == batch_) return;
  if (joined_)
    leave();
  else if (batch != batch_)
    acceptance_ = AcceptanceEwma(batch->mean(), options_.prior_tests, options_.decay);
  if (batch != batch_) gamma_ = -1;
  batch_ = batch;
  joined_ = true;
  batch_->join(this);
}

void EwmaGamma::update(const RoundOutcome& outcome) {
  batch_->learn(outcome);
  learn(outcome.drafted, outcome.accepted);
  if (outcome.drafted == 0) return;
  unread_.seconds = 0;
  if (owed_ == 0) return;
  const int32_t tokens = std::min(outcome.accepted + 1, owed_tokens_);
  const double part = owed_ * tokens / owed_tokens_;
  owed_ = tokens < owed_tokens_ ? owed_ - part : 0;
  owed_tokens_ -= tokens;
  batch_->charge(part);
}

int32_t EwmaGamma::shadow() const {
  return batch_->rehearses() && explores_ ? std::min(ProbeBudget::kLength, limit_) : 0;
}

void EwmaGamma::observe_shadow(int32_t drafted, int32_t accepted) {
  unread_.seconds = 0;
  shadow_out_ = false;
  batch_->learn_shadow(drafted, accepted);
  learn(drafted, accepted);
}

void EwmaGamma::learn(int32_t drafted, int32_t accepted) {
  if (drafted == 0) return;
  acceptance_.update(drafted, accepted);
  watch_for_change(drafted, accepted);
}

// When acceptance falls, tests become rare and the average follows slowly; when it rises, the past weighs. So
// half the evidence is dropped after a run of rounds without an accepted token, or of tokens without a
// rejection, that the estimate thinks so unlikely: three rounds at 0.85 or fifteen at 0.3; five tokens at
// 0.35.
void EwmaGamma::watch_for_change(int32_t drafted, int32_t accepted) {
  zeros_ = accepted == 0 ? zeros_ + 1 : 0;
  streak_ = accepted == drafted ? streak_ + accepted : 0;
  const bool fell = std::pow(1 - acceptance_.mean(), zeros_) < options_.surprise;
  const bool rose = std::pow(acceptance_.mean(), streak_) < options_.surprise;
  if (!fell && !rose) return;
  zeros_ = streak_ = 0;
  acceptance_.forget(0.5);
  if (fell && batch_->alone()) gamma_ = (gamma_ + 1) / 2;
}

Result<GammaPolicyFactory> ewma_gamma_from(const GammaArguments& arguments) {
  EwmaOptions options;
  ASSIGN_OR_RETURN(options.max, gamma_integer(arguments, "max", 1, 1024));
  ASSIGN_OR_RETURN(options.found_max, gamma_integer(arguments, "found-max", 1, 1024));
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
