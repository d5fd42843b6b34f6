// DFlash 2: a row of a block says its best tokens only, and scores each by the token before it:
//   logit of c + sum over r of P[before, r] * (W h)[r] * S[c, r]
// with h the row's hidden state. Computes on the host. One thread.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "heads/head_tensors.h"

namespace outrider {

struct SelectorWeights {
  int64_t candidates = 0;                        // of a row; 0: there is no selector
  HeadMatrix projection;                         // W, [rank, H]
  std::optional<TokenTable> predecessor, successor;  // P and S, [vocabulary, rank]
};

class CandidateSelector {
 public:
  CandidateSelector(HeadCompute& compute, const SelectorWeights& weights, int64_t vocab_size, int64_t most_rows);

  // Rows of a pass: their logits, and the input of the product that makes them.
  void begin(FloatRows logits, Operand hidden_states);
  // to[:] = row `row` of the pass behind `token`: -inf where there is no candidate. `to` may be the row itself,
  // which is then not asked for again.
  void behind(int64_t row, TokenId token, std::span<float> to);

 private:
  HeadCompute& compute_;
  const SelectorWeights& weights_;
  RowBuffer projected_;  // [rows, rank]: W h
  FloatRows here_;       // the same on the host
  std::vector<int32_t> ids_;  // of the vocabulary, in some order
  struct Candidate {
    int32_t id = 0;
    float logit = 0;
  };
  std::vector<Candidate> candidates_;  // [rows, candidates]
  std::vector<float> before_, of_candidate_;
};

}  // namespace outrider
