#include "coordinator/choices/drafter_choice.h"

#include <algorithm>

namespace outrider {
namespace {

// A trial is long enough for the draft length to settle, and a tenth of the time at most.
constexpr int64_t kTrialRounds = 16;
constexpr int64_t kFirstSettled = 8 * kTrialRounds, kLongestSettled = 128 * kTrialRounds;
constexpr double kDiscount = 0.98;  // per round
// A kind with less than this share of the best kind's rate in the whole run is not tried.
constexpr double kHopeless = 0.5;

}  // namespace

void Goodput::add(int32_t emitted, double round_seconds) {
  tokens = tokens * kDiscount + emitted;
  seconds = seconds * kDiscount + round_seconds;
  ++rounds;
}

void DrafterChoice::add(DrafterKind kind, int32_t emitted, double seconds) {
  arms_[kind].goodput.add(emitted, seconds);
  if (current_ == kind && stays_ > 0) --stays_;
}

DrafterKind DrafterChoice::choose(std::span<const DrafterKind> available, const GoodputByKind& run) {
  const bool is_here =
      current_ && std::find(available.begin(), available.end(), *current_) != available.end();
  if (is_here && stays_ > 0) return *current_;
  if (available.size() == 1) {
    current_ = available.front();
    return *current_;
  }
  if (const auto trial = next_trial(available, run)) {
    arms_[*trial].tried_in = turn_;
    current_ = trial;
    stays_ = kTrialRounds;
    return *current_;
  }
  current_ = best_of(available);
  settled_ = std::clamp(settled_ * 2, kFirstSettled, kLongestSettled);
  stays_ = settled_;
  ++turn_;
  return *current_;
}

// The next kind without a trial in this turn: first an unmeasured one, then the best of the whole run.
std::optional<DrafterKind> DrafterChoice::next_trial(std::span<const DrafterKind> available,
                                                     const GoodputByKind& run) {
  const auto of_run = [&run](DrafterKind kind) {
    const auto at = run.find(kind);
    return at == run.end() ? Goodput() : at->second;
  };
  double best_rate = 0;
  for (const DrafterKind kind : available) best_rate = std::max(best_rate, of_run(kind).rate());
  std::optional<DrafterKind> found;
  double found_rate = -1;
  for (const DrafterKind kind : available) {
    if (arms_[kind].tried_in == turn_) continue;
    const Goodput goodput = of_run(kind);
    const bool measured = goodput.rounds >= kTrialRounds;
    if (measured && goodput.rate() < kHopeless * best_rate) continue;
    if (!measured) return kind;
    if (goodput.rate() > found_rate) {
      found = kind;
      found_rate = goodput.rate();
    }
  }
  return found;
}

DrafterKind DrafterChoice::best_of(std::span<const DrafterKind> available) {
  return *std::max_element(available.begin(), available.end(), [this](DrafterKind a, DrafterKind b) {
    return arms_[a].goodput.rate() < arms_[b].goodput.rate();
  });
}

}  // namespace outrider
