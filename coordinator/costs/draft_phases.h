// The cost of drafting: tokens of the drafter, and the exchange of messages. This is the half of CostModel
// that target passes do not show. Seconds; plain values, no clock.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "coordinator/costs/held_up.h"

namespace outrider {

// busy = per_step * longest + per_further * (total - longest): a worker that drafts for all its sequences in
// one pass has per_further near 0, one that serves them in turn has per_further = per_step. Where a pass
// makes a whole draft (Hello::drafts_blocks), a draft of any length counts as one token.
struct DraftCost {
  double per_step = 0, per_further = 0;
  bool of_blocks = false;

  // `longest` and `total`: as in DraftPhase.
  double seconds(int32_t longest, int32_t total) const;
};

// The tokens that count for the time of drafts, of blocks the drafts.
struct DraftUnits {
  // `longest` > 0.
  DraftUnits(int32_t longest_draft, int32_t total, bool of_blocks) {
    const double each = of_blocks ? longest_draft : 1;
    longest = longest_draft / each;
    further = (total - longest_draft) / each;
  }
  double longest, further;
};

inline double DraftCost::seconds(int32_t longest, int32_t total) const {
  if (longest <= 0) return 0;
  const DraftUnits units(longest, total, of_blocks);
  return per_step * units.longest + per_further * units.further;
}

// The drafting of one step. `longest` and `total`: tokens of the longest draft and of all drafts. `wait`:
// from the first Propose to the last draft. `busy`: the drafting time of the busiest worker. `lost`: time
// spent on messages that did not arrive. `prepared`: some drafts may have been prepared ahead.
struct DraftPhase {
  int32_t longest = 0, total = 0;
  double busy = 0, wait = 0, lost = 0;
  bool prepared = false;
};

// The drafting of a probe draft, which no round waited for.
struct ProbeDrafting {
  int32_t tokens = 0;
  std::optional<double> busy;  // for all tokens; empty: unknown
  double exchange = 0;         // the way there and back
  double prefill = 0;          // prefill of the tokens that the worker had missed
};

class DraftPhases {
 public:
  // Starts from this cost; with `is_ratio` only until a measurement exists.
  DraftPhases(double token_seconds, bool is_ratio);
  void scale(double by);  // a ratio becomes seconds
  // Before the first draft: the cost that a worker measured.
  void expect(const DraftCost& cost);
  // Whether a pass makes a whole draft. A change forgets what was measured.
  void set_blocks(bool of_blocks);

  // `pass`: seconds of a pass of one row.
  void observe(const DraftPhase& phase, double pass);
  // See CostModel::observe_probe_draft. `pass`: the longest wait for a target pass before each pass of the
  // drafter.
  void observe_probe_draft(const ProbeDrafting& observed, double pass);
  // Sets the pass time that was unknown at the first probe draft.
  void settle_probe_draft(double pass);

  DraftCost cost() const {
    DraftCost cost = sums_.cost();
    cost.of_blocks = of_blocks_;
    return cost;
  }
  double exchange() const { return exchange_; }
  double cut_off() const { return cut_off_.mean(); }
  double probe_draft_prefill() const { return probe_draft_prefill_; }
  bool is_measured() const { return phases_ > 0; }
  bool is_known() const { return phases_ + probe_drafts_ > 0; }
  bool tells_token() const {
    return is_measured() || probe_draft_told_token_ || is_expected();
  }  // the cost of a token is known
  // Whether there is only one measurement: neither a second draft nor a probe draft after the first one.
  bool is_single() const { return phases_ + probe_drafts_ == 1 && !is_confirmed_; }

  bool is_expected() const { return expected_step_ > 0; }
  // The cost of a token, unless a worker measured about as much.
  double surprising_step() const {
    constexpr double kAsExpected = 1.5;
    const double step = cost().per_step;
    return step <= kAsExpected * expected_step_ ? 0 : step;
  }

  int64_t phases() const { return phases_; }
  double mean_token() const { return drafted_ > 0 ? busy_ / drafted_ : 0; }
  double mean_exchange() const { return exchanged_ / static_cast<double>(phases_); }

 private:
  struct Measured {
    double longest = 0, further = 0;  // tokens; of blocks: drafts
    double busy = 0, exchange = 0, lost = 0;
    bool prepared = false;
  };
  // Sums for least squares through the origin.
  struct Sums {
    double ll = 0, mm = 0, lm = 0, ld = 0, md = 0;
    void add(const Measured& draft);
    DraftCost cost() const;
  };
  static constexpr size_t kFirst = 8;  // phases that are fitted together

  // Both return the believed part of a measurement.
  Measured learn_first(const Measured& last, double pass);
  Measured learn(Measured phase, double pass);
  void add_exchange(double exchange, int64_t before);

  bool is_ratio_, of_blocks_ = false;
  double expected_step_ = 0;
  Sums prior_, sums_;
  std::array<Measured, kFirst> first_;
  HeldUp busy_watch_, exchange_watch_, probe_draft_watch_, prefill_watch_;
  CutOff cut_off_;  // of a phase
  double exchange_ = 0, probe_draft_exchange_ = 0, probe_draft_waits_ = 0, probe_draft_prefill_ = 0;
  int32_t probe_draft_tokens_ = 0;
  bool probe_draft_told_token_ = false;  // the cost of a token is known as an upper bound
  bool is_confirmed_ = false;            // a probe draft came after the first draft
  int64_t phases_ = 0, probe_drafts_ = 0;
  double drafted_ = 0, busy_ = 0, exchanged_ = 0;  // over all phases
};

}  // namespace outrider
