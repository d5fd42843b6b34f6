// Measurements of a model: text sampled from it, the tokens it chooses along a text, and their probabilities.
// Two models that choose with the same noise agree as often as the invariant rule would accept.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "base/types.h"
#include "model/model.h"

namespace outrider {

struct ProbeOptions {
  double temperature = 1;  // 0: greedy choices; text is then sampled, and entropy taken, at 1
  Seed seed;
  int64_t sequences = 8;
  int64_t length = 64;  // tokens of each
  int64_t tested_from = 16;
  int draws = 16;  // choices per position, each with its own noise
};

using ProbeText = std::vector<std::vector<TokenId>>;  // [sequences][length]

// Tokens that each sequence begins with: BOS and one token drawn from the seed.
constexpr int64_t kProbePrompt = 2;

struct ProbeChoices {
  std::vector<TokenId> tokens;  // [sequence][position from tested_from][draw]
  double entropy = 0;           // nats, mean over positions
};

ModelOptions probe_model_options(const ProbeOptions& options, int threads);

Result<ProbeText> sample_text(Model& model, const ProbeOptions& options);
Result<ProbeChoices> choose_along(Model& model, const ProbeText& text, const ProbeOptions& options);
// Share of equal choices.
double agreement(const ProbeChoices& a, const ProbeChoices& b);

// The factor on the logits along `text` that brings the mean entropy to `entropy` nats.
Result<double> factor_for_entropy(Model& model, const ProbeText& text, double entropy,
                                  const ProbeOptions& options);

}  // namespace outrider
