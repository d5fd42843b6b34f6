// Everything that is read and checked before a model is loaded or a process waits for another:
// configurations, vocabularies, limits.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/messages/joining.h"
#include "start/settings.h"
#include "transformer/files/model_config.h"
#include "transformer/tokenizer/tokenizer.h"

namespace outrider {

struct Preparation {
  ModelConfig target;                // not in a draft worker that joins, unless it has a head
  std::optional<ModelConfig> draft;  // with --draft-model, unless that is
  std::optional<HeadConfig> head;    // a head
  uint64_t state_head = 0;           // its fingerprint, the same on all machines: Hello::state_head
  std::unique_ptr<Tokenizer> tokenizer;
  ModelInfo target_info, draft_info;  // for Hello; an n-gram drafter has a draft_info too
  int64_t max_model_len = 0;
  std::vector<std::string> warnings;  // to be told once, by one process
};

// On standard error.
void tell_warnings(const Preparation& prepared);

// For a target and what drafts for it. Errors name file, key or flag, and the remedy.
Result<Preparation> prepare(const RoleSettings& settings);
// For a draft worker that joins a run of which it knows nothing yet.
Result<Preparation> prepare_drafter(const RoleSettings& settings);

// The model's fingerprint, in target_info: of groups that join, and of the run that they join. Reads all
// weights.
Status identify_target(const RoleSettings& settings, Preparation& prepared);

// Plans for texts of at most so many tokens; never more than before.
void limit_context(Preparation& prepared, int64_t max_model_len);

}  // namespace outrider
