#include "coordinator/gamma/trials.h"

#include <algorithm>
#include <utility>

#include "coordinator/costs/settled_passes.h"
#include "coordinator/gamma/standing.h"

namespace outrider {
namespace {

// A trial of drafts prefills everything that was written since. After n fruitless trials in a row, trials
// come n times as rarely, up to this factor.
constexpr int32_t kRarest = 4;
constexpr double kMaxTrials = 4;  // credit limit, in trials: a burst can confirm what one trial found
// Plain steps are tried often while the gain is unclear, and rarely otherwise: a wrong fit can look clear,
// too.
constexpr double kClearGain = 1.3;
constexpr int32_t kMinGap = 16, kMaxGap = 1024;  // steps between trials of plain steps
// The first trial of plain steps comes at once, since their cost is unknown. Where drafting seems to gain at
// least this factor, a trial would lose most, and is put off by kFirstPutOff steps.
constexpr double kFirstClearGain = 1.6;
constexpr int32_t kFirstPutOff = 16;
// The first steps after a draft are no measure of plain decoding (settled_passes.h). The cost of a plain step
// matters more than any other figure, so the first trial measures it.
constexpr int32_t kPlainSteps = SettledPasses::kUnsettled + 4;
constexpr int32_t kFirstPlainSteps = SettledPasses::kUnsettled + 8;

}  // namespace

void Trials::settle_plain(double seconds, int32_t rounds) {
  credit_ -= std::max(0.0, seconds - rounds / rate_);
}

void Trials::settle_other(double seconds) {
  credit_ += kTrialShare / (off_ ? std::clamp(fruitless_, 1, kRarest) : 1) * seconds;
}

bool Trials::turn(bool off) {
  before_ = now_;
  if (std::exchange(off_, off) != off) credit_ = 0;
  if (!off_ && now_ == Kind::kPlain && --plain_left_ > 0) return true;
  if (!off_) fruitless_ = 0;
  now_ = Kind::kNone;
  return false;
}

bool Trials::can_pay(double extra_seconds) {
  credit_ = std::min(credit_, kMaxTrials * extra_seconds);
  return credit_ > 0 && credit_ >= extra_seconds;
}

void Trials::consider_draft(double extra_seconds, bool in_probe_draft) {
  if (!can_pay(extra_seconds) || !enabled_) return;
  now_ = Kind::kDraft;
  ++fruitless_;
  since_plain_ = 0;
  if (in_probe_draft) credit_ -= extra_seconds;
}

void Trials::consider_plain(double plain_seconds, int32_t batch, double rate, bool row_known) {
  if (row_known && !std::exchange(plain_tried_, true)) since_plain_ = 0;
  double extra = 0;
  const double gain = rate * plain_seconds / batch;
  const bool is_put_off = !plain_tried_ && gain > kFirstClearGain;
  const bool is_due = ++since_plain_ >= kMaxGap + (is_put_off ? kFirstPutOff : 0);
  if (!is_due) {
    if (since_plain_ < kMinGap || gain > kClearGain) return;
    extra = kPlainSteps * std::max(0.0, plain_seconds - batch / rate);
  }
  if ((!can_pay(extra) && !is_due) || !enabled_) return;
  now_ = Kind::kPlain;
  rate_ = rate;
  since_plain_ = 0;
  plain_left_ = std::exchange(plain_tried_, true) ? kPlainSteps : kFirstPlainSteps;
}

}  // namespace outrider
