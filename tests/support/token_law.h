// The exact distribution of the tokens after a prompt, computed from the model, and a test that samples
// follow it. Covers the second token, which is the first that a draft can propose, or the first few tokens.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "model/model.h"

namespace outrider::testing {

// Probabilities of the next token by the plain softmax.
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

// The exact probabilities of the first `length` tokens after a prompt, from the model itself, under top-k.
using Law = std::map<std::vector<int32_t>, double>;
inline void extend_law(Model& model, std::vector<TokenId> prefix, size_t prompt, size_t length,
                       float temperature, size_t top_k, double mass, Law& law) {
  if (prefix.size() == prompt + length) {
    std::vector<int32_t> key;
    for (size_t i = prompt; i < prefix.size(); ++i) key.push_back(prefix[i].value());
    law[key] += mass;
    return;
  }
  const KvHandle kv = model.kv().create();
  const BatchSlice slice{kv, prefix, 1};
  const auto logits = model.forward({&slice, 1}).value().logits.row(0);
  std::vector<std::pair<float, int32_t>> best;
  for (size_t v = 0; v < logits.size(); ++v) best.emplace_back(-logits[v], static_cast<int32_t>(v));
  std::sort(best.begin(), best.end());
  best.resize(top_k);
  model.kv().release(kv);
  double total = 0;
  for (const auto& [negative, id] : best)
    total += std::exp(static_cast<double>((best[0].first - negative) / temperature));
  for (const auto& [negative, id] : best) {
    std::vector<TokenId> longer = prefix;
    longer.emplace_back(id);
    const double p = std::exp(static_cast<double>((best[0].first - negative) / temperature)) / total;
    extend_law(model, std::move(longer), prompt, length, temperature, top_k, mass * p, law);
  }
}

// Chi-square of samples of whole sequences. Cells below 5 expected are merged; the bound is the
// Wilson-Hilferty quantile for a false alarm in 1e-5.
inline void expect_follows(const Law& law, std::map<std::vector<int32_t>, int>& seen, int samples,
                           const std::string& what) {
  double chi_square = 0, rest_expected = 0, rest_seen = samples;
  int cells = 0;
  for (const auto& [key, p] : law) {
    const double expected = p * samples;
    if (expected < 5) {
      rest_expected += expected;
      continue;
    }
    const double count = seen.contains(key) ? seen[key] : 0;
    rest_seen -= count;
    chi_square += (count - expected) * (count - expected) / expected;
    ++cells;
  }
  if (rest_expected >= 5) {
    chi_square += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    ++cells;
  }
  const double dof = cells - 1, z = 4.265, a = 2 / (9 * dof);  // z: one-sided 1e-5
  const double bound = dof * std::pow(1 - a + z * std::sqrt(a), 3);
  std::printf("%s: chi-square %.1f on %.0f degrees of freedom, bound %.1f\n", what.c_str(), chi_square, dof,
              bound);
  EXPECT_GT(cells, 20) << what;
  EXPECT_LT(chi_square, bound) << what;
}

}  // namespace outrider::testing
