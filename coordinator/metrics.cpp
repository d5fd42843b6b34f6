#include "coordinator/metrics.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "coordinator/counters.h"

namespace outrider {
namespace {

double ratio(double numerator, double denominator) { return denominator > 0 ? numerator / denominator : 0.0; }
double milliseconds(std::chrono::nanoseconds duration) {
  return static_cast<double>(duration.count()) * 1e-6;
}

void count_at(std::vector<int64_t>* histogram, int32_t index) {
  if (histogram->size() <= static_cast<size_t>(index)) histogram->resize(static_cast<size_t>(index) + 1);
  ++(*histogram)[static_cast<size_t>(index)];
}

void add_all(std::vector<int64_t>* to, const std::vector<int64_t>& from) {
  if (to->size() < from.size()) to->resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) (*to)[i] += from[i];
}

}  // namespace

// The class that the bound itself is in counts: a sample may be a little above it.
int64_t DurationHistogram::count_up_to(std::chrono::nanoseconds bound) const {
  if (bound.count() < 0) return 0;
  const auto end = bound.count() < 1 ? size_t{0} : class_of(static_cast<double>(bound.count())) + 1;
  int64_t count = zeros_;
  for (size_t i = 0; i < std::min(end, buckets_.size()); ++i) count += buckets_[i];
  return count;
}

size_t DurationHistogram::class_of(double ns) { return static_cast<size_t>(std::log2(ns) * kPerOctave); }

void DurationHistogram::add(std::chrono::nanoseconds duration) {
  ++count_;
  const double ns = static_cast<double>(duration.count());
  sum_ns_ += ns;
  sum_squares_ += ns * ns;
  if (ns < 1) {
    ++zeros_;
    return;
  }
  count_at(&buckets_, static_cast<int32_t>(class_of(ns)));
}

void DurationHistogram::add(const DurationHistogram& other) {
  add_all(&buckets_, other.buckets_);
  zeros_ += other.zeros_;
  count_ += other.count_;
  sum_ns_ += other.sum_ns_;
  sum_squares_ += other.sum_squares_;
}

double DurationHistogram::mean_ns() const { return ratio(sum_ns_, static_cast<double>(count_)); }

double DurationHistogram::coefficient_of_variation() const {
  const double mean = mean_ns();
  if (mean <= 0) return 0;
  const double variance = sum_squares_ / static_cast<double>(count_) - mean * mean;
  return std::sqrt(std::max(0.0, variance)) / mean;
}

double DurationHistogram::percentile_ns(double q) const {
  const int64_t rank = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(q * static_cast<double>(count_))));
  int64_t seen = zeros_;
  if (count_ == 0 || seen >= rank) return 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen >= rank) return std::exp2((static_cast<double>(i) + 0.5) / kPerOctave);
  }
  return 0;
}

void RoundSums::add_round(int32_t gamma, int32_t accepted_count, int32_t emitted_count, bool first) {
  ++rounds;
  first_rounds += first;
  g0_rounds += gamma == 0;
  drafted += gamma;
  accepted += accepted_count;
  tested += accepted_count + (accepted_count < gamma);
  emitted += emitted_count;
  if (gamma > 0) emitted_speculative += emitted_count;
  if (accepted_count < gamma) {
    ++rollbacks;
    rolled_back_tokens += gamma - accepted_count;
  }
  count_at(&gamma_histogram, gamma);
  count_at(&accepted_histogram, accepted_count);
  count_at(&burst_histogram, emitted_count);
  for (int32_t i = 0; i < std::min(gamma, accepted_count + 1); ++i) count_at(&position_tested, i);
  for (int32_t i = 0; i < accepted_count; ++i) count_at(&position_accepted, i);
}

void RoundSums::add(const RoundSums& other) {
  add_counters(kRoundCounters, *this, other);
  add_all(&gamma_histogram, other.gamma_histogram);
  add_all(&accepted_histogram, other.accepted_histogram);
  add_all(&burst_histogram, other.burst_histogram);
  add_all(&position_tested, other.position_tested);
  add_all(&position_accepted, other.position_accepted);
}

double RoundSums::acceptance() const {
  return ratio(static_cast<double>(accepted), static_cast<double>(tested));
}
double RoundSums::utilisation() const {
  return ratio(static_cast<double>(accepted), static_cast<double>(drafted));
}
double RoundSums::tokens_per_pass() const {
  return ratio(static_cast<double>(emitted), static_cast<double>(rounds));
}
double RoundSums::block_efficiency() const {
  return ratio(static_cast<double>(emitted_speculative), static_cast<double>(rounds - g0_rounds));
}

int32_t RoundSums::burst_percentile(double q) const {
  const auto rank = std::max(1.0, std::ceil(q * static_cast<double>(rounds)));
  int64_t seen = 0;
  for (size_t size = 0; size < burst_histogram.size(); ++size) {
    seen += burst_histogram[size];
    if (static_cast<double>(seen) >= rank) return static_cast<int32_t>(size);
  }
  return 0;
}

void PhaseTimes::add(const PhaseTimes& other) { add_counters(kPhaseCounters, *this, other); }

void RequestMetrics::tokens_emitted(int32_t count, Clock::time_point now) {
  if (count == 0) return;
  if (last_token_at) {
    gaps.add(now - *last_token_at);
    bursts.add(now - *last_token_at);
  } else {
    first_token_at = now;
  }
  for (int32_t i = 1; i < count; ++i) gaps.add(std::chrono::nanoseconds(0));
  last_token_at = now;
}

double RequestMetrics::ttft_ms() const {
  return first_token_at ? milliseconds(*first_token_at - submitted_at) : 0.0;
}

void PreparationTotals::add(const PreparationReport& report) {
  constexpr int32_t kMost = 1 << 20;  // whatever a worker claims
  lookups += report.looked_up;
  hits += report.looked_up && report.hit;
  used_tokens += std::clamp(report.used_tokens, 0, kMost);
  wasted_tokens += std::clamp(report.wasted_tokens, 0, kMost);
  outcomes += std::clamp(report.outcomes, 0, kMost);
  busy_ns += reported_ns(report.busy_ns);
}

void PreparationTotals::add(const PreparationTotals& other) {
  add_counters(kPreparationCounters, *this, other);
}

void Totals::add(const Totals& other) {
  add_counters(kEventCounters, *this, other);
  add_counters(kSliceCounters, *this, other);
  for (size_t i = 0; i < finished.size(); ++i) finished[i] += other.finished[i];
  for (size_t i = 0; i < drafts_dropped.size(); ++i) drafts_dropped[i] += other.drafts_dropped[i];
  rounds.add(other.rounds);
  phases.add(other.phases);
  preparation.add(other.preparation);
  for (const auto& [kind, theirs] : other.drafters) {
    DrafterTotals& mine = drafters[kind];
    if (mine.name.empty()) mine.name = theirs.name;
    add_counters(kDrafterCounters, mine, theirs);
    mine.round_seconds += theirs.round_seconds;
  }
  ttft.add(other.ttft);
  gaps.add(other.gaps);
  bursts.add(other.bursts);
  e2e.add(other.e2e);
  const auto take = [](auto& mine, const auto& theirs, auto better) {
    if (theirs && (!mine || better(*theirs, *mine))) mine = theirs;
  };
  take(first_submit_at, other.first_submit_at, std::less<>());
  take(last_finish_at, other.last_finish_at, std::greater<>());
}

double Totals::wall_seconds() const {
  if (!first_submit_at || !last_finish_at) return 0;
  return std::chrono::duration<double>(*last_finish_at - *first_submit_at).count();
}

}  // namespace outrider
