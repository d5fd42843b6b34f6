// The limits and deadlines of the protocol machine, as it was started. Never change while it runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/types.h"
#include "comm/codec.h"
#include "comm/messages/draft_forms.h"
#include "coordinator/gamma/gamma_policy.h"
#include "coordinator/request.h"
#include "coordinator/tree_shapes.h"

namespace outrider {

class AcceptanceProcess;

struct ProtocolOptions {
  uint64_t process = 0;       // that it runs in, as in the Hello of those who share it; 0: nobody does
  int32_t max_num_seqs = 16;  // running at once in a target group, whose limit also holds
  int32_t max_queued = 1024;  // requests waiting; more are refused
  int64_t max_queued_tokens = int64_t{4} << 20;  // prompt tokens waiting
  int32_t max_rows_per_step =
      512;  // decode, verify and prefill rows of one pass; a quarter is kept for prefill
  size_t max_bytes_per_step = WireLimits{}.frame_bytes;  // what one StepPlan may take, and the same quarter
  int32_t prefill_chunk = 256;                           // prompt tokens of one sequence per pass
  int32_t gamma_max = kDefaultGammaMax;
  int32_t target_groups = 1;  // of one model, that may join; a request runs in one of them
  // Target groups are programs of their own that come and go (Door::kTargets).
  bool targets_join = false;
  int32_t groups_to_begin = 0;      // that must be here before the first request; 0: all
  uint64_t target_fingerprint = 0;  // of the model that a group must have; 0: any, all the same
  // When the last group was lost requests wait so long for another one; 0: they end at once.
  std::chrono::milliseconds target_timeout{0};
  bool by_priority = false;  // Request::priority decides who is next; else all are served as they came
  int32_t max_context = 0;   // 0: what the target supports
  // What was computed of a text serves others that begin alike, in KV blocks that nobody else needs.
  bool prefix_caching = true;
  std::vector<TokenId> eos_ids;
  // How p/q rules get their q. Dense rows go to the target's ranks in slices where these have doors for them.
  QKind q_kind = QKind::kSparse;
  int32_t row_bytes = 1024;  // of each drafted token's row of q, with kSparse
  // Bits that an element of a state takes, with kHidden; what cannot be sent so is sent as kSparse.
  int32_t code_bits = 4;
  // What draft workers do while their drafts are verified.
  Pipeline pipeline = Pipeline::kLockstep;
  int32_t fanout = 8;  // outcomes prepared for at most, per sequence
  // Match rules: drafts are trees, for whose verdicts nothing is prepared. Others draft chains.
  TreeOptions tree;

  // A draft worker of whose rounds hardly any had a draft for so long gives its memory back; 0: none does.
  std::chrono::milliseconds unload_after{0};

  // Match rules: have workers tell what they would have drafted where a fully accepted draft ended, so that a
  // record of the rounds can be replayed at other lengths. Costs a row of the draft model's head each time.
  bool record_guesses = false;
  // Verdicts are not the models' (--synthetic-acceptance), so the text says nothing about a shadow draft.
  // Null: they are.
  std::shared_ptr<const AcceptanceProcess> synthetic_acceptance;

  // A round waits for its draft this many times the average round, within bounds ...
  double draft_timeout_rounds = 3;
  std::chrono::milliseconds draft_timeout_min{250};
  // A Propose is sent again when its Draft is overdue (AnswerTime), but no sooner than this, and while
  // nothing is usual yet after repeat_first.
  std::chrono::microseconds repeat_min{500}, repeat_first{20'000};
  // ... and at most so much longer where the worker has a prompt to read first, which takes some time per
  // token.
  std::chrono::milliseconds first_draft_timeout{10'000};
  // Under p/q rules lateness must not decide, it may hang on the tokens: only a worker that looks dead is
  // given up, after so many average rounds or plain passes, within bounds that know nothing of tokens either.
  double liveness_rounds = 50;
  std::chrono::milliseconds liveness_timeout_min{5'000};
  std::chrono::milliseconds liveness_timeout{30'000};
  // After k misses in a row a worker is left alone for 2^k of the times that were waited, at most this long;
  // so long at once if it is silent. A slow or dead worker thus costs a falling share of the time.
  std::chrono::milliseconds max_back_off{32'000};
  // A silent target ends every request: max(this, 50 average steps).
  std::chrono::milliseconds step_timeout_min{60'000};
  std::chrono::milliseconds target_join_timeout{120'000};

  // What was under way in a group when it is lost goes on in another one.
  bool outlives_group() const { return target_groups > 1 || target_timeout.count() > 0; }
  int32_t priority_of(const Request& request) const { return by_priority ? request.priority : 0; }
};

}  // namespace outrider
