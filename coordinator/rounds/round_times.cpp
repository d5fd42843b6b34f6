#include "coordinator/rounds/round_times.h"

#include <algorithm>
#include <utility>

namespace outrider {
namespace {

constexpr double kEwmaWeight = 0.1;
constexpr double kStepPatience = 50, kLateSteps = 3;

double nanoseconds(Clock::duration time) {
  return static_cast<double>(std::chrono::nanoseconds(time).count());
}

Clock::duration from_nanoseconds(double ns) { return std::chrono::nanoseconds(static_cast<int64_t>(ns)); }

void average(double* ewma, double ns) {
  *ewma = *ewma == 0 ? ns : (1 - kEwmaWeight) * *ewma + kEwmaWeight * ns;
}

}  // namespace

void RoundTimes::observe_step(Clock::duration time, int32_t rows, bool prefills) {
  average(&step_ns_, nanoseconds(time));
  if (!prefills) return;
  prompt_ns_ += nanoseconds(time);
  prompt_rows_ += rows;
}

void RoundTimes::observe_round(Clock::duration time, bool ordinary) {
  if (ordinary && !std::exchange(had_ordinary_round_, true)) round_ns_ = 0;
  average(&round_ns_, nanoseconds(time));
}

Clock::duration RoundTimes::draft_timeout() const {
  return std::max<Clock::duration>(options_.draft_timeout_min,
                                   from_nanoseconds(options_.draft_timeout_rounds * round_ns_));
}

Clock::duration RoundTimes::liveness_timeout() const {
  const auto scaled = from_nanoseconds(options_.liveness_rounds * std::max(round_ns_, step_ns_));
  return std::min<Clock::duration>(options_.liveness_timeout,
                                   std::max<Clock::duration>(options_.liveness_timeout_min, scaled));
}

Clock::duration RoundTimes::late_step(Clock::duration expected) const {
  const double longest = std::max(step_ns_, nanoseconds(expected));
  return std::max<Clock::duration>(options_.handoff_timeout, from_nanoseconds(kLateSteps * longest));
}

Clock::duration RoundTimes::step_timeout() const {
  return std::max<Clock::duration>(options_.step_timeout_min, from_nanoseconds(kStepPatience * step_ns_));
}

Clock::duration RoundTimes::prefill(int32_t tokens) const {
  return from_nanoseconds(prompt_rows_ > 0 ? tokens * (prompt_ns_ / prompt_rows_) : 0);
}

}  // namespace outrider
