// Messages of a worker's admission, heartbeats and end, between workers and the coordinator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"

namespace outrider {

constexpr uint32_t kProtocolVersion = 24;

enum class Role : uint8_t { kCoordinator = 0, kDraft = 1, kTarget = 2 };

// Properties of a model that must agree before two roles may work together.
struct ModelInfo {
  std::string name;                     // for people
  int32_t vocab_size = 0;               // rows of the output head, padding included
  uint64_t vocabulary_fingerprint = 0;  // of the id -> string table; equal means the ids mean the same. 0:
                                        // any vocabulary will do (n-gram drafters)
  uint64_t fingerprint = 0;             // of the model; two drafters with the same one draft the same
  int32_t max_context = 0;              // positions the model supports
  std::string isa;                      // instruction set its kernels use
};

// A target rank's endpoint for its slice of dense draft distributions.
struct SliceEndpoint {
  std::string endpoint;
  std::string gpu;  // GPU and host, if rows may also come from device to device (comm/row_link.h)
};
// The endpoints of all ranks, in rank order, and the keys for sending there. Empty: q travels in Draft and
// StepPlan.
struct SliceEndpoints {
  std::vector<SliceEndpoint> of_rank;
  uint64_t cluster = 0;                // cluster id of the frames
  std::string server_key;              // CURVE, one for all ranks; empty: not encrypted
  std::string public_key, secret_key;  // of all draft workers
};

// The time of a pass of `rows` rows, in passes of one row.
struct RowCost {
  int32_t rows = 0;
  float passes = 0;
};
// Times of forward passes, measured by a worker before its Hello.
struct PassTimes {
  int64_t row_ns = 0;            // of a pass of one row; 0: unknown
  std::vector<RowCost> by_rows;  // of longer passes, with increasing rows
  int64_t prefill_token_ns = 0;  // of a prefill, for each token; 0: unknown
};
constexpr size_t kMaxRowCosts = 32;
constexpr size_t kMaxVocabularyBeginnings = 1024;

// First message of a worker, sent again after every reconnect. The version stays the first field, so that the
// Hello of another version can be decoded that far and refused with a reason.
struct Hello {
  uint32_t protocol_version = kProtocolVersion;
  Role role = Role::kDraft;
  Generation generation;  // new for every life of the worker
  ModelInfo model;
  // Sent by a draft worker: fingerprints of its id -> string table without the last token, without the last
  // two, and so on. A target that lacks the last tokens of the draft model finds its own fingerprint here.
  std::vector<uint64_t> vocabulary_beginnings;
  int32_t max_sequences = 0;      // how many it can hold at once
  SliceEndpoints slices;          // of a target group
  uint64_t head_fingerprint = 0;  // of the draft model's output head, if q may be kHidden (draft_head.h)
  uint64_t co_located_drafter =
      0;                  // of a target group that drafts itself: the drafter's ModelInfo::fingerprint
  int64_t kv_blocks = 0;  // of a target rank's KV cache, the same on every rank; 0: it keeps no prefixes
  // From a target group: it sends HiddenStateRows for the head with this fingerprint, `hidden_state_width`
  // numbers a row. From a draft worker: it drafts with that head and needs them. 0: neither.
  uint64_t hidden_state_head = 0;
  int32_t hidden_state_width = 0;
  // From a draft worker: it drafts with TokenSuccessors, which every target group can send.
  bool successors = false;
  // From a draft worker: it finds drafts in the text, and weighs their cost with Propose::row_ns.
  bool finds_text = false;
  // From a draft worker, and from a target group about the drafter beside it: one pass makes a whole draft,
  // so drafts of any length take the same time (DFlash, DSpark).
  bool drafts_blocks = false;
  // From a worker with a draft model: the most tokens that it prefills of a text, however long that is; 0:
  // all.
  int32_t max_prefill = 0;
  PassTimes pass_times = {};  // from a target group or a worker with a draft model, where it measured them
  uint64_t process = 0;       // identity of its process; 0: not known to be the coordinator's
  bool only_prefills = false;  // of a target group: it prefills prompts for other groups, and decodes none
  uint64_t block_inbox = 0;    // of a target group: names its ranks' inboxes for KvBlocks; 0: it has none
};

// The answer to Hello: admits the worker, with the target that it drafts for, or gives the reason for a
// refusal. Every version can decode it.
struct Welcome {
  bool accepted = false;
  std::string reason;
  ModelInfo target;              // only when accepted: drafts stay inside its vocabulary ...
  std::vector<TokenId> eos_ids;  // ... and end at an end-of-sequence token
  SliceEndpoints slices;
};

struct Heartbeat {
  Generation generation;
};

// The sender cannot go on. From a target rank this ends every request with a typed error.
struct Failure {
  std::string message;
};

struct Shutdown {};

}  // namespace outrider
