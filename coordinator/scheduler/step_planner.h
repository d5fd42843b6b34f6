// Plans the target's next pass: one StepPlan of decode, verify and prefill rows, bounded in rows and bytes.
// One plan is out at a time. Chooses its sequences, oldest first; never decides drafts or commits.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "coordinator/scheduler/kv_ledger.h"
#include "coordinator/scheduler/protocol_options.h"
#include "coordinator/scheduler/request_table.h"

namespace outrider {

struct PlannedEntry {
  LiveRequest* live = nullptr;  // valid until a later plan closes it on the target
  int32_t input_count = 0;
  bool sampling = false;
  bool first = false;  // the entry ends a prefill
  // The result must bring log-probabilities of prompt tokens from first_scored on; -1: none are requested.
  int32_t first_scored = 0, scored = -1;
};

// Blocks of a prompt that the group sends to another one.
struct PlannedExport {
  SequenceId sequence;
  int32_t count = 0;  // tokens
};

// Blocks of a prompt that the group takes in, if they are there.
struct PlannedImport {
  LiveRequest* live = nullptr;
  int32_t count = 0;  // tokens
};

struct OutstandingPlan {
  uint64_t step = 0;
  std::vector<PlannedEntry> entries;
  std::vector<LiveRequest*> gave_up;  // preempted for want of blocks; will be prefilled again
  std::vector<SequenceId> handed_over;  // go on in another group, with or without their blocks
  std::vector<PlannedExport> exports;
  std::vector<PlannedImport> imports;
  int32_t lost_handoffs = 0;  // blocks that were awaited and are of no use any more
  int32_t rows = 0;
  size_t bytes = 0;       // of its frame, at most
  int64_t context = 0;    // summed over the entries
  bool prefills = false;  // some rows are prefill rows, which have another cost
  Clock::time_point sent_at;
};

class StepPlanner {
 public:
  StepPlanner(const ProtocolOptions& options, KvLedger& kv) : options_(options), kv_(kv) {}

  // Makes the next plan for the target, which is outstanding from now on; its requests are verifying. Empty:
  // a plan is outstanding, or there is no work, or the target waits for drafts. `seq_slots`: the target's
  // number of slots. There may be more requests, of a failed group; some then wait.
  std::optional<StepPlan> plan(RequestTable& requests, size_t seq_slots, Clock::time_point now);
  // The same without entries, for the other parts of a plan. No plan may be out.
  StepPlan plan_nothing(RequestTable& requests, Clock::time_point now);
  // Null: the target is idle.
  const OutstandingPlan* outstanding() const { return plan_ ? &*plan_ : nullptr; }
  // Its result has come, or the group that would send it is gone.
  OutstandingPlan take() { return *std::exchange(plan_, std::nullopt); }
  void drop() { plan_.reset(); }
  // The outstanding plan is `missed` younger than it seems: the loop did not look for its result.
  void move(Clock::duration missed) {
    if (plan_) plan_->sent_at += missed;
  }
  uint64_t next_step() const { return next_step_; }

  // Rows and bytes of drafts in any plan; the rest is kept for prompts.
  int32_t decode_rows() const { return options_.max_rows_per_step - options_.max_rows_per_step / 4; }
  size_t decode_bytes() const { return options_.max_bytes_per_step - options_.max_bytes_per_step / 4; }
  // Whether a draft fits into a plan of its own. `frame_bytes`: of the Draft, or of the prompt's Open.
  bool draft_fits(size_t frame_bytes) const;
  // The number of a sequence's rows whose masks fit beside those of all other sequences; at least 1.
  int32_t mask_rows(int32_t vocab_size) const;
  bool open_fits(size_t frame_bytes) const;

 private:
  StepPlan begin(RequestTable& requests, Clock::time_point now);
  static bool waits_for_drafts(const RequestTable& requests, Clock::time_point now);
  void close_and_keep(RequestTable& requests, StepPlan& step);
  bool waits_for_prompt(const LiveRequest& live, int32_t known, const RequestTable& requests) const;
  void add_ready(RequestTable& requests, int32_t most_rows, size_t most_bytes, StepPlan* step);
  void add_prefill(RequestTable& requests, size_t seq_slots, StepPlan* step);
  void hand_over(RequestTable& requests, StepPlan* step);
  void add_import(LiveRequest& live, RequestTable& requests, StepPlan* step);
  bool comes_before(const LiveRequest& a, const LiveRequest& b) const;
  bool find_room(LiveRequest& live, int32_t tokens, RequestTable& requests, StepPlan* step);
  bool open(LiveRequest& live, const PrefixIndex::Match& found, StepPlan* step);
  void add(LiveRequest& live, int32_t input_count, Clock::time_point now, StepPlan* step);
  template <class Row>
  std::vector<Row> rows_of_q(std::vector<Row>& rows) const;

  const ProtocolOptions& options_;
  KvLedger& kv_;
  uint64_t next_step_ = 0;
  std::optional<OutstandingPlan> plan_;
};

}  // namespace outrider
