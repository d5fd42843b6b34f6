// Reads and checks everything that does not need a loaded model or another process: configurations,
// vocabularies, limits.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/messages/joining.h"
#include "model_files/model_config.h"
#include "start/settings.h"
#include "text/tokenizer/tokenizer.h"

namespace outrider {

struct Preparation {
  ModelConfig target;                // not set in a draft worker that joins, unless it has a head
  std::optional<ModelConfig> draft;  // with --draft-model, unless that is a head
  std::optional<HeadConfig> head;    // if --draft-model is a head
  uint64_t hidden_state_head =
      0;  // the head's fingerprint, the same on all machines: Hello::hidden_state_head
  std::unique_ptr<Tokenizer> tokenizer;
  ModelInfo target_info, draft_info;  // for Hello; an n-gram drafter has a draft_info too
  std::vector<uint64_t> vocabulary_beginnings;  // for Hello, of a draft worker that joins
  int64_t max_model_len = 0;
  std::vector<std::string> warnings;  // to be printed once, by one process
};

// Prints them on standard error.
void tell_warnings(const Preparation& prepared);

// For a target and its drafter. Errors name file, key or flag, and the remedy.
Result<Preparation> prepare(const RoleSettings& settings);
// For a draft worker that joins a run whose settings it does not know yet.
Result<Preparation> prepare_drafter(const RoleSettings& settings);

// Computes the model's fingerprint in target_info, for groups that join, and for the run that they join.
// Reads all weights.
Status identify_target(const RoleSettings& settings, Preparation& prepared);

// Limits texts to this many tokens; never raises the limit.
void limit_context(Preparation& prepared, int64_t max_model_len);

}  // namespace outrider
