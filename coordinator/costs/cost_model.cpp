#include "coordinator/costs/cost_model.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace outrider {
namespace {

constexpr double kForget = 0.98;           // weight of old measurements at each new one
constexpr double kPseudoRows[] = {1, 9};   // plain decoding and a usual draft
constexpr double kMeasuredWeight = 4;      // weight of the target's own measurement, in passes
constexpr double kLongestExpected = 3600;  // seconds of a pass
constexpr double kSlowerMachine = 2;       // times the measured pass: see fit()
constexpr double kContextRidge = 1e-3;     // of the context term, relative to its own spread
constexpr double kMissedPrior = 4;         // passes that found the line right, if passes of as many
                                           // rows differ by so much (a share):
constexpr double kUsualSpread = 0.08;
constexpr double kHiccup = 1.2;                    // times the prediction; slower passes are cut to it
constexpr int32_t kSpell = 32;                     // this many slow passes in a row are taken for a change
constexpr double kFirstHiccup = 2;                 // limit of first passes, times the usual for as many rows
constexpr double kPrefillWeight = 0.25;            // of a new prefill time, against all before
constexpr double kLongPrefill = 2;                 // times the usual; longer times are cut to it
constexpr int32_t kPrefillSpell = 3;               // this many long times in a row are taken for a change
constexpr double kMinContextSpread = 0.05 * 0.05;  // (deviation / mean)^2; below: too similar to fit

}  // namespace

CostModel::CostModel(const CostPrior& prior)
    : prior_(prior),
      scaled_(!prior.relative),
      pass_watch_(kHiccup, kSpell),
      drafts_(prior.draft_token, prior.relative),
      prefill_watch_(kLongPrefill, kPrefillSpell) {
  believe_prior();
}

void CostModel::believe_prior() {
  prior_sums_ = {};
  for (const double n : kPseudoRows)
    prior_sums_.add(n, 0, prior_.base + prior_.per_row * n,
                    prior_.weight / static_cast<double>(std::size(kPseudoRows)));
  sums_ = curve_.is_measured() ? Sums() : prior_sums_;
  refit();
}

void CostModel::expect_passes(const PassTimes& measured) {
  if (passes_ > 0 || !prior_.relative) return;
  curve_ = RowCurve(measured.by_rows);
  if (curve_.is_measured() && measured.row_ns > 0) {
    expected_pass_ = std::min(kLongestExpected, static_cast<double>(measured.row_ns) * 1e-9);
    pass_measured_ = true;
    if (!std::exchange(scaled_, true)) drafts_.scale(expected_pass_);
  }
  believe_prior();
}

void CostModel::expect_drafts(const PassTimes& measured) {
  if (measured.row_ns <= 0 || !prior_.relative || drafts_.is_known()) return;
  const double step = std::min(kLongestExpected, static_cast<double>(measured.row_ns) * 1e-9);
  const RowCurve curve(measured.by_rows);
  const double further =
      curve.is_measured() ? (curve.of(curve.last_rows()) - 1) / (curve.last_rows() - 1) : 0;
  drafts_.expect({.per_step = step, .per_further = step * further});
  read_token_expected_ =
      std::clamp(static_cast<double>(measured.prefill_token_ns) * 1e-9, 0.0, kLongestExpected);
}

// The measured curve stays a part of the fit, at the level of the passes so far: passes of two similar
// numbers of rows do not show a slope. Its weight falls from kMeasuredWeight to one pass. It is measured
// without a context, so it takes the mean context and shows no cost of one. Passes slower than measured
// stretch the curve up to kSlowerMachine: the cores have other work. What is beyond that is no work of rows,
// and is added: messages between hosts take as long for every number of rows.
VerifyCost CostModel::fit() const {
  if (!curve_.is_measured()) return sums_.fit();
  double level = sums_.w > 0 ? sums_.t / sums_.n : expected_pass_, besides = 0;
  if (pass_measured_ && level > kSlowerMachine * expected_pass_) {
    level = kSlowerMachine * expected_pass_;
    besides = (sums_.t - level * sums_.n) / sums_.w;
  }
  const double context = sums_.w > 0 ? sums_.k / sums_.w : 0;
  const double weight = 1 + (kMeasuredWeight - 1) * std::pow(kForget, static_cast<double>(passes_));
  Sums all = sums_;
  for (const double rows : kPseudoRows) {
    const double passes = curve_.of(rows);
    all.add(passes, context, besides + level * passes, weight / static_cast<double>(std::size(kPseudoRows)));
  }
  return all.fit();
}

