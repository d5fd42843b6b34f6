#include "coordinator/cost_model.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

constexpr double kForget = 0.98;                   // of what was measured, at the next measurement
constexpr double kPseudoRows[] = {1, 9};           // plain decoding and a usual draft
constexpr double kDraftPriorWeight = 1;            // one draft of one token
constexpr double kFirstPhases = 4;                 // drafts that the first one's way there and back is worth
constexpr double kShadowWeight = 0.25;             // of a shadow draft's, against all before
constexpr double kFurtherRidge = 1e-3;             // relative: in doubt a batch drafts together
constexpr double kContextRidge = 1e-3;             // of the context term, relative to its own spread
constexpr double kMissedPrior = 8;                 // passes that found the line right
constexpr double kHiccup = 1.2;                    // times the prediction; a slower pass counts as so much
constexpr int32_t kSpell = 32;                     // as many in a row are no hiccups
constexpr int64_t kFirstPasses = 16;               // before that everything is believed
constexpr double kMinContextSpread = 0.05 * 0.05;  // (deviation / mean)^2 below which context tells nothing

}  // namespace

CostModel::CostModel(const CostPrior& prior)
    : prior_(prior),
      scaled_(!prior.relative),
      ll_(kDraftPriorWeight),
      ld_(kDraftPriorWeight * prior.draft_token) {
  for (const double n : kPseudoRows)
    add(n, 0, prior.base + prior.per_row * n, prior.weight / static_cast<double>(std::size(kPseudoRows)));
  refit();
}

void CostModel::add(double n, double k, double t, double weight) {
  w_ += weight;
  n_ += weight * n;
  nn_ += weight * n * n;
  t_ += weight * t;
  nt_ += weight * n * t;
  k_ += weight * k;
  kk_ += weight * k * k;
  nk_ += weight * n * k;
  kt_ += weight * k * t;
}

void CostModel::set_scale(double seconds, int32_t rows) {
  const double scale = seconds / (prior_.base + prior_.per_row * rows);
  t_ *= scale;
  nt_ *= scale;
  if (!draft_measured_ && shadows_ == 0) ld_ *= scale;  // what a shadow measured is in seconds already
  scaled_ = true;
  refit();
  if (!draft_measured_ && shadows_ > 0) settle_shadow_exchange();
}

void CostModel::observe_verify(int32_t rows, int64_t context, double seconds) {
  if (rows <= 0 || seconds <= 0) return;
  if (!scaled_) set_scale(seconds, rows);
  const double predicted = verify_seconds(rows, context);
  ++passes_;
  predicted_ += predicted;
  measured_ += seconds;
  rows_seen_ += rows;
  context_seen_ += static_cast<double>(context);
  absolute_error_ += std::abs(predicted - seconds);
  slow_passes_ = seconds > kHiccup * predicted ? slow_passes_ + 1 : 0;
  if (passes_ > kFirstPasses && slow_passes_ < kSpell) seconds = std::min(seconds, kHiccup * predicted);
  for (double* sum : {&w_, &n_, &nn_, &t_, &nt_, &k_, &kk_, &nk_, &kt_}) *sum *= kForget;
  add(rows, static_cast<double>(context), seconds, 1);
  fit_ = fit();
  observe_missed(rows, context, seconds);
}

void CostModel::observe_missed(int32_t rows, int64_t context, double seconds) {
  for (Missed& missed : missed_) missed = {kForget * missed.weight, kForget * missed.sum};
  if (rows <= kFewRows) {
    const double line = fit_.base + fit_.per_row * rows + fit_.per_context * static_cast<double>(context);
    missed_[static_cast<size_t>(rows)].weight += 1;
    missed_[static_cast<size_t>(rows)].sum += std::clamp(seconds / line - 1, -0.5, 1.0);
  }
  refit();
}

// Rows that were not tried lie between their neighbours, or are like the last.
void CostModel::refit() {
  fit_ = fit();
  size_t last = 0;
  for (size_t rows = 1; rows < missed_.size(); ++rows) {
    const Missed& missed = missed_[rows];
    if (missed.weight < 0.5) continue;
    const double now = missed.sum / (missed.weight + kMissedPrior),
                 before = last == 0 ? now : correction_[last];
    for (size_t between = last + 1; between <= rows; ++between)
      correction_[between] =
          before + (now - before) * static_cast<double>(between - last) / static_cast<double>(rows - last);
    last = rows;
  }
  std::fill(correction_.begin() + static_cast<ptrdiff_t>(last) + 1, correction_.end(),
            last == 0 ? 0.0 : correction_[last]);
}

void CostModel::observe_draft_phase(int32_t longest, int32_t total, double busy, double wait) {
  if (longest <= 0 || busy < 0) return;
  const double l = longest, m = total - longest;
  if (!draft_measured_ && prior_.relative) ll_ = ld_ = 0;  // a ratio only, and here is something better
  for (double* sum : {&ll_, &mm_, &lm_, &ld_, &md_}) *sum *= kForget;
  ll_ += l * l;
  mm_ += m * m;
  lm_ += l * m;
  ld_ += l * busy;
  md_ += m * busy;
  double exchange = std::max(0.0, wait - busy);
  if (phases_ == 0 && shadows_ > 0) exchange = std::min(exchange, shadow_exchange_);
  if (phases_ == 1 && shadows_ == 0)
    exchange_ = std::min(exchange_, exchange);
  else if (draft_measured_)
    exchange_ +=
        std::max(1 - kForget, 1 / (kFirstPhases + static_cast<double>(phases_))) * (exchange - exchange_);
  else
    exchange_ = exchange;
  draft_measured_ = true;
  ++phases_;
  drafted_ += l;
  busy_ += busy;
  exchanged_ += exchange;
}

