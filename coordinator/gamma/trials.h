// When what is not done now is tried: a short draft while nobody drafts, plain steps while somebody does.
// Only so is it known what the other choice costs. Trials have a budget: other steps earn 1 % of their time,
// and a trial is charged what it lost. Drafts that were accepted pay for themselves. Counts steps of a batch.
#pragma once

#include <cstdint>

namespace outrider {

class Trials {
 public:
  enum class Kind { kNone, kDraft, kPlain };

  explicit Trials(bool enabled) : enabled_(enabled) {}

  bool off() const { return off_; }  // nobody drafts, trials apart
  Kind now() const { return now_; }
  // Of the step that has just ended. `early`: the step behind it was decided while it ran.
  Kind ended(bool early) const { return early ? before_ : now_; }

  // A step is over: a trial of drafts that gained so many seconds, one of plain steps, or none.
  void settle_draft(double gained) { credit_ += gained; }
  void settle_plain(double seconds, int32_t rounds);
  void settle_other(double seconds);

  // The next step; `off`: nobody drafts in it. True: a trial of plain steps goes on.
  bool turn(bool off);
  // A trial of drafts that takes so many seconds more than a plain step. `in_shadow`: no round will wait for
  // these drafts, so it is charged at once.
  void consider_draft(double extra_seconds, bool in_shadow);
  // A trial of plain steps of so many sequences, in place of `rate` tokens per second.
  // `row_known`: what one row costs was measured before the first step, which is as good as a first trial.
  void consider_plain(double plain_seconds, int32_t batch, double rate, bool row_known);

 private:
  bool can_pay(double extra_seconds);

  bool enabled_;
  double credit_ = 0;  // seconds
  bool off_ = false;
  Kind now_ = Kind::kNone, before_ = Kind::kNone;  // of the last decision, and of the one before
  int32_t fruitless_ = 0;                          // trials of drafts in a row after which nobody drafted
  int32_t since_plain_ =
      1021;  // steps; nothing is known at first, so the first trial is soon, unless drafts plainly gain
  int32_t plain_left_ = 0;  // steps of a plain trial that are to come
  bool plain_tried_ = false;
  double rate_ = 0;  // of what a plain trial stands in for
};

}  // namespace outrider
