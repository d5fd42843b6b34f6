// A client's request, its progress, and its end.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/sampling_params.h"
#include "base/types.h"
#include "coordinator/gamma/gamma_policy.h"
#include "text/grammar/grammar.h"

namespace outrider {

struct Request {
  std::vector<TokenId> prompt;  // at least one id; the tokenizer has added BOS where it belongs
  SamplingParams sampling;
  int32_t max_tokens = 128;       // emitted tokens, an end-of-sequence token included
  std::vector<std::string> stop;  // emission ends before the first stop string
  std::vector<TokenId> stop_ids;  // emission ends with a stop id
  // Constrains the text; null: any text. The text ends where nothing can follow, and at an end-of-sequence
  // token, which is drawn only where the text may end.
  std::shared_ptr<const Grammar> grammar;
  std::vector<TokenId> shown;  // special tokens written out in its text
  // Not negative: emits log-probabilities of the prompt's tokens except the first, with this many best
  // alternatives, before anything else.
  int32_t prompt_logprobs = -1;
  bool ignore_eos = false;
  // Requests with another salt never use KV blocks of this one, so timing cannot reveal its text.
  std::string cache_salt;
  int32_t priority = 0;      // lower values come first; with ProtocolOptions::by_priority
  GammaPolicyFactory gamma;  // empty: the coordinator's default policy
  // Whether it chose its own policy, which must not slow down other requests (DraftShares).
  bool pays_for_drafts = false;
  // When the client sent the request, if that was before submit().
  std::optional<std::chrono::steady_clock::time_point> asked_at = {};
};

// The salt as workers know it; 0 for an empty salt.
inline uint64_t salt_hash(const std::string& cache_salt) {
  uint64_t hash = 0;
  for (const char c : cache_salt) hash = hash_combine(hash + 1, static_cast<unsigned char>(c));
  return hash;
}

// kQueued -> kPrefill -> kReady -> kDrafting -> kReady -> kVerifying -> kIdle -> (next round) ... ->
// kFinished. kFinished is reachable from everywhere.
enum class RequestState : uint8_t {
  kQueued,     // waits for a free slot
  kPrefill,    // tokens of the prompt, or of a preempted text, are still missing on the target
  kIdle,       // committed and streamed; the next round has not begun
  kDrafting,   // a Propose is out, and the round waits for its Draft
  kReady,      // the round's draft (perhaps empty) is decided; waits for a StepPlan
  kVerifying,  // in the StepPlan that is out
  kFinished,   // reported to the client; stays until the plan that closes it on the target
};

constexpr std::string_view request_state_name(RequestState state) {
  constexpr std::string_view kNames[] = {"queued", "prefill",   "idle",    "drafting",
                                         "ready",  "verifying", "finished"};
  return kNames[static_cast<size_t>(state)];
}

// The transition table; anything else is a programmer error.
constexpr bool may_become(RequestState from, RequestState to) {
  using S = RequestState;
  if (from == S::kFinished) return false;
  if (to == S::kFinished) return true;
  switch (from) {
    case S::kQueued:
      return to == S::kPrefill;
    case S::kPrefill:
      return to == S::kVerifying || to == S::kReady;
    case S::kIdle:
      return to == S::kDrafting || to == S::kReady;
    case S::kDrafting:
      return to == S::kReady;
    case S::kReady:
      return to == S::kVerifying || to == S::kPrefill;
    case S::kVerifying:
      return to == S::kPrefill || to == S::kReady || to == S::kIdle;
    case S::kFinished:
      return false;
  }
  return false;
}

enum class FinishReason : uint8_t { kStop, kLength, kError, kCancelled };

constexpr std::string_view finish_reason_name(FinishReason reason) {
  constexpr std::string_view kNames[] = {"stop", "length", "error", "cancelled"};
  return kNames[static_cast<size_t>(reason)];
}

}  // namespace outrider
