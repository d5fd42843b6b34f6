// The law of the second token after a prompt, from the model itself, and whether samples follow it. The
// second, because it is the first that a draft can propose.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "transformer/model/model.h"

namespace outrider::testing {

// Of the plain softmax.
inline std::vector<double> law_after(Model& model, const std::vector<TokenId>& text, float temperature) {
  const KvHandle kv = model.kv().create();
  const BatchSlice slice{.sequence = kv, .tokens = text, .logit_rows = 1};
  const auto logits = model.forward({&slice, 1}).value().logits.row(0);
  model.kv().release(kv);
  std::vector<double> p;
  double sum = 0;
  for (const float logit : logits) sum += p.emplace_back(std::exp(logit / temperature));
  for (double& x : p) x /= sum;
  return p;
}

inline std::vector<double> law_of_second(Model& model, const std::vector<TokenId>& prompt,
                                         float temperature) {
  const auto first = law_after(model, prompt, temperature);
  std::vector<double> law(first.size());
  for (size_t v = 0; v < law.size(); ++v) {
    auto text = prompt;
    text.emplace_back(static_cast<int32_t>(v));
    const auto second = law_after(model, text, temperature);
    for (size_t w = 0; w < law.size(); ++w) law[w] += first[v] * second[w];
  }
  return law;
}

// Chi-square of the likeliest ids and the rest, against the Wilson-Hilferty quantile for a false alarm in
// 1e-5. `seen`: how often each id came.
inline void expect_follows(const std::vector<double>& law, const std::vector<int>& seen,
                           const std::string& what) {
  double samples = 0, chi_square = 0, rest = 0, rest_seen = 0;
  for (const int count : seen) samples += count;
  int cells = 0;
  for (size_t w = 0; w < law.size(); ++w) {
    const double expected = law[w] * samples;
    if (expected < 5) {
      rest += expected;
      rest_seen += seen[w];
      continue;
    }
    chi_square += (seen[w] - expected) * (seen[w] - expected) / expected;
    ++cells;
  }
  if (rest > 0) chi_square += (rest_seen - rest) * (rest_seen - rest) / std::max(rest, 5.0);
  const double dof = cells, z = 4.265, a = 2 / (9 * dof);
  const double bound = dof * std::pow(1 - a + z * std::sqrt(a), 3);
  std::printf("%s: chi-square %.1f on %.0f degrees of freedom, bound %.1f\n", what.c_str(), chi_square, dof,
              bound);
  EXPECT_GT(cells, 20) << what;
  EXPECT_LT(chi_square, bound) << what;
}

}  // namespace outrider::testing
