// How likely the target chooses each of the best tokens behind a node: a softmax of the scores by which the
// draft model ranks them, noise included, since the target adds the same. Its temperature says how far the
// two models' logits lie apart; it is learnt from what the target chose. Pure; it decides what is drafted,
// never what is accepted.
#pragma once

#include <array>
#include <span>
#include <vector>

namespace outrider {

class BranchConfidence {
 public:
  BranchConfidence();

  // The probability of each candidate token, best first. The sum is below 1, since the target may choose
  // another token.
  void shares(std::span<const float> scores, std::vector<double>& out) const;
  // The target chose the candidate of this rank; scores.size(): it chose another token.
  void observe(std::span<const float> scores, size_t rank);
  double temperature() const { return kTemperatures[best_]; }

 private:
  static constexpr std::array<double, 12> kTemperatures = {0.1, 0.15, 0.22, 0.33, 0.5, 0.75,
                                                           1.1, 1.7,  2.5,  3.8,  5.7, 8.5};
  static constexpr size_t kFirst = 5;  // until something is known

  std::array<double, kTemperatures.size()> log_likelihood_{};  // decayed
  size_t best_ = kFirst;
  std::vector<double> scratch_;
};

}  // namespace outrider
