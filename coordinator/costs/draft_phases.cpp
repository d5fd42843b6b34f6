#include "coordinator/costs/draft_phases.h"

#include <algorithm>
#include <utility>

namespace outrider {
namespace {

constexpr double kForgetPhases = 0.98;      // weight of old measurements at each new one
constexpr double kPriorWeight = 1;          // one draft of one token
constexpr double kFirstPhases = 4;          // weight of the first exchange time, in drafts
constexpr double kProbeDraftWeight = 0.25;  // of a probe draft's time, against all before
constexpr double kFurtherRidge = 1e-3;      // relative: in doubt a batch drafts in one pass
// Draft times differ by the length of the preceding prefill, and message times by the other traffic. A time
// slice of the scheduler is much longer than both, for models fast enough for this to matter.
constexpr double kMost = 2;
constexpr int32_t kBusySpell = 8, kProbeDraftSpell = 3;  // outliers in a row that are taken for a change
constexpr double kNoExchange = 0.05;                     // passes; shorter exchanges count as equal

}  // namespace

void DraftPhases::Sums::add(const Measured& draft) {
  const double l = draft.longest, m = draft.further;
  for (double* sum : {&ll, &mm, &lm, &ld, &md}) *sum *= kForgetPhases;
  ll += l * l;
  mm += m * m;
  lm += l * m;
  ld += l * draft.busy;
  md += m * draft.busy;
}

// Least squares through the origin; both costs >= 0.
DraftCost DraftPhases::Sums::cost() const {
  const double ridged = mm + kFurtherRidge * (mm + ll);
  const double det = ll * ridged - lm * lm;
  if (mm > 0 && det > 1e-12 * ll * ridged) {
    const DraftCost cost{.per_step = (ld * ridged - md * lm) / det, .per_further = (md * ll - ld * lm) / det};
    if (cost.per_step >= 0 && cost.per_further >= 0) return cost;
  }
  return {.per_step = ld / ll, .per_further = 0};
}

DraftPhases::DraftPhases(double token_seconds, bool is_ratio)
    : is_ratio_(is_ratio),
      prior_{.ll = kPriorWeight, .ld = kPriorWeight * token_seconds},
      sums_(prior_),
      busy_watch_(kMost, kBusySpell),
      exchange_watch_(kMost, kBusySpell),
      probe_draft_watch_(kMost, kProbeDraftSpell),
      prefill_watch_(kMost, kProbeDraftSpell) {}

void DraftPhases::scale(double by) {
  probe_draft_waits_ = 0;     // the time of a pass was unknown
  if (tells_token()) return;  // in seconds already
  prior_.ld *= by;
  sums_ = prior_;
}

void DraftPhases::expect(const DraftCost& cost) {
  if (is_known()) return;
  expected_step_ = cost.per_step;
  prior_ = {.ll = kPriorWeight,
            .mm = kPriorWeight,
            .ld = kPriorWeight * cost.per_step,
            .md = kPriorWeight * cost.per_further};
  sums_ = prior_;
}

void DraftPhases::set_blocks(bool of_blocks) {
  if (of_blocks == of_blocks_) return;
  DraftPhases fresh(prior_.ld / prior_.ll, is_ratio_);
  fresh.of_blocks_ = of_blocks;
  *this = fresh;
}

void DraftPhases::observe(const DraftPhase& phase, double pass) {
  if (phase.longest <= 0 || phase.busy < 0) return;
  const double exchange = std::max(0.0, phase.wait - phase.busy);
  const DraftUnits units(phase.longest, phase.total, of_blocks_);
  const Measured measured{.longest = units.longest,
                          .further = units.further,
                          .busy = phase.busy,
                          .exchange = exchange,
                          .lost = std::min(phase.lost, exchange),
                          .prepared = phase.prepared};
  const Measured believed =
      phases_ < static_cast<int64_t>(kFirst) ? learn_first(measured, pass) : learn(measured, pass);
  cut_off_.add(measured.busy - believed.busy + measured.exchange - believed.exchange);
  ++phases_;
  drafted_ += phase.longest;
  busy_ += phase.busy;
  exchanged_ += exchange;
}

// Time lost to dropped messages is part of the usual exchange. Other delays are capped, since their cause is
// unknown. Prepared drafts do not teach the drafting time: they take none of it or all of it.
DraftPhases::Measured DraftPhases::learn(Measured phase, double pass) {
  const DraftCost usual = cost();
  const bool is_usual = phase.further == 0 || 2 * sums_.mm >= phase.further * phase.further;
  if (is_usual && !phase.prepared)
    phase.busy =
        busy_watch_.believed(phase.busy, usual.per_step * phase.longest + usual.per_further * phase.further);
  phase.exchange = phase.lost + exchange_watch_.believed(phase.exchange - phase.lost,
                                                         std::max(exchange_, kNoExchange * pass));
  sums_.add(phase);
  add_exchange(phase.exchange, phases_);
  return phase;
}

// Fits all first samples again with each new one. There is no usual time yet, and the first sample may be the
// outlier.
DraftPhases::Measured DraftPhases::learn_first(const Measured& last, double pass) {
  Measured& place = first_[static_cast<size_t>(phases_)];
  place = last;
  // Probe drafts of one sequence say nothing about a batch.
  if (phases_ == 0 && (probe_draft_told_token_ || is_expected()) && last.further == 0)
    place.busy = std::min(last.busy, kMost * cost().per_step * last.longest);
  const std::span<const Measured> first(first_.data(), static_cast<size_t>(phases_) + 1);
  std::array<double, kFirst> values{};
  for (size_t i = 0; i < first.size(); ++i) values[i] = first[i].exchange - first[i].lost;
  const double usual_exchange = lower_median(std::span(values).first(first.size()));
  sums_ = is_ratio_ && !is_expected() ? Sums{} : prior_;
  Measured believed;
  for (size_t i = 0; i < first.size(); ++i) {
    believed = first[i];
    size_t count = 0;
    for (const Measured& other : first)
      if (2 * other.further >= believed.further && !other.prepared)
        values[count++] = other.busy / other.longest;
    if (!believed.prepared)
      believed.busy =
          std::min(believed.busy, kMost * lower_median(std::span(values).first(count)) * believed.longest);
    believed.exchange = believed.lost + std::min(believed.exchange - believed.lost,
                                                 kMost * std::max(usual_exchange, kNoExchange * pass));
    sums_.add(believed);
    add_exchange(believed.exchange, static_cast<int64_t>(i));
  }
  return believed;
}

// `before`: phases that came before.
void DraftPhases::add_exchange(double exchange, int64_t before) {
  if (before == 0)
    exchange_ = probe_drafts_ > 0 ? std::min(exchange, probe_draft_exchange_) : exchange;
  else if (before == 1 && probe_drafts_ == 0)
    exchange_ = std::min(exchange_, exchange);
  else
    exchange_ += std::max(1 - kForgetPhases, 1 / (kFirstPhases + static_cast<double>(before))) *
                 (exchange - exchange_);
}

void DraftPhases::observe_probe_draft(const ProbeDrafting& observed, double pass) {
  ProbeDrafting probe_draft = observed;
  if (of_blocks_) probe_draft.tokens = std::min(probe_draft.tokens, 1);
  double prefill = probe_draft.prefill;
  if (probe_draft_prefill_ > 0) prefill = prefill_watch_.believed(prefill, probe_draft_prefill_);
  if (prefill > 0)
    probe_draft_prefill_ +=
        (probe_draft_prefill_ == 0 ? 1 : kProbeDraftWeight) * (prefill - probe_draft_prefill_);
  const double exchange = probe_draft.exchange;
  const bool tells = probe_draft.tokens > 0 && probe_draft.busy;
  const double token = tells ? *probe_draft.busy / probe_draft.tokens : cost().per_step;
  if (is_measured()) {
    const double surely = probe_draft_watch_.believed(std::max(0.0, exchange - probe_draft.tokens * pass),
                                                      std::max(exchange_, kNoExchange * pass));
    double change =
        kProbeDraftWeight * (std::min(0.0, exchange - exchange_) + std::max(0.0, surely - exchange_));
    // It confirms or corrects a first draft that was doubted: the shorter exchange of both holds.
    if (is_single()) change = std::min(0.0, exchange - exchange_);
    exchange_ += change;
    is_confirmed_ = true;
    const double share = std::min(1.0, token / std::max(1e-12, cost().per_step));
    sums_.ld *= share;
    sums_.md *= share;
    for (Measured& draft : first_) {  // they may be fitted again
      draft.busy *= share;
      draft.exchange = std::max(draft.lost, draft.exchange + change);
    }
    return;
  }
  if (probe_drafts_ == 0 || exchange < probe_draft_exchange_) {
    probe_draft_exchange_ = exchange;
    probe_draft_tokens_ = probe_draft.tokens;
    probe_draft_waits_ = 0;
  }
  settle_probe_draft(pass);
  ++probe_drafts_;
  if (tells)
    sums_.ld =
        sums_.ll * (std::exchange(probe_draft_told_token_, true) ? std::min(cost().per_step, token) : token);
}

void DraftPhases::settle_probe_draft(double pass) {
  if (is_measured()) return;
  probe_draft_waits_ = std::max(probe_draft_waits_, probe_draft_tokens_ * pass);
  exchange_ = std::max(0.0, probe_draft_exchange_ - probe_draft_waits_);
}

}  // namespace outrider
