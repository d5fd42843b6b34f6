#include "target_worker/acceptance_rule.h"

#include "base/log.h"
#include "target_worker/rules/rules.h"

namespace outrider {

const AcceptanceRule& acceptance_rule(Rule rule) {
  static const GreedyRule greedy;
  static const InvariantRule invariant;
  static const NaiveRule naive;
  static const TokenRule token;
  static const BlockRule block;
  switch (chain_rule(rule)) {
    case Rule::kGreedy:
      return greedy;
    case Rule::kInvariant:
      return invariant;
    case Rule::kNaive:
      return naive;
    case Rule::kToken:
      return token;
    case Rule::kBlock:
      return block;
    default:
      break;
  }
  check_failed(__FILE__, __LINE__, "rule", "unknown rule " + std::to_string(static_cast<int>(rule)));
}

}  // namespace outrider
