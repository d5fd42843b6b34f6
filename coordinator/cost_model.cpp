#include "coordinator/cost_model.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

constexpr double kForget = 0.98;                   // algorithms.md 5.3
constexpr double kPseudoRows[] = {1, 9};           // plain decoding and a usual draft
constexpr double kContextRidge = 1e-3;             // of the context term, relative to its own spread
constexpr double kMinContextSpread = 0.05 * 0.05;  // (deviation / mean)^2 below which context tells nothing

}  // namespace

CostModel::CostModel(const CostPrior& prior)
    : prior_(prior),
      scaled_(!prior.relative),
      draft_token_(prior.draft_token),
      draft_measured_(!prior.relative) {
  for (const double n : kPseudoRows)
    add(n, 0, prior.base + prior.per_row * n, prior.weight / static_cast<double>(std::size(kPseudoRows)));
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
  if (!draft_measured_) draft_token_ *= scale;
  scaled_ = true;
}

void CostModel::observe_verify(int32_t rows, int64_t context, double seconds) {
  if (rows <= 0 || seconds <= 0) return;
  if (!scaled_) set_scale(seconds, rows);
  const double predicted = verify_seconds(rows, context);
  ++passes_;
  predicted_ += predicted;
  measured_ += seconds;
  absolute_error_ += std::abs(predicted - seconds);
  for (double* sum : {&w_, &n_, &nn_, &t_, &nt_, &k_, &kk_, &nk_, &kt_}) *sum *= kForget;
  add(rows, static_cast<double>(context), seconds, 1);
}

void CostModel::observe_draft(int32_t tokens, double seconds) {
  if (tokens <= 0 || seconds <= 0) return;
  const double sample = seconds / tokens;
  draft_token_ = draft_measured_ ? kForget * draft_token_ + (1 - kForget) * sample : sample;
  draft_measured_ = true;
}

void CostModel::observe_draft_phase(int32_t drafts, double wait, double longest_busy, double total_busy) {
  if (drafts == 1) {
    const double sample = std::max(0.0, wait - longest_busy);
    exchange_ = exchange_measured_ ? kForget * exchange_ + (1 - kForget) * sample : sample;
    exchange_measured_ = true;
  } else if (drafts > 1 && total_busy > longest_busy) {
    const double sample =
        std::clamp((wait - exchange_ - longest_busy) / (total_busy - longest_busy), 0.0, 1.0);
    serial_ = serial_measured_ ? kForget * serial_ + (1 - kForget) * sample : sample;
    serial_measured_ = true;
  }
}

// Weighted least squares with base > 0, slopes >= 0. The context term joins only when contexts differed
// enough to tell it from the base.
VerifyCost CostModel::verify() const {
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
  const VerifyCost cost = verify();
  return cost.base + cost.per_row * rows + cost.per_context * static_cast<double>(context);
}

double CostModel::draft_phase_seconds(int32_t longest, int32_t total) const {
  return longest == 0 ? 0 : exchange_ + draft_token_ * (serial_ * total + (1 - serial_) * longest);
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
         {"draft_ms_per_token", draft_token_ * 1e3},
         {"exchange_ms", exchange_ * 1e3},
         {"draft_serial_share", serial_},
         {"draft_measured", draft_measured_},
         {"passes", passes_}};
  if (passes_ == 0) return;
  out["verify_predicted_over_measured"] = predicted_ / measured_;
  out["verify_mean_absolute_error"] = absolute_error_ / measured_;
}

}  // namespace outrider
