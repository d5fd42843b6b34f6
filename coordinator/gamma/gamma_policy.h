// Decides how many tokens to draft next. One instance per sequence. Unless a policy says otherwise, its only
// inputs are its sequence's past rounds and the cost of rounds. It never sees an undecided token: the length
// is a stopping time, or the p/q rules would be biased. One file per policy.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "comm/messages/draft_forms.h"
#include "coordinator/costs/cost_model.h"

namespace outrider {

constexpr int32_t kDefaultGammaMax = 16;

// The information that a probe draft (GammaPolicy::probe_draft) can give about a sequence.
enum class ProbeDraftMode : uint8_t {
  kNone,   // no probe drafts are made
  kCosts,  // the cost of drafts
  kTests,  // the cost and the acceptance: under match rules the text shows what would have been accepted
};

struct GammaContext {
  int32_t limit = 0;                // the caller clamps to this anyway: DraftRounds::gamma_limit
  int32_t batch_size = 1;           // running sequences
  int32_t in_prefill = 0;           // running sequences that the target still prefills
  int32_t group = 0;                // the target group that they run in; another one after it was lost
  int32_t context_length = 0;       // C
  const CostModel* cost = nullptr;  // the cost of rounds here; null: unknown
  bool ahead = false;               // drafting overlaps verification (--pipeline ahead)
  // The round before the decided one is still running: the next outcome belongs to that round.
  bool early = false;
  ProbeDraftMode probe_drafts = ProbeDraftMode::kNone;
  bool probe_draft_out = false;  // a probe draft is under way; no other would be made
  bool local = false;            // the drafter is in the coordinator's process: neither far nor dead
  // The drafter finds drafts in the text, and can end each where its rows stop paying.
  bool found = false;
  // The drafter's prefill time before it drafts, where that is more than a few tokens, and the expected
  // number of tokens that the request will still emit.
  double prefill_seconds = 0;
  int32_t remaining = 1 << 20;
};

// One verified round. Nothing here is about discarded draft tokens, tokens beyond the end of the request, or
// stale epochs.
struct RoundOutcome {
  int32_t proposed = 0;  // gamma asked of the drafter; 0: a plain round
  int32_t drafted = 0;   // g: tokens that were verified
  int32_t accepted = 0;  // n
  int64_t round_ns = 0;  // from the decision about gamma to the verdict
  int32_t batch_size = 1;
  const CostModel* cost = nullptr;
  std::span<const float> margins;  // of the verified tokens; only with StopKind::kChances
  bool found = false;  // the drafter chose its length (GammaPolicy::longest_suffix_match), perhaps 0
};

class GammaPolicy {
 public:
  virtual ~GammaPolicy() = default;
  virtual int32_t next(const GammaContext& context) = 0;  // >= 0
  virtual void update(const RoundOutcome& outcome) = 0;
  // Belongs to the last gamma of next(), and may end the draft before it.
  virtual StopRule stop_rule() const { return {}; }
  // Belongs to the last positive gamma of next(), where GammaContext::found: the drafter ends the draft by
  // the cost of rows, at this many tokens at most. 0: the draft has gamma tokens.
  virtual int32_t longest_suffix_match() const { return 0; }
  // Belongs to the last gamma of 0 of next(): the length of a probe draft, made while the target goes on
  // without it; 0: none.
  virtual int32_t probe_draft() const { return 0; }
  // A probe draft came, and the text has gone on past it. `drafted` is 0 where it could not be tested.
  virtual void observe_probe_draft(int32_t drafted, int32_t accepted) { (void)drafted, (void)accepted; }
};

using GammaPolicyFactory = std::function<std::unique_ptr<GammaPolicy>()>;

// Whether a policy's name may refer to a file of this machine. Refused for names that come from a client.
enum class PolicyFiles { kRead, kRefused };

// "NAME[:key=value,...]", e.g. "heuristic:start=5,max=8". Errors name the nearest known name or key.
Result<GammaPolicyFactory> parse_gamma_policy(std::string_view text, PolicyFiles files = PolicyFiles::kRead);
// The same for a request: no draft is longer than `most` tokens. A key that asks for more is an error.
Result<GammaPolicyFactory> parse_capped_gamma_policy(std::string_view text, PolicyFiles files, int32_t most);
// Every policy with its keys and defaults, one per line, for people.
std::string list_gamma_policies();

}  // namespace outrider
