// The cost of a round, fitted online from the coordinator's clock: shared by the draft length policies, the
// simulator and the reports. Seconds throughout. One owner thread; plain values, no clock.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>

#include "coordinator/costs/draft_phases.h"
#include "coordinator/costs/held_up.h"
#include "coordinator/costs/row_curve.h"

namespace outrider {

// The cost assumed until measurements outweigh it. `relative`: only the ratios count, and the first measured
// pass sets the scale. The weight is small on purpose: an over-estimated cost of one row would make plain
// decoding look bad, so it would never be tried and corrected.
struct CostPrior {
  double base = 1, per_row = 0.01, draft_token = 0.1;
  double weight = 0.1;  // of the two pseudo-observations together, in passes
  bool relative = true;
};

// t_verify = base + per_row * rows + per_context * (context tokens of all sequences in the pass). For few
// rows a correction is added, because kernel times grow in steps.
struct VerifyCost {
  double base = 0, per_row = 0, per_context = 0;
};

class CostModel {
 public:
  explicit CostModel(const CostPrior& prior = {});

  // Before the first pass: what the target measured before it joined. Without points by rows: nothing.
  void expect_passes(const PassTimes& measured);
  // Before the first draft: what a worker measured of its draft model. Without a step's time: nothing.
  void expect_drafts(const PassTimes& measured);
  // Whether a pass of the drafter makes a whole draft. A change forgets the drafts that were measured.
  void set_draft_blocks(bool of_blocks) { drafts_.set_blocks(of_blocks); }
  // Whether the target measured plain passes of this many sequences; only few rows are measured.
  bool rows_expected(int32_t sequences) const { return 2 * sequences <= curve_.last_rows(); }

  // One target pass without prefill rows, from plan to result. `context`: summed over its sequences.
  void observe_verify(int32_t rows, int64_t context, double seconds);
  void observe_draft_phase(const DraftPhase& phase) { drafts_.observe(phase, verify_seconds(1, 0)); }
  void observe_draft_phase(int32_t longest, int32_t total, double busy, double wait) {
    observe_draft_phase({.longest = longest, .total = total, .busy = busy, .wait = wait});
  }
  // Takes the cost of one probe draft, which no round waited for. The target was busy meanwhile, and perhaps
  // the thread that reads messages, too. It stands in for a measurement until there is one; later it shows
  // whether the cost has changed. `longest_pass`: the longest target pass meanwhile.
  void observe_probe_draft(const ProbeDrafting& probe_draft, double longest_pass = 0) {
    drafts_.observe_probe_draft(probe_draft, std::max(longest_pass, verify_seconds(1, 0)));
  }

  // A worker prefilled this many prompt tokens before it drafted.
  void observe_prefill(int32_t tokens, double seconds);

  VerifyCost verify() const;  // without corrections; where rows were measured, a line through usual ones
  DraftCost draft() const { return drafts_.cost(); }
  double verify_seconds(int32_t rows, int64_t context) const;
  double draft_seconds(int32_t tokens) const { return draft().seconds(tokens, tokens); }
  double probe_draft_prefill_seconds() const { return drafts_.probe_draft_prefill(); }
  // Seconds for a worker to prefill one prompt token; 0: unknown.
  double read_token_seconds() const { return read_token_ > 0 ? read_token_ : read_token_expected_; }
  double exchange_seconds() const { return drafts_.exchange(); }  // links and queues, there and back

  bool is_in_seconds() const { return scaled_; }  // else only ratios mean something
  bool draft_known() const {
    return scaled_ && ((drafts_.is_known() && !draft_doubted()) || !prior_.relative);
  }
  // A worker measured its draft model. The way to it is unknown.
  bool draft_expected() const { return scaled_ && drafts_.is_expected(); }
  // Draft steps take about as long as a worker measured before it joined.
  bool draft_as_expected() const {
    return draft_expected() && !draft_doubted() && drafts_.surprising_step() == 0;
  }
  // True after a single slow draft: it may have waited for a core, or for threads and memory in their first
  // use.
  bool draft_doubted() const {
    return drafts_.is_single() &&
           std::max(drafts_.exchange(), drafts_.surprising_step()) > 0.5 * verify_seconds(1, 0);
  }

  double draft_phase_seconds(int32_t longest, int32_t total) const;
  // Seconds of a round in which each of `batch` sequences of `context` tokens drafts gamma tokens. With gamma
  // 0 it does not wait for drafters.
  double round_seconds(int32_t gamma, int32_t batch, int32_t context) const;

  // Fit and its error, for reports: each pass was predicted before it was learnt from.
  void fill_json(nlohmann::json& out) const;

 private:
  static constexpr int32_t kFewRows = 32;
  static constexpr size_t kFirst = 16;  // passes that are fitted together
  struct Pass {
    int32_t rows = 0;
    int64_t context = 0;
    double seconds = 0;
  };
  // Weighted, over passes: rows n, context k, seconds t.
  struct Sums {
    double w = 0, n = 0, nn = 0, t = 0, nt = 0, k = 0, kk = 0, nk = 0, kt = 0;
    void scale(double by);  // of the seconds
    void forget();
    void add(double rows, double context, double seconds, double weight);
    VerifyCost fit() const;
  };
  // Decayed number of passes with this many rows, the sum of measured / fit - 1 over them, and the sum of
  // squares.
  struct Missed {
    double weight = 0, sum = 0, squares = 0;
  };
  // Over all passes, for reports.
  struct Seen {
    double predicted = 0, measured = 0, absolute_error = 0, rows = 0, context = 0;
  };

  void believe_prior();
  void see(const Pass& pass, double predicted);
  void learn(const Pass& pass);
  void learn_first(std::span<const Pass> first);
  void learn_missed(const Pass& pass);
  void set_scale(double scale);
  void refit();
  double missed_prior() const;
  VerifyCost fit() const;
  double line(int32_t rows, int64_t context) const {
    return fit_.base + fit_.per_row * curve_.of(rows) + fit_.per_context * static_cast<double>(context);
  }
  double shape(int32_t rows) const {
    return curve_.is_measured() ? curve_.of(rows) : prior_.base + prior_.per_row * rows;
  }

  CostPrior prior_;
  RowCurve curve_;              // the fit is a line over its values
  double expected_pass_ = 1;    // seconds or, if `scaled_` is false, a ratio
  bool pass_measured_ = false;  // `expected_pass_` is the target's measurement, in seconds
  bool scaled_;                 // absolute seconds are known
  Sums prior_sums_, sums_;
  VerifyCost fit_;  // per_row: for each unit of curve_
  std::array<Pass, kFirst> first_;
  std::array<Missed, kFewRows + 1> missed_{};
  std::array<double, kFewRows + 1> correction_{};  // by rows; factors less 1
  HeldUp pass_watch_;
  CutOff cut_off_;  // of a pass, as a share of the believed time
  int64_t passes_ = 0;
  Seen seen_;
  DraftPhases drafts_;
  HeldUp prefill_watch_;
  double read_token_ = 0, read_token_expected_ = 0;
};

}  // namespace outrider
