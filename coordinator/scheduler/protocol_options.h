// Limits and deadlines of the protocol machine. Constant while it runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/types.h"
#include "comm/codec.h"
#include "comm/messages/draft_forms.h"
#include "coordinator/choices/tree_shapes.h"
#include "coordinator/gamma/gamma_policy.h"
#include "coordinator/request/request.h"

namespace outrider {

class AcceptanceProcess;

struct ProtocolOptions {
  // All roles are threads of this process: messages name its models instead of workers and groups.
  bool one_process = false;
  uint64_t process = 0;       // identity of the coordinator's process, as in Hello; 0: no worker shares it
  int32_t max_num_seqs = 16;  // running at once in a target group; the group's own limit also holds
  int32_t max_queued = 1024;  // requests waiting; more are refused
  int64_t max_queued_tokens = int64_t{4} << 20;  // prompt tokens waiting
  int32_t max_rows_per_step =
      512;  // decode, verify and prefill rows of one pass; a quarter is kept for prefill
  size_t max_bytes_per_step = WireLimits{}.frame_bytes;  // of one StepPlan; a quarter is kept for prefill
  int32_t prefill_chunk = 256;                           // prompt tokens of one sequence per pass
  int32_t gamma_max = kDefaultGammaMax;
  bool may_draft = true;      // false: there is no draft worker, and none may join
  int32_t target_groups = 1;  // the number that may join, of one model; a request runs in one group
  // Among these, groups that only prefill prompts and send the blocks to other groups (PromptHandoffs).
  int32_t prefill_groups = 0;
  int32_t min_handoff_tokens = 64;  // fewer are prefilled in the group that decodes them
  // This long after they could be taken in, a prompt is computed where its blocks are missing.
  std::chrono::milliseconds handoff_timeout{10'000};
  // Target groups are programs of their own that come and go (TrustZone::kTargets).
  bool targets_join = false;
  int32_t groups_to_begin = 0;      // groups that must be connected before the first request; 0: all
  uint64_t target_fingerprint = 0;  // of the model that a group must have; 0: any, the same in all groups
  // After the loss of the last group requests wait this long for another one; 0: they end at once.
  std::chrono::milliseconds target_timeout{0};
  bool by_priority = false;  // Request::priority decides the order; else order of arrival
  int32_t max_context = 0;   // 0: what the target supports
  // Prefix caching: KV blocks of earlier texts serve requests that begin alike, in blocks without other use.
  bool prefix_caching = true;
  std::vector<TokenId> eos_ids;
  // Wire format of draft distributions for p/q rules. Dense rows are sent straight to the target's ranks in
  // slices if these have endpoints.
  QKind q_kind = QKind::kSparse;
  int32_t row_bytes = 1024;  // of each drafted token's row of q, with kSparse
  // Bits of an element of a hidden state, with kHidden. A state that cannot be sent so is sent as kSparse.
  int32_t code_bits = 4;
  // The work of draft workers during the verification of their drafts.
  Pipeline pipeline = Pipeline::kLockstep;
  int32_t fanout = 8;  // outcomes prepared for at most, per sequence
  // Match rules: drafts are trees, and nothing is prepared for their outcomes. Other rules draft chains.
  TreeOptions tree;

  // Unloads a draft worker if hardly any of its rounds had a draft for this long; 0: never.
  std::chrono::milliseconds unload_after{0};

  // Match rules: workers report their guess for the token after a fully accepted draft, so that a record of
  // the rounds can be replayed at other lengths. Costs a row of the draft model's head each time.
  bool record_guesses = false;
  // Not null: verdicts are synthetic (--synthetic-acceptance), so a probe draft cannot be compared with the
  // text.
  std::shared_ptr<const AcceptanceProcess> synthetic_acceptance;

  // A round waits for its draft this many times the average round, within bounds ...
  double draft_timeout_rounds = 3;
  std::chrono::milliseconds draft_timeout_min{250};
  // A Propose is repeated when its Draft is overdue (AnswerTime), but not before repeat_min; before the first
  // measurement, after repeat_first.
  std::chrono::microseconds repeat_min{500}, repeat_first{20'000};
  // ... and at most this much longer where the worker has a prompt to prefill first, by a time for each
  // token.
  std::chrono::milliseconds first_draft_timeout{10'000};
  // Under p/q rules a timeout must not decide, since lateness may depend on the tokens: a worker is given up
  // only when it looks dead, after this many average rounds or plain passes, within bounds independent of
  // tokens.
  double liveness_rounds = 50;
  std::chrono::milliseconds liveness_timeout_min{5'000};
  std::chrono::milliseconds liveness_timeout{30'000};
  // After k consecutive misses a worker gets no requests for 2^k times the time that was waited, at most this
  // long; the full pause at once if it is silent. So a slow or dead worker costs a falling share of the time.
  std::chrono::milliseconds max_back_off{32'000};
  // A silent target ends every request: max(this, 50 average steps).
  std::chrono::milliseconds step_timeout_min{60'000};
  std::chrono::milliseconds target_join_timeout{120'000};

  // Whether the work of a lost group continues in another group.
  bool outlives_group() const { return target_groups > 1 || target_timeout.count() > 0; }
  int32_t priority_of(const Request& request) const { return by_priority ? request.priority : 0; }
};

}  // namespace outrider
