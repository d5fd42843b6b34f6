#include "requests/request_params.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/parse_number.h"
#include "base/shortened.h"

namespace outrider {
Result<Rule> resolve_rule(const std::string& name, float temperature) {
  const bool greedy = temperature < kGreedyTemperature;
  if (name == "auto") return greedy ? Rule::kGreedy : Rule::kInvariant;
  const auto rule = rule_from_name(name);
  if (!rule)
    return invalid_argument(fmt::format(
        "--rule {}: choose auto, greedy, invariant, naive, token, block, specinfer, kseq, swor or traversal",
        shortened(name)));
  if (*rule == Rule::kGreedy && !greedy)
    return invalid_argument(fmt::format(
        "--rule greedy means temperature 0, but the temperature is {}; drop one of them", temperature));
  return greedy ? Rule::kGreedy : *rule;
}

Result<std::pair<TokenId, float>> parse_logit_bias(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon != std::string::npos) {
    const auto id = parse_number<int32_t>(std::string_view(text).substr(0, colon));
    const auto value = parse_number<float>(std::string_view(text).substr(colon + 1));
    if (id && value && *id >= 0 && std::isfinite(*value)) return std::pair{TokenId(*id), *value};
  }
  return invalid_argument(fmt::format("--logit-bias {}: write ID:V, for example 42:-1.5", text));
}

Result<SamplingParams> sampling_of(const RequestParams& p) {
  ASSIGN_OR_RETURN(const Rule rule, resolve_rule(p.rule, p.temperature));
  return SamplingParams{.rule = rule,
                        .temperature = p.temperature,
                        .top_k = std::max(p.top_k, 0),
                        .top_p = p.top_p,
                        .min_p = p.min_p,
                        .repetition_penalty = p.repetition_penalty,
                        .presence_penalty = p.presence_penalty,
                        .frequency_penalty = p.frequency_penalty,
                        .logit_bias = p.logit_bias,
                        .seed = Seed{p.seed},
                        .logprobs = p.logprobs};
}

}  // namespace outrider