void CostModel::observe_shadow(int32_t tokens, double busy, double wait, double reading) {
  shadow_reading_ += (shadow_reading_ == 0 ? 1 : kShadowWeight) * (reading - shadow_reading_);
  const double exchange = std::max(0.0, wait - busy);
  const double token = tokens > 0 ? busy / tokens : draft().per_step;
  if (draft_measured_) {
    const double surely = exchange - verify_seconds(1, 0);  // it may have waited for a pass to end
    exchange_ += kShadowWeight * (std::min(0.0, exchange - exchange_) + std::max(0.0, surely - exchange_));
    const double share = std::min(1.0, token / std::max(1e-12, draft().per_step));
    ld_ *= share;
    md_ *= share;
    return;
  }
  shadow_exchange_ = shadows_ == 0 ? exchange : std::min(shadow_exchange_, exchange);
  settle_shadow_exchange();
  ld_ = ll_ * (shadows_ == 0 ? token : std::min(draft().per_step, token));
  ++shadows_;
}

// It may have waited for a pass to end.
void CostModel::settle_shadow_exchange() {
  exchange_ = std::max(0.0, shadow_exchange_ - verify_seconds(1, 0));
}

// Least squares through the origin; both costs >= 0.
DraftCost CostModel::draft() const {
  const double mm = mm_ + kFurtherRidge * (mm_ + ll_);
  const double det = ll_ * mm - lm_ * lm_;
  if (mm_ > 0 && det > 1e-12 * ll_ * mm) {
    const DraftCost cost{.per_step = (ld_ * mm - md_ * lm_) / det,
                         .per_further = (md_ * ll_ - ld_ * lm_) / det};
    if (cost.per_step >= 0 && cost.per_further >= 0) return cost;
  }
  return {.per_step = ld_ / ll_, .per_further = 0};
}

// Weighted least squares with base > 0, slopes >= 0. The context term joins only when contexts differed
// enough to tell it from the base.
VerifyCost CostModel::fit() const {
  const double det = w_ * nn_ - n_ * n_;
  const double row_slope = det > 1e-9 * w_ * nn_ ? (w_ * nt_ - n_ * t_) / det : 0;
  VerifyCost cost{.base = 0, .per_row = std::max(0.0, row_slope), .per_context = 0};
  const double skk = kk_ - k_ * k_ / w_, snn = nn_ - n_ * n_ / w_;
  if (kk_ > 0 && skk * w_ > kMinContextSpread * k_ * k_ && snn > 0) {
    const double snk = nk_ - n_ * k_ / w_, snt = nt_ - n_ * t_ / w_, skt = kt_ - k_ * t_ / w_;
    const double ridge = skk * (1 + kContextRidge);
    const double both = snn * ridge - snk * snk;
    if (both > 1e-9 * snn * ridge) {
      const double n_slope = (snt * ridge - skt * snk) / both, k_slope = (skt * snn - snt * snk) / both;
      if (n_slope >= 0 && k_slope > 0) cost = {.base = 0, .per_row = n_slope, .per_context = k_slope};
    }
  }
  cost.base = std::max(1e-9, (t_ - cost.per_row * n_ - cost.per_context * k_) / w_);
  return cost;
}

double CostModel::verify_seconds(int32_t rows, int64_t context) const {
  const double line = fit_.base + fit_.per_row * rows + fit_.per_context * static_cast<double>(context);
  return rows <= kFewRows ? line * (1 + correction_[static_cast<size_t>(rows)]) : line;
}

double CostModel::draft_phase_seconds(int32_t longest, int32_t total) const {
  if (longest == 0) return 0;
  const DraftCost cost = draft();
  return exchange_ + cost.per_step * longest + cost.per_further * (total - longest);
}

double CostModel::round_seconds(int32_t gamma, int32_t batch, int32_t context) const {
  return draft_phase_seconds(gamma, gamma * batch) +
         verify_seconds(batch * (gamma + 1), int64_t{batch} * context);
}

void CostModel::fill_json(nlohmann::json& out) const {
  const VerifyCost cost = verify();
  out = {{"verify_base_ms", cost.base * 1e3},
         {"verify_ms_per_row", cost.per_row * 1e3},
         {"verify_ms_per_1000_context_tokens", cost.per_context * 1e6},
         {"draft_ms_per_token", draft().per_step * 1e3},
         {"draft_ms_per_further_token", draft().per_further * 1e3},
         {"exchange_ms", exchange_ * 1e3},
         {"draft_measured", draft_measured_},
         {"passes", passes_}};
  if (phases_ > 0)
    out["mean"]["draft"] = {{"ms_per_token", busy_ / drafted_ * 1e3},
                            {"exchange_ms", exchanged_ / static_cast<double>(phases_) * 1e3}};
  if (passes_ == 0) return;
  const auto passes = static_cast<double>(passes_);
  out["mean"]["verify"] = {{"ms", measured_ / passes * 1e3},
                           {"rows", rows_seen_ / passes},
                           {"context_tokens", context_seen_ / passes}};
  out["verify_predicted_over_measured"] = predicted_ / measured_;
  out["verify_mean_absolute_error"] = absolute_error_ / measured_;
}

}  // namespace outrider
