// Decides when and how much to prepare, from measurements: the cost of a forward pass by its rows, the time
// of a verification, and the length of rounds with and without preparation. Pure: times come in as numbers.
// Never changes a draft, only what is ready in advance.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace outrider {

// a + b * rows, least squares with forgetting.
class PassCost {
 public:
  void observe(int64_t rows, double ns);
  double of(int64_t rows) const;
  bool known() const { return weight_ > 0; }

 private:
  double weight_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

class PreparationPolicy {
 public:
  void pass_took(int64_t rows, int64_t ns) { cost_.observe(rows, static_cast<double>(ns)); }
  // Time from sending a draft to its verdict; round_took(): to the next draft.
  void verdict_took(int64_t ns);
  void round_took(bool prepared, int64_t ns);
  // Whether a verdict is expected so soon that sleeping would only delay the answer to it.
  bool verdict_is_due(int64_t waited_ns) const {
    constexpr double kLongestLook = 2e6;  // ns: a wake-up costs some 1e5
    return static_cast<double>(waited_ns) < verdict_.ns + std::min(verdict_.ns, kLongestLook) &&
           static_cast<double>(waited_ns) > verdict_.ns - kLongestLook;
  }

  // Whether to prepare for the draft that was just sent. Preparing can be a loss, where it shares cores or
  // memory with the target; the opposite choice is tried now and then.
  bool prepare_next();
  // The number of rows, sorted by probability, for the next pass: those that save the most expected time per
  // time spent. 0: the verdict is so near that the pass would cost more than it saves. `waited_ns`: since the
  // oldest draft was sent.
  size_t rows_worth(std::span<const double> probabilities, int64_t waited_ns) const;

 private:
  // The mean of all samples while they are few, then a decayed mean.
  struct Mean {
    double ns = 0;
    int64_t samples = 0;
    void add(int64_t sample, double least_weight);
  };

  PassCost cost_;
  Mean verdict_, prepared_, idle_;
  int64_t rounds_ = 0;
};

}  // namespace outrider
