// What a client asked for, how far it got, and how it ended.
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
#include "transformer/grammar/grammar.h"

namespace outrider {

struct Request {
  std::vector<TokenId> prompt;  // at least one id; the tokenizer has added BOS where it belongs
  SamplingParams sampling;
  int32_t max_tokens = 128;       // emitted tokens, an end-of-sequence token included
  std::vector<std::string> stop;  // emission ends before the first of these texts
  std::vector<TokenId> stop_ids;  // emission ends with one of these
  // What the text must look like; null: anything. It ends where nothing can follow, and at an
  // end-of-sequence token, which is drawn only where the text may end.
  std::shared_ptr<const Grammar> grammar;
  std::vector<TokenId> shown;  // special tokens that its text has written out
  // Not negative: log-probabilities of the prompt's tokens but the first, and of so many best ones, come in
  // Emit before anything else.
  int32_t prompt_logprobs = -1;
  bool ignore_eos = false;
  // Requests with another salt take nothing that was computed for this one, nor could they tell by the time.
  std::string cache_salt;
  int32_t priority = 0;      // the lower, the earlier; with ProtocolOptions::by_priority
  GammaPolicyFactory gamma;  // empty: the coordinator's default policy
  // Its own policy must not slow other requests down (DraftShares).
  bool pays_for_drafts = false;
  // When the client asked, if that was before the coordinator is told.
  std::optional<std::chrono::steady_clock::time_point> asked_at = {};
};

// What workers are told of it; that of none is 0.
inline uint64_t salt_hash(const std::string& cache_salt) {
  uint64_t hash = 0;
  for (const char c : cache_salt) hash = hash_combine(hash + 1, static_cast<unsigned char>(c));
  return hash;
}

// kQueued -> kPrefill -> kReady -> kDrafting -> kReady -> kVerifying -> kIdle -> (next round) ... ->
// kFinished. kFinished is reachable from everywhere.
enum class RequestState : uint8_t {
  kQueued,     // waits for a free place
  kPrefill,    // tokens of the prompt, or of a text that lost its place, are still missing on the target
  kIdle,       // committed and streamed; the next round has not begun
  kDrafting,   // a Propose is out and the round waits for its Draft
  kReady,      // the round's draft (perhaps empty) is decided; waits for a StepPlan
  kVerifying,  // in the StepPlan that is out
  kFinished,   // told to the client; stays until the target was told to close it
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
