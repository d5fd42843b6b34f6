// Sampling parameters of one request. Sent in Open; read by the draft worker and every target rank.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/types.h"

namespace outrider {

// Verification rules. Every one emits the target's distribution exactly.
enum class Rule : uint8_t {
  kGreedy = 0,     // temperature 0: argmax; same text as plain decoding
  kInvariant = 1,  // Gumbel-coupled (Daliri, Musco, Suresh 2024): same text as plain decoding
  kNaive = 2,  // the target samples first, a draft token survives if it is equal: same text as plain decoding
  kToken = 3,  // p/q rejection (Leviathan et al. 2023; Chen et al. 2023)
  kBlock = 4,  // block verification (Sun et al. 2025)
  // p/q rejection over trees. Children of a node are drawn from its q independently of each other ...
  kSpecInfer = 5,  // multi-round rejection (SpecInfer, Miao et al. 2024, Alg. 2)
  kKSeq = 6,       // k-SEQ (SpecTr, Sun et al. 2023, Alg. 2)
  // ... or without replacement.
  kSwor = 7,       // recursive rejection (RSD, Jeon et al. 2024; Sequoia, Chen et al. 2024)
  kTraversal = 8,  // from the leaves up (Weng et al. 2025)
};
constexpr Rule kLastRule = Rule::kTraversal;
constexpr size_t kRuleCount = static_cast<size_t>(kLastRule) + 1;

// Rules whose text never depends on the draft.
constexpr bool is_match_rule(Rule rule) {
  return rule == Rule::kGreedy || rule == Rule::kInvariant || rule == Rule::kNaive;
}
// Rules that need the draft distribution q.
constexpr bool needs_q(Rule rule) { return !is_match_rule(rule); }
// Rules with q whose drafts may branch. Drafts under match rules may branch, too.
constexpr bool is_tree_rule(Rule rule) { return rule >= Rule::kSpecInfer; }
// How the children of a node are drawn; irrelevant with one child each.
constexpr bool draws_without_replacement(Rule rule) {
  return rule == Rule::kSwor || rule == Rule::kTraversal;
}
constexpr bool draws_independently(Rule rule) { return rule == Rule::kSpecInfer || rule == Rule::kKSeq; }
// The rule that verifies a draft without branches.
constexpr Rule chain_rule(Rule rule) {
  if (!is_tree_rule(rule)) return rule;
  return rule == Rule::kTraversal ? Rule::kBlock : Rule::kToken;
}

constexpr std::string_view rule_name(Rule rule) {
  constexpr std::string_view kNames[] = {"greedy",    "invariant", "naive", "token",    "block",
                                         "specinfer", "kseq",      "swor",  "traversal"};
  static_assert(std::size(kNames) == kRuleCount);
  return kNames[static_cast<size_t>(rule)];
}
inline std::optional<Rule> rule_from_name(std::string_view name) {
  for (size_t i = 0; i < kRuleCount; ++i)
    if (rule_name(static_cast<Rule>(i)) == name) return static_cast<Rule>(i);
  return std::nullopt;
}

// Order of application: penalties and bias, temperature, top-k, top-p, min-p, renormalise.
struct SamplingParams {
  Rule rule = Rule::kGreedy;  // resolved: `auto` is decided before this struct is filled
  float temperature = 0;      // below 1e-5 is greedy
  int32_t top_k = 0;          // 0: off; exactly k kept, by (logit desc, id asc)
  float top_p = 1;            // 1: off; smallest prefix in that order with mass >= top_p, at least one token
  float min_p = 0;            // 0: off; keeps p >= min_p * p_max
  float repetition_penalty = 1;  // over prompt and output: divides positive logits, multiplies negative ones
  float presence_penalty = 0;    // over output only
  float frequency_penalty = 0;   // over output only
  std::vector<std::pair<TokenId, float>> logit_bias;
  // None of `ends` is drawn until the text has this many tokens, the prompt included (min_tokens).
  int32_t ends_from = 0;
  std::vector<TokenId> ends;
  Seed seed;
  int32_t logprobs = -1;  // -1: none; n >= 0: of the emitted token and the n best ones, from the raw model
  bool operator==(const SamplingParams&) const = default;
};

constexpr float kGreedyTemperature = 1e-5f;

// Whether tokens are drawn from the softmax of logits / temperature, without further processing.
inline bool is_plain_softmax(const SamplingParams& p) {
  return p.temperature >= kGreedyTemperature && p.top_k <= 0 && p.top_p >= 1 && p.min_p <= 0 &&
         p.repetition_penalty == 1 && p.presence_penalty == 0 && p.frequency_penalty == 0 &&
         p.logit_bias.empty() && p.ends.empty();
}

}  // namespace outrider
