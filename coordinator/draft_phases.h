// What drafting costs: tokens of the drafter, and the way there and back. The half of CostModel that passes
// say nothing about. Seconds; plain values, no clock.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "coordinator/held_up.h"

namespace outrider {

// busy = per_step * longest + per_further * (total - longest): a worker that drafts for all its sequences in
// one pass has per_further near 0, one that serves them in turn has per_further = per_step.
struct DraftCost {
  double per_step = 0, per_further = 0;
};

// The drafting of one step: the longest draft and all of them together, in tokens; `wait` from the first
// Propose until the last draft was there, of which the busiest worker drafted for `busy`, and `lost` passed
// with messages that did not come. `prepared`: there were drafts that might have been there already.
struct DraftPhase {
  int32_t longest = 0, total = 0;
  double busy = 0, wait = 0, lost = 0;
  bool prepared = false;
};

// That of a draft that nobody waited for.
struct ShadowDrafting {
  int32_t tokens = 0;
  std::optional<double> busy;  // with all tokens; none: nobody knows
  double exchange = 0;         // the way there and back
  double reading = 0;          // what the worker had missed
};

class DraftPhases {
 public:
  // Believed at first; with `is_ratio` only until there is something better.
  DraftPhases(double token_seconds, bool is_ratio);
  void scale(double by);  // a ratio becomes seconds

  // `pass`: what a pass of one row takes.
  void observe(const DraftPhase& phase, double pass);
  // CostModel::observe_shadow. `pass`: what it may have waited for before each of its own.
  void observe_shadow(const ShadowDrafting& shadow, double pass);
  // A pass takes that long, as was not known when a shadow came.
  void settle_shadow(double pass);

  DraftCost cost() const { return sums_.cost(); }
  double exchange() const { return exchange_; }
  double cut_off() const { return cut_off_.mean(); }
  double shadow_reading() const { return shadow_reading_; }
  bool is_measured() const { return phases_ > 0; }
  bool is_known() const { return phases_ + shadows_ > 0; }
  bool tells_token() const { return is_measured() || shadow_told_token_; }  // what one costs
  // Nothing but one measurement is there.
  bool is_single() const { return phases_ + shadows_ == 1; }

  int64_t phases() const { return phases_; }
  double mean_token() const { return busy_ / drafted_; }
  double mean_exchange() const { return exchanged_ / static_cast<double>(phases_); }

 private:
  struct Measured {
    double longest = 0, further = 0;  // tokens
    double busy = 0, exchange = 0, lost = 0;
    bool prepared = false;
  };
  // Sums for least squares through the origin.
  struct Sums {
    double ll = 0, mm = 0, lm = 0, ld = 0, md = 0;
    void add(const Measured& draft);
    DraftCost cost() const;
  };
  static constexpr size_t kFirst = 8;  // phases that are judged together

  // Each returns what is believed.
  Measured learn_first(const Measured& last, double pass);
  Measured learn(Measured phase, double pass);
  void add_exchange(double exchange, int64_t before);

  bool is_ratio_;
  Sums prior_, sums_;
  std::array<Measured, kFirst> first_;
  HeldUp busy_watch_, exchange_watch_, shadow_watch_, reading_watch_;
  CutOff cut_off_;  // of a phase, whatever it was
  double exchange_ = 0, shadow_exchange_ = 0, shadow_waits_ = 0, shadow_reading_ = 0;
  int32_t shadow_tokens_ = 0;
  bool shadow_told_token_ = false;  // what a token costs, at most
  int64_t phases_ = 0, shadows_ = 0;
  double drafted_ = 0, busy_ = 0, exchanged_ = 0;  // over all phases
};

}  // namespace outrider
