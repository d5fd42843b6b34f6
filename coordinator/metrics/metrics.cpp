#include "coordinator/metrics/metrics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/statistics.h"
#include "coordinator/metrics/counters.h"

namespace outrider {
namespace {

constexpr int kOctaveBits = 7;
constexpr size_t kPerOctave = size_t{1} << kOctaveBits;
constexpr int64_t kLongestNs = (int64_t{1} << 46) - 1;

double middle_of_class(size_t index) {
  const size_t shift = index < 2 * kPerOctave ? 0 : index / kPerOctave - 1;
  const double width = std::exp2(shift);
  return static_cast<double>(index - shift * kPerOctave) * width + (width - 1) / 2;
}

// From 1 to count. A product that exceeds a whole number only by rounding, as 0.07 * 100 does, counts as that
// number.
int64_t nearest_rank(double q, int64_t count) {
  constexpr double kRounding = 1e-12;
  const double rank = std::ceil(q * static_cast<double>(count) * (1 - kRounding));
  return std::max<int64_t>(1, static_cast<int64_t>(rank));
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

// Class i holds i ns alone below 2 * kPerOctave; above, an octave [2^k, 2^(k+1)) has kPerOctave equal
// classes.
size_t DurationHistogram::class_of(int64_t ns) {
  const auto value = static_cast<uint64_t>(std::min(ns, kLongestNs));
  const int shift = std::max(0, static_cast<int>(std::bit_width(value)) - kOctaveBits - 1);
  return static_cast<size_t>(shift) * kPerOctave + (value >> shift);
}

void DurationHistogram::add(std::chrono::nanoseconds duration) {
  ++count_;
  const double ns = static_cast<double>(std::max<int64_t>(0, duration.count()));
  sum_ns_ += ns;
  sum_squares_ += ns * ns;
  if (duration.count() < 1) {
    ++zeros_;
    return;
  }
  const size_t at = class_of(duration.count());
  cover(at, at + 1);
  ++counts_[at - first_];
}

void DurationHistogram::add(const DurationHistogram& other) {
  if (!other.counts_.empty()) cover(other.first_, other.first_ + other.counts_.size());
  for (size_t i = 0; i < other.counts_.size(); ++i) counts_[other.first_ + i - first_] += other.counts_[i];
  zeros_ += other.zeros_;
  count_ += other.count_;
  sum_ns_ += other.sum_ns_;
  sum_squares_ += other.sum_squares_;
}

void DurationHistogram::cover(size_t begin, size_t end) {
  if (counts_.empty()) first_ = begin;
  if (begin < first_) {
    counts_.insert(counts_.begin(), first_ - begin, 0);
    first_ = begin;
  }
  if (end > first_ + counts_.size()) counts_.resize(end - first_);
}

void LengthHistogram::add(int64_t length) {
  const auto least = static_cast<uint64_t>(std::max<int64_t>(length, 1) - 1);
  ++classes_[std::min(static_cast<size_t>(std::bit_width(least)), kClasses - 1)];
  sum_ += length;
}

void LengthHistogram::add(const LengthHistogram& other) {
  for (size_t i = 0; i < kClasses; ++i) classes_[i] += other.classes_[i];
  sum_ += other.sum_;
}

int64_t LengthHistogram::count() const {
  return std::accumulate(classes_.begin(), classes_.end(), int64_t{0});
}

int64_t DurationHistogram::count_up_to(std::chrono::nanoseconds bound) const {
  if (bound.count() < 0) return 0;
  const size_t end = bound.count() < 1 ? size_t{0} : class_of(bound.count()) + 1;
  int64_t count = zeros_;
  for (size_t i = 0; i < counts_.size() && first_ + i < end; ++i) count += counts_[i];
  return count;
}

double DurationHistogram::mean_ns() const { return share_of(sum_ns_, static_cast<double>(count_)); }

double DurationHistogram::coefficient_of_variation() const {
  const double mean = mean_ns();
  if (mean <= 0) return 0;
  const double variance = sum_squares_ / static_cast<double>(count_) - mean * mean;
  return std::sqrt(std::max(0.0, variance)) / mean;
}

double DurationHistogram::percentile_ns(double q) const {
  const int64_t rank = nearest_rank(q, count_);
  int64_t seen = zeros_;
  if (seen >= rank) return 0;
  for (size_t i = 0; i < counts_.size(); ++i)
    if ((seen += counts_[i]) >= rank) return middle_of_class(first_ + i);
  return 0;
}

void RoundSums::add_round(int32_t gamma, int32_t accepted_count, int32_t emitted_count, bool first,
                          std::optional<int32_t> levels) {
  const int32_t tested_now = levels.value_or(std::min(gamma, accepted_count + 1));
  ++rounds;
  first_rounds += first;
  g0_rounds += gamma == 0;
  drafted += gamma;
  accepted += accepted_count;
  tested += tested_now;
  emitted += emitted_count;
  if (gamma > 0) emitted_speculative += emitted_count;
  rollbacks += accepted_count < tested_now;
  rolled_back_tokens += gamma - accepted_count;
  count_at(&gamma_histogram, gamma);
  count_at(&accepted_histogram, accepted_count);
  count_at(&burst_histogram, emitted_count);
  for (int32_t i = 0; i < tested_now; ++i) count_at(&position_tested, i);
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
  return share_of(static_cast<double>(accepted), static_cast<double>(tested));
}
double RoundSums::utilisation() const {
  return share_of(static_cast<double>(accepted), static_cast<double>(drafted));
}
double RoundSums::tokens_per_round() const {
  return share_of(static_cast<double>(emitted), static_cast<double>(rounds));
}
double RoundSums::block_efficiency() const {
  return share_of(static_cast<double>(emitted_speculative), static_cast<double>(rounds - g0_rounds));
}

int32_t RoundSums::burst_percentile(double q) const {
  const int64_t rank = nearest_rank(q, rounds);
  int64_t seen = 0;
  for (size_t size = 0; size < burst_histogram.size(); ++size) {
    seen += burst_histogram[size];
    if (seen >= rank) return static_cast<int32_t>(size);
  }
  return 0;
}

void PhaseTimes::add(const PhaseTimes& other) { add_counters(kPhaseCounters, *this, other); }

void DecodingRounds::add(const DecodingRounds& other) {
  rounds += other.rounds;
  emitted += other.emitted;
  phases.add(other.phases);
}

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
  return first_token_at ? in_milliseconds(*first_token_at - submitted_at) : 0.0;
}

void PreparationTotals::add(const PreparationReport& report) {
  constexpr int32_t kMost = 1 << 20;  // limit of a worker's report
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

void Totals::receive(Draft& draft) {
  constexpr int64_t kMostBytes = int64_t{1} << 32;  // limit of a worker's report
  ++drafts_received;
  draft.ingest_ns = reported_ns(draft.ingest_ns);
  draft.draft_ns = reported_ns(draft.draft_ns);
  draft_ingest_ns += draft.ingest_ns;
  draft_ns += draft.draft_ns;
  slice_bytes += std::clamp<int64_t>(draft.slice_bytes, 0, kMostBytes);
  link_bytes += std::clamp<int64_t>(draft.link_bytes, 0, kMostBytes);
  preparation.add(draft.preparation);
}

void Totals::add(const Totals& other) {
  add_counters(kEventCounters, *this, other);
  add_counters(kSliceCounters, *this, other);
  for (size_t i = 0; i < finished.size(); ++i) finished[i] += other.finished[i];
  for (size_t i = 0; i < drafts_dropped.size(); ++i) drafts_dropped[i] += other.drafts_dropped[i];
  rounds.add(other.rounds);
  phases.add(other.phases);
  decoding.add(other.decoding);
  preparation.add(other.preparation);
  trees.add(other.trees);
  for (const auto& [kind, theirs] : other.drafters) {
    DrafterTotals& mine = drafters[kind];
    if (mine.name.empty()) mine.name = theirs.name;
    add_counters(kDrafterCounters, mine, theirs);
    mine.round_seconds += theirs.round_seconds;
  }
  for (size_t i = 0; i < other.groups.size(); ++i)
    add_counters(kGroupCounters, group(static_cast<int32_t>(i)), other.groups[i]);
  ttft.add(other.ttft);
  gaps.add(other.gaps);
  bursts.add(other.bursts);
  e2e.add(other.e2e);
  queued.add(other.queued);
  prompt_lengths.add(other.prompt_lengths);
  generation_lengths.add(other.generation_lengths);
  busy += other.busy;
  const auto take = [](auto& mine, const auto& theirs, auto better) {
    if (theirs && (!mine || better(*theirs, *mine))) mine = theirs;
  };
  take(first_submit_at, other.first_submit_at, std::less<>());
  take(last_finish_at, other.last_finish_at, std::greater<>());
}

int64_t Totals::in_progress() const {
  return submitted - std::accumulate(finished.begin(), finished.end(), int64_t{0});
}

void Totals::count_submitted(Clock::time_point now) {
  if (!first_submit_at) first_submit_at = now;
  if (in_progress() == 0) busy_since = now;
  ++submitted;
}

void Totals::count_finished(FinishReason reason, Clock::time_point now) {
  ++finished[static_cast<size_t>(reason)];
  last_finish_at = now;
  if (in_progress() == 0) busy += now - busy_since;
}

double Totals::busy_seconds() const {
  std::chrono::nanoseconds all = busy;
  if (in_progress() > 0 && last_finish_at && *last_finish_at > busy_since)
    all += *last_finish_at - busy_since;
  return std::min(std::chrono::duration<double>(all).count(), wall_seconds());
}

double Totals::wall_seconds() const {
  if (!first_submit_at || !last_finish_at) return 0;
  return std::chrono::duration<double>(*last_finish_at - *first_submit_at).count();
}

}  // namespace outrider