VerifyCost CostModel::verify() const {
  constexpr int32_t kUsualRows = 9;
  if (!curve_.is_measured()) return fit_;
  const double row = fit_.per_row * (curve_.of(kUsualRows) - 1) / (kUsualRows - 1);
  return {.base = std::max(1e-9, fit_.base + fit_.per_row - row),
          .per_row = row,
          .per_context = fit_.per_context};
}

void CostModel::Sums::add(double rows, double context, double seconds, double weight) {
  w += weight;
  n += weight * rows;
  nn += weight * rows * rows;
  t += weight * seconds;
  nt += weight * rows * seconds;
  k += weight * context;
  kk += weight * context * context;
  nk += weight * rows * context;
  kt += weight * context * seconds;
}

void CostModel::Sums::scale(double by) {
  t *= by;
  nt *= by;
}

void CostModel::Sums::forget() {
  for (double* sum : {&w, &n, &nn, &t, &nt, &k, &kk, &nk, &kt}) *sum *= kForget;
}

void CostModel::observe_verify(int32_t rows, int64_t context, double seconds) {
  if (rows <= 0 || seconds <= 0) return;
  if (passes_ == 0 && curve_.is_measured() && rows > 2 * curve_.last_rows()) {
    curve_ = {};  // a large batch may have another bottleneck
    believe_prior();
  }
  Pass pass{.rows = rows, .context = context, .seconds = seconds};
  if (passes_ < static_cast<int64_t>(kFirst)) {
    first_[static_cast<size_t>(passes_)] = pass;
    learn_first(std::span(first_).first(static_cast<size_t>(passes_) + 1));
  } else {
    const double predicted = verify_seconds(rows, context);
    see(pass, predicted);
    pass.seconds = pass_watch_.believed(seconds, predicted);
    cut_off_.add((seconds - pass.seconds) / pass.seconds);
    learn(pass);
  }
}

void CostModel::see(const Pass& pass, double predicted) {
  ++passes_;
  seen_.predicted += predicted;
  seen_.measured += pass.seconds;
  seen_.absolute_error += std::abs(predicted - pass.seconds);
  seen_.rows += pass.rows;
  seen_.context += static_cast<double>(pass.context);
}

void CostModel::learn(const Pass& pass) {
  sums_.forget();
  sums_.add(curve_.of(pass.rows), static_cast<double>(pass.context), pass.seconds, 1);
  fit_ = fit();
  learn_missed(pass);
  refit();
}

// Fits all first passes again with each new one, the scale included. There is no usual time yet, and the
// first pass may be the outlier. Passes of far fewer rows are not used as a reference.
void CostModel::learn_first(std::span<const Pass> first) {
  sums_ = curve_.is_measured() ? Sums() : prior_sums_;
  missed_ = {};
  for (size_t i = 0; i < first.size(); ++i) {
    Pass pass = first[i];
    std::array<double, kFirst> times{};
    size_t count = 0;
    for (const Pass& other : first)
      if (2 * other.rows >= pass.rows) times[count++] = other.seconds / shape(other.rows);
    pass.seconds =
        std::min(pass.seconds, kFirstHiccup * lower_median(std::span(times).first(count)) * shape(pass.rows));
    if (i == 0 && prior_.relative) sums_.scale(pass.seconds / shape(pass.rows));
    if (!std::exchange(scaled_, true)) set_scale(pass.seconds / shape(pass.rows));
    if (i + 1 == first.size()) {
      see(first[i], verify_seconds(pass.rows, pass.context));
      cut_off_.add((first[i].seconds - pass.seconds) / pass.seconds);
    }
    learn(pass);
  }
}

// After the first pass: converts all ratios to seconds.
void CostModel::set_scale(double scale) {
  drafts_.scale(scale);
  refit();
  drafts_.settle_probe_draft(verify_seconds(1, 0));
}

void CostModel::learn_missed(const Pass& pass) {
  for (Missed& missed : missed_)
    missed = {kForget * missed.weight, kForget * missed.sum, kForget * missed.squares};
  if (pass.rows > kFewRows) return;
  const double share = std::clamp(pass.seconds / line(pass.rows, pass.context) - 1, -0.5, 1.0);
  Missed& missed = missed_[static_cast<size_t>(pass.rows)];
  missed.weight += 1;
  missed.sum += share;
  missed.squares += share * share;
}

// The weight of the prior that the line is right, in passes. It is smaller the less passes of equal rows
// differ: a mixture of experts reads more experts with every row, and no line fits its few rows.
double CostModel::missed_prior() const {
  double weight = 0, spread = 0;
  for (const Missed& missed : missed_) {
    if (missed.weight < 2) continue;
    weight += missed.weight;
    spread += missed.squares - missed.sum * missed.sum / missed.weight;
  }
  if (weight == 0) return kMissedPrior;
  return kMissedPrior * std::min(1.0, spread / weight / (kUsualSpread * kUsualSpread));
}

