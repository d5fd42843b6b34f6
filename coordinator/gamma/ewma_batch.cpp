#include "coordinator/gamma/ewma_batch.h"

#include <algorithm>

#include "coordinator/gamma/probe_budget.h"

namespace outrider {
namespace {

constexpr int32_t kFirstLength = 1;  // until the cost of drafting is known
constexpr double kLongWait = 4;      // plain steps: longer prefills are not waited for
// A trial costs time whose gain is unlikely where even drafts of this acceptance would lose. Costs may
// change, so trials are not given up.
constexpr double kBestAcceptance = 0.95, kHopelessShare = 0.125;
constexpr double kMinProbeDraft = 0.25;  // plain steps; the least assumed cost of a probe draft: wake-ups

}  // namespace

EwmaBatch::EwmaBatch(const EwmaOptions& options)
    : options_(options), shared_(options.prior_mean, options.prior_tests, 1), trials_(options.trials) {}

void EwmaBatch::join(EwmaMember* member) {
  members_.push_back(member);
  stale_ = true;
}

void EwmaBatch::leave(EwmaMember* member) {
  std::erase(members_, member);
  stale_ = true;
}

double EwmaBatch::estimate(const EwmaMember& member) const {
  if (alone()) return member.acceptance.mean();
  const double own = member.acceptance.tested();
  return (own * member.acceptance.mean() + options_.shrink * mean()) / (own + options_.shrink);
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

void EwmaBatch::learn_probe_draft(int32_t drafted, int32_t accepted) {
  stale_ = true;
  since_draft_ = 0;
  if (finds_ && probe_drafts_ == ProbeDraftMode::kTests) found_.add(drafted, accepted, members_.size());
  if (drafted > 0 || finds_) probe_draft_.add(drafted, accepted, true);
  learn_acceptance(drafted, accepted);
}

void EwmaBatch::learn_acceptance(int32_t drafted, int32_t accepted) {
  if (drafted == 0) return;
  // Each sequence drops its share of one decay per step.
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
  probe_drafts_ = ProbeDraftMode::kTests;
  probe_draft_out_ = false;
  for (const EwmaMember* member : members_) {
    probe_drafts_ = std::min(probe_drafts_, member->probe_drafts);
    probe_draft_out_ |= member->probe_draft_out;
    acceptance_.push_back(estimate(*member));
    const int32_t limit = member->is_read_aside() ? 0 : member->limit;
    const bool is_known =
        cost.draft_known() || (member->local && cost.draft_expected() && !cost.draft_doubted());
    limits_.push_back(is_known ? limit : std::min(limit, kFirstLength));
    unread_.push_back(member->unread);
    total_context += member->context;
    all_chosen &= member->gamma >= 0;
    early |= member->early;
    finds_ &= member->found;
  }
  plain_seconds_ = cost.verify_seconds(static_cast<int32_t>(members_.size()), total_context);
  in_seconds_ = cost.is_in_seconds();
  const bool step_over = step_.rounds > 0;  // false: a sequence joined or left, or a probe draft came
  if (step_over) settle(cost, total_context, trials_.ended(early));
  const GoodputChoice best = best_choice(cost, total_context);
  choose(cost, total_context, best, all_chosen);
  is_hopeless_ = !finds_ && !drafts_could_pay(cost, total_context);
  if (step_over) consider_trial(cost, best.rate);
  consider_rehearsal(cost);
}

GoodputChoice EwmaBatch::best_choice(const CostModel& cost, int64_t context) {
  if (!finds_) {
    drop_unpaid_prefills(cost, context);
    return allocate_goodput(acceptance_, limits_, unread_, cost, context);
  }
  const auto batch = static_cast<int32_t>(members_.size());
  const double asked = found_.rate(cost, batch, context), plain = batch / plain_seconds_;
  return {.gammas = std::vector<int32_t>(members_.size(), asked > plain ? 1 : 0),
          .rate = std::max(asked, plain)};
}

// Sequences that the target still prefills will soon share each pass. A draft then gains less, so a prefill
// that would pay for the few sequences of now may not pay.
void EwmaBatch::drop_unpaid_prefills(const CostModel& cost, int64_t context) {
  const size_t now = members_.size(), soon = now + static_cast<size_t>(expected_members_);
  const bool reads = std::any_of(unread_.begin(), unread_.end(), [](const auto& u) { return u.seconds > 0; });
  if (soon == now || !reads) return;
  acceptance_.resize(soon, mean());
  limits_.resize(soon, *std::max_element(limits_.begin(), limits_.end()));
  unread_.resize(soon, usual_unread_);
  allocate_goodput(acceptance_, limits_, unread_, cost,
                   context * static_cast<int64_t>(soon) / static_cast<int64_t>(now));
  acceptance_.resize(now);
  limits_.resize(now);
  unread_.resize(now);
}

void EwmaBatch::choose(const CostModel& cost, int64_t context, const GoodputChoice& best, bool all_chosen) {
  for (size_t i = 0; i < members_.size(); ++i)  // members whose prompt is not worth a prefill
    if (unread_[i].seconds > 0 && limits_[i] == 0) members_[i]->gamma = 0;
  if (cost.draft_doubted()) {
    for (size_t i = 0; i < members_.size(); ++i) members_[i]->gamma = std::min(kFirstLength, limits_[i]);
  } else if (options_.trials && standing_.is_behind()) {
    for (EwmaMember* member : members_) member->gamma = 0;
  } else if (!all_chosen || best.rate > (1 + options_.switch_gain) * rate_of_present(cost, context)) {
    for (size_t i = 0; i < members_.size(); ++i) members_[i]->gamma = best.gammas[i];
  }
}

bool EwmaBatch::drafts_could_pay(const CostModel& cost, int64_t context) const {
  const bool is_sure = cost.is_in_seconds() && cost.draft_as_expected() &&
                       std::all_of(members_.begin(), members_.end(), [](const auto* m) { return m->local; });
  if (!is_sure) return true;
  std::vector<int32_t> limits;
  for (const EwmaMember* member : members_) limits.push_back(member->limit);
  const std::vector<double> acceptance(members_.size(), kBestAcceptance);
  const GoodputChoice best = allocate_goodput(acceptance, limits, cost, context);
  return best.rate > (1 + options_.switch_gain) * static_cast<double>(members_.size()) / plain_seconds_;
}

double EwmaBatch::rate_of_present(const CostModel& cost, int64_t context) const {
  if (finds_ && std::any_of(members_.begin(), members_.end(), [](const auto* m) { return m->gamma > 0; }))
    return found_.rate(cost, static_cast<int32_t>(members_.size()), context);
  double tokens = 0;
  int32_t longest = 0, total = 0;
  for (size_t i = 0; i < members_.size(); ++i) {
    tokens += expected_tokens(acceptance_[i], members_[i]->gamma);
    longest = std::max(longest, members_[i]->gamma);
    total += members_[i]->gamma;
  }
  const auto rows = total + static_cast<int32_t>(members_.size());
  return tokens / (cost.verify_seconds(rows, context) + cost.draft_phase_seconds(longest, total));
}

// Charges the finished step at its modelled cost, not its measured time, so a single stall is not blamed on
// drafting. A systematic slowdown is in the model.
void EwmaBatch::settle(const CostModel& cost, int64_t context, Trials::Kind trial) {
  const Step step = std::exchange(step_, {});
  settle_probe_drafts(cost, context);
  const bool asked = step.longest > 0;
  since_draft_ = asked ? 0 : std::min(since_draft_ + 1, kRehearsedFor);
  if (cost.draft_doubted()) {
    standing_.doubt(asked);
    return;
  }
  const double seconds = step.seconds(cost, context);
  const double gain = step.tokens() - seconds / plain_seconds_;
  standing_.settle(asked, gain);
  if (trial == Trials::Kind::kDraft) {
    const bool was_rehearsed = probe_drafts_ != ProbeDraftMode::kNone && asked;
    trials_.settle_draft(gain * plain_seconds_ - (was_rehearsed ? probe_draft_seconds(cost) : 0));
  } else if (trial == Trials::Kind::kPlain) {
    trials_.settle_plain(seconds, step.rounds);
  } else {
    trials_.settle_other(is_hopeless_ ? kHopelessShare * seconds : seconds);
  }
}

// While drafting is off because it lost time, probe drafts count as if they had been rounds, so that drafting
// returns when it would gain. Waits for all probe drafts of a step, because rejected ones are known
// first and would bias the result.
void EwmaBatch::settle_probe_drafts(const CostModel& cost, int64_t context) {
  if (probe_draft_out_) return;
  const Step probe_draft = std::exchange(probe_draft_, {});
  if (probe_draft.rounds == 0) return;
  const double plain = cost.verify_seconds(probe_draft.rounds, context);
  standing_.settle_probe_draft(probe_draft.tokens() - probe_draft.seconds(cost, context) / plain);
}

// All sequences try in the same step, so the wait is paid once and all sequences learn from it.
void EwmaBatch::consider_trial(const CostModel& cost, double best_rate) {
  const bool off =
      std::all_of(members_.begin(), members_.end(), [](const EwmaMember* m) { return m->gamma == 0; });
  if (trials_.turn(off)) return;
  if (!off) {
    trials_.consider_plain(plain_seconds_, static_cast<int32_t>(members_.size()), best_rate,
                           cost.rows_expected(static_cast<int32_t>(members_.size())));
    return;
  }
  if (probe_draft_out_) return;
  const int32_t explorers = choose_explorers();
  if (explorers == 0) return;
  if (probe_drafts_ == ProbeDraftMode::kTests) {
    trials_.consider_draft(probe_draft_seconds(cost), true);
    return;
  }
  const int32_t drafted = explorers * ProbeBudget::kLength;
  const double drafts =
      cost.verify().per_row * drafted + cost.draft_phase_seconds(ProbeBudget::kLength, drafted);
  const double before =
      probe_drafts_ == ProbeDraftMode::kCosts ? probe_draft_seconds(cost) : explorers_prefill_;
  trials_.consider_draft(drafts + before, false);
}

// The time that a probe draft may take from a target that shares devices or cores with the drafter. The link
// takes no such time.
double EwmaBatch::probe_draft_seconds(const CostModel& cost) const {
  const auto explorers =
      std::count_if(members_.begin(), members_.end(), [](const EwmaMember* m) { return m->explores; });
  const int32_t total = static_cast<int32_t>(explorers) * ProbeBudget::kLength;
  const double drafting = cost.draft_phase_seconds(ProbeBudget::kLength, total) - cost.exchange_seconds();
  // A lookup in the text costs no work: only the exchange of messages counts.
  const double least = finds_ ? std::min(kMinProbeDraft * plain_seconds_, cost.exchange_seconds())
                              : kMinProbeDraft * plain_seconds_;
  return std::max(least, drafting + cost.probe_draft_prefill_seconds() + explorers_prefill_);
}

// Chooses the sequences that make probe drafts: those that the worker has prefilled, or else the one with the
// shortest prefill, and further ones while the total prefill stays short. Returns their number.
int32_t EwmaBatch::choose_explorers() {
  explorers_prefill_ = 0;
  std::vector<EwmaMember*> by_prefill;
  int32_t count = 0;
  for (EwmaMember* member : members_) {
    member->explores = member->unread.seconds == 0;
    if (member->explores)
      ++count;
    else
      by_prefill.push_back(member);
  }
  if (count > 0 || probe_draft_out_ || !in_seconds_) return count;
  std::stable_sort(by_prefill.begin(), by_prefill.end(), [](const EwmaMember* a, const EwmaMember* b) {
    return a->unread.seconds < b->unread.seconds;
  });
  for (EwmaMember* member : by_prefill) {
    const double all = explorers_prefill_ + member->unread.seconds;
    if (count > 0 && all > kMinProbeDraft * plain_seconds_) break;
    explorers_prefill_ = all;
    member->explores = true;
    ++count;
  }
  return count;
}

// True if all sequences may ask a drafter in the coordinator's process at once: that can at worst be slow.
bool EwmaBatch::is_first_contact(const CostModel& cost) const {
  return !members_.empty() && !cost.draft_known() &&
         std::all_of(members_.begin(), members_.end(), [](const EwmaMember* m) { return m->local; });
}

// Decides whether to make probe drafts in place of drafts: if the worker's cost is unknown or stale, if the
// prefill would take more than kLongWait plain steps, or if the worker is busy with such a prefill. While
// costs are unknown, only a few sequences explore.
void EwmaBatch::consider_rehearsal(const CostModel& cost) {
  const bool tries = trial() == Trials::Kind::kDraft;
  bool drafts = tries;
  double to_read = 0, being_read = 0;
  for (const EwmaMember* member : members_) {
    drafts |= member->gamma > 0;
    if (member->gamma > 0) to_read += member->unread.seconds;
    if (member->is_read_aside()) being_read += member->unread.seconds;
  }
  const bool stranger = (since_draft_ >= kRehearsedFor && !is_first_contact(cost)) || cost.draft_doubted();
  const bool in_probe_draft = tries && probe_drafts_ == ProbeDraftMode::kTests;
  const bool is_long = std::max(to_read, being_read) > kLongWait * plain_seconds_;
  rehearses_ = options_.trials && probe_drafts_ != ProbeDraftMode::kNone && drafts &&
               (stranger || in_probe_draft || is_long);
  if (!rehearses_ || tries) return;
  if (!cost.draft_known()) {
    choose_explorers();
    return;
  }
  for (EwmaMember* member : members_)
    member->explores = member->unread.seconds == 0 ? stranger && being_read == 0 : member->gamma > 0;
}

}  // namespace outrider
