// Decides how many tokens to draft next. One instance per sequence, fed only with that sequence's own past
// rounds, so decisions do not depend on transport, batch or timing of others. One file per policy.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace outrider {

constexpr int32_t kDefaultGammaMax = 16;

struct GammaContext {
  int32_t limit = 0;           // the caller clamps to this anyway: limits of algorithms.md 2.10 and gamma_max
  int32_t batch_size = 0;      // running sequences
  int32_t context_length = 0;  // C
};

// One verified round. Nothing here is about discarded draft tokens or stale epochs.
struct RoundOutcome {
  int32_t drafted = 0;   // g: tokens that were verified
  int32_t accepted = 0;  // n
  int64_t draft_ns = 0;  // as the worker measured it
  int64_t verify_ns = 0;
  int32_t rows = 0;  // of the whole target pass
};

class GammaPolicy {
 public:
  virtual ~GammaPolicy() = default;
  virtual int32_t next(const GammaContext& context) = 0;  // >= 0
  virtual void update(const RoundOutcome& outcome) = 0;
};

using GammaPolicyFactory = std::function<std::unique_ptr<GammaPolicy>()>;

// "NAME[:key=value,...]", e.g. "heuristic:start=5,max=8". Errors name the nearest known name or key.
Result<GammaPolicyFactory> parse_gamma_policy(std::string_view text);
// Every policy with its keys and defaults, one per line, for people.
std::string list_gamma_policies();

}  // namespace outrider