// Untried numbers of rows are interpolated, or take the last known correction.
void CostModel::refit() {
  fit_ = fit();
  size_t last = 0;
  const double prior = missed_prior();
  for (size_t rows = 1; rows < missed_.size(); ++rows) {
    const Missed& missed = missed_[rows];
    if (missed.weight < 0.5) continue;
    const double now = missed.sum / (missed.weight + prior), before = last == 0 ? now : correction_[last];
    for (size_t between = last + 1; between <= rows; ++between)
      correction_[between] =
          before + (now - before) * static_cast<double>(between - last) / static_cast<double>(rows - last);
    last = rows;
  }
  std::fill(correction_.begin() + static_cast<ptrdiff_t>(last) + 1, correction_.end(),
            last == 0 ? 0.0 : correction_[last]);
}

// Weighted least squares with base > 0, slopes >= 0. The context term is fitted only when contexts differed
// enough to separate it from the base.
VerifyCost CostModel::Sums::fit() const {
  const double det = w * nn - n * n;
  const double row_slope = det > 1e-9 * w * nn ? (w * nt - n * t) / det : 0;
  VerifyCost cost{.base = 0, .per_row = std::max(0.0, row_slope), .per_context = 0};
  const double skk = kk - k * k / w, snn = nn - n * n / w;
  if (kk > 0 && skk * w > kMinContextSpread * k * k && snn > 0) {
    const double snk = nk - n * k / w, snt = nt - n * t / w, skt = kt - k * t / w;
    const double ridge = skk * (1 + kContextRidge);
    const double both = snn * ridge - snk * snk;
    if (both > 1e-9 * snn * ridge) {
      const double n_slope = (snt * ridge - skt * snk) / both, k_slope = (skt * snn - snt * snk) / both;
      if (n_slope >= 0 && k_slope > 0) cost = {.base = 0, .per_row = n_slope, .per_context = k_slope};
    }
  }
  cost.base = std::max(1e-9, (t - cost.per_row * n - cost.per_context * k) / w);
  return cost;
}

double CostModel::verify_seconds(int32_t rows, int64_t context) const {
  const double seconds = line(rows, context);
  return rows <= kFewRows ? seconds * (1 + correction_[static_cast<size_t>(rows)]) : seconds;
}

// The pass that prefills also drafts the first token.
void CostModel::observe_prefill(int32_t tokens, double seconds) {
  if (tokens <= 0 || seconds <= 0) return;
  constexpr double kLeast = 1e-12;
  const double drafting = drafts_.tells_token() ? draft().per_step : 0;
  const double token = std::max(kLeast, (seconds - drafting) / tokens);
  if (read_token_ == 0)
    read_token_ = token;
  else
    read_token_ += kPrefillWeight * (prefill_watch_.believed(token, read_token_) - read_token_);
}

double CostModel::draft_phase_seconds(int32_t longest, int32_t total) const {
  if (longest == 0) return 0;
  const DraftCost cost = draft();
  const double usual = drafts_.exchange() + cost.seconds(longest, total);
  return std::max(usual, (usual + drafts_.cut_off()) / (1 + cut_off_.mean()));
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
         {"draft_ms_per_token", (draft().of_blocks ? drafts_.mean_token() : draft().per_step) * 1e3},
         {"draft_ms_per_further_token", draft().per_further * 1e3},
         {"exchange_ms", drafts_.exchange() * 1e3},
         {"draft_measured", drafts_.is_measured()},
         {"passes", passes_}};
  if (draft().of_blocks) out["draft_ms_per_block"] = draft().per_step * 1e3;
  if (drafts_.is_measured())
    out["mean"]["draft"] = {{"ms_per_token", drafts_.mean_token() * 1e3},
                            {"exchange_ms", drafts_.mean_exchange() * 1e3}};
  for (const RowCurve::Point& point : curve_.points())
    out["measured_before"].push_back({{"rows", point.rows}, {"passes", point.passes}});
  if (read_token_expected_ > 0) out["prefill_ms_measured_before"] = read_token_expected_ * 1e3;
  if (passes_ == 0) return;
  const auto passes = static_cast<double>(passes_);
  out["mean"]["verify"] = {{"ms", seen_.measured / passes * 1e3},
                           {"rows", seen_.rows / passes},
                           {"context_tokens", seen_.context / passes}};
  out["verify_predicted_over_measured"] = seen_.predicted / seen_.measured;
  out["verify_mean_absolute_error"] = seen_.absolute_error / seen_.measured;
}

}  // namespace outrider
