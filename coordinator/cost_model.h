// What a round costs, fitted online from the coordinator's own clock: shared by the draft length policies,
// the simulator and the reports. Seconds throughout. One owner thread; plain values, no clock.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace outrider {

// Believed until measurements outweigh it. `relative`: only the ratios are meant, and the first measured pass
// sets the scale. Light: a pass of one row that nobody measured is a long lever, and where plain decoding is
// then thought too slow, it is never tried.
struct CostPrior {
  double base = 1, per_row = 0.01, draft_token = 0.1;
  double weight = 0.1;  // of the two pseudo-observations together, in passes
  bool relative = true;
};

// t_verify = base + per_row * rows + per_context * (context tokens of all sequences in the pass), and for few
// rows what that missed: kernels have steps.
struct VerifyCost {
  double base = 0, per_row = 0, per_context = 0;
};

// busy = per_step * longest + per_further * (total - longest): a worker that drafts for all its sequences in
// one pass has per_further near 0, one that serves them in turn has per_further = per_step.
struct DraftCost {
  double per_step = 0, per_further = 0;
};

class CostModel {
 public:
  explicit CostModel(const CostPrior& prior = {});

  // One target pass without prefill rows, from plan to result. `context`: summed over its sequences.
  void observe_verify(int32_t rows, int64_t context, double seconds);
  // One step's drafting: `wait` from the first Propose until the last draft was there, of which the busiest
  // worker drafted for `busy`; the longest draft and all of them together, in tokens.
  void observe_draft_phase(int32_t longest, int32_t total, double busy, double wait);
  // One draft that nobody waited for. Its worker's `reading` of what it had missed is not counted. The target
  // was busy meanwhile, and perhaps the reader of messages, too: this stands in for a measurement until there
  // is one, then it tells whether things have changed.
  void observe_shadow(int32_t tokens, double busy, double wait, double reading);

  const VerifyCost& verify() const { return fit_; }
  DraftCost draft() const;
  double verify_seconds(int32_t rows, int64_t context) const;
  double draft_token_seconds() const { return draft().per_step; }
  double shadow_reading_seconds() const { return shadow_reading_; }
  double exchange_seconds() const { return exchange_; }  // links and queues, there and back

  bool draft_known() const {
    return scaled_ && (((draft_measured_ || shadows_ > 0) && !draft_doubted()) || !prior_.relative);
  }
  // One draft that was long on its way is not believed alone: it may have waited for threads and memory that
  // were used for the first time.
  bool draft_doubted() const { return phases_ + shadows_ == 1 && exchange_ > 0.5 * fit_.base; }

  double draft_phase_seconds(int32_t longest, int32_t total) const;
  // A round in which each of `batch` sequences of `context` tokens drafts gamma; 0 does not wait for
  // drafters.
  double round_seconds(int32_t gamma, int32_t batch, int32_t context) const;

  // Fit and its error, for reports: each pass was predicted before it was learnt from.
  void fill_json(nlohmann::json& out) const;

 private:
  static constexpr int32_t kFewRows = 32;
  // Decayed passes of so many rows, and the sum of measured / fit - 1 over them.
  struct Missed {
    double weight = 0, sum = 0;
  };

  VerifyCost fit() const;
  void observe_missed(int32_t rows, int64_t context, double seconds);
  void refit();
  void add(double n, double k, double t, double weight);
  void set_scale(double seconds, int32_t rows);
  void settle_shadow_exchange();

  CostPrior prior_;
  bool scaled_;                                     // absolute seconds are known
  double w_ = 0, n_ = 0, nn_ = 0, t_ = 0, nt_ = 0;  // weighted sums over passes
  double k_ = 0, kk_ = 0, nk_ = 0, kt_ = 0;
  double ll_ = 0, mm_ = 0, lm_ = 0, ld_ = 0, md_ = 0;  // drafts: longest, further tokens, busy seconds
  bool draft_measured_ = false;
  double exchange_ = 0, shadow_exchange_ = 0, shadow_reading_ = 0;
  VerifyCost fit_;
  std::array<Missed, kFewRows + 1> missed_{};
  std::array<double, kFewRows + 1> correction_{};  // by rows; factors less 1
  int32_t slow_passes_ = 0;                        // in a row
  int64_t passes_ = 0;
  double predicted_ = 0, measured_ = 0, absolute_error_ = 0;
  double rows_seen_ = 0, context_seen_ = 0;  // over all passes, as the seconds before
  double drafted_ = 0, busy_ = 0, exchanged_ = 0;
  int64_t phases_ = 0, shadows_ = 0;
};

}  // namespace outrider
