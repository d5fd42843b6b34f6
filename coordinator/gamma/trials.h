// Decides when to try the choice that is not in use: a short draft while the batch does not draft, plain
// steps while it drafts. Otherwise the cost of the other choice would be unknown. Trials have a budget: other
// steps earn 1 % of their time, and a trial is charged what it lost. Accepted drafts pay for themselves.
// Counts steps of a batch.
#pragma once

#include <cstdint>

namespace outrider {

class Trials {
 public:
  enum class Kind { kNone, kDraft, kPlain };

  explicit Trials(bool enabled) : enabled_(enabled) {}

  bool off() const { return off_; }  // the batch does not draft, trials excepted
  Kind now() const { return now_; }
  // The kind of the step that has just ended. `early`: the next step was decided while it ran.
  Kind ended(bool early) const { return early ? before_ : now_; }

  // A step is over: a trial of drafts that gained `gained` seconds, one of plain steps, or no trial.
  void settle_draft(double gained) { credit_ += gained; }
  void settle_plain(double seconds, int32_t rounds);
  void settle_other(double seconds);

  // Begins the next step; `off`: no sequence drafts in it. True: a trial of plain steps goes on.
  bool turn(bool off);
  // Considers a trial of drafts that takes `extra_seconds` more than a plain step. `in_probe_draft`: as probe
  // drafts, which no round waits for, so the trial is charged at once.
  void consider_draft(double extra_seconds, bool in_probe_draft);
  // Considers a trial of plain steps of `batch` sequences, in place of `rate` tokens per second. `row_known`:
  // the target measured the cost of one row before the first step, which replaces the first trial.
  void consider_plain(double plain_seconds, int32_t batch, double rate, bool row_known);

 private:
  bool can_pay(double extra_seconds);

  bool enabled_;
  double credit_ = 0;  // seconds
  bool off_ = false;
  Kind now_ = Kind::kNone, before_ = Kind::kNone;  // the kinds at the last decision, and at the one before
  int32_t fruitless_ = 0;                          // consecutive trials after which the batch did not draft
  int32_t since_plain_ =
      1021;  // steps; nothing is known at first, so the first trial is soon, unless drafts plainly gain
  int32_t plain_left_ = 0;  // remaining steps of a plain trial
  bool plain_tried_ = false;
  double rate_ = 0;  // the rate that a plain trial replaces
};

}  // namespace outrider
