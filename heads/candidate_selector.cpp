#include "heads/candidate_selector.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace outrider {

CandidateSelector::CandidateSelector(HeadCompute& compute, const SelectorWeights& weights, int64_t vocab_size,
                                     int64_t most_rows)
    : compute_(compute),
      weights_(weights),
      projected_(compute.rows(most_rows, weights.projection.n)),
      ids_(static_cast<size_t>(vocab_size)),
      candidates_(static_cast<size_t>(most_rows * weights.candidates)),
      before_(static_cast<size_t>(weights.projection.n)),
      of_candidate_(before_.size()) {}

void CandidateSelector::begin(FloatRows logits, Operand hidden_states) {
  const int64_t rows = logits.extent(0), count = weights_.candidates;
  const FloatRows projected = projected_.rows(rows);
  compute_.multiply(hidden_states, weights_.projection, projected);
  here_ = compute_.fetch(projected);
  for (int64_t m = 0; m < rows; ++m) {
    const auto row = logits.row(m);
    std::iota(ids_.begin(), ids_.end(), 0);
    const auto is_before = [&](int32_t a, int32_t b) {  // ties: the lowest id
      const float of_a = row[static_cast<size_t>(a)], of_b = row[static_cast<size_t>(b)];
      return of_a != of_b ? of_a > of_b : a < b;
    };
    std::nth_element(ids_.begin(), ids_.begin() + count - 1, ids_.end(), is_before);
    for (int64_t i = 0; i < count; ++i) {
      const int32_t id = ids_[static_cast<size_t>(i)];
      candidates_[static_cast<size_t>(m * count + i)] = {id, row[static_cast<size_t>(id)]};
    }
  }
}

void CandidateSelector::behind(int64_t row, TokenId token, std::span<float> to) {
  weights_.predecessor->read(token, before_);
  const auto projected = here_.row(row);
  for (size_t r = 0; r < before_.size(); ++r) before_[r] *= projected[r];
  std::fill(to.begin(), to.end(), -std::numeric_limits<float>::infinity());
  const auto first = candidates_.begin() + row * weights_.candidates;
  std::for_each(first, first + weights_.candidates, [&](const Candidate& candidate) {
    weights_.successor->read(TokenId(candidate.id), of_candidate_);
    float edge = 0;
    for (size_t r = 0; r < before_.size(); ++r) edge += before_[r] * of_candidate_[r];
    to[static_cast<size_t>(candidate.id)] = candidate.logit + edge;
  });
}

}  // namespace outrider
