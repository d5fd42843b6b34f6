// What the idle target does next: one StepPlan over decode, verify and prefill rows, bounded in rows and
// bytes. One plan is out at a time. Decides who goes into it, oldest first; never what is drafted or
// committed.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "coordinator/kv_ledger.h"
#include "coordinator/protocol_options.h"
#include "coordinator/request_table.h"

namespace outrider {

struct PlannedEntry {
  LiveRequest* live = nullptr;  // stays at least until the target was told to close it, in a later plan
  int32_t input_count = 0;
  bool sampling = false;
  bool first = false;  // ends a prefill
  // Prompt tokens from first_scored on whose log-probabilities the result has to bring; -1: none are asked
  // for.
  int32_t first_scored = 0, scored = -1;
};

struct OutstandingPlan {
  uint64_t step = 0;
  std::vector<PlannedEntry> entries;
  std::vector<LiveRequest*> gave_up;  // were closed for want of blocks, and will be read again
  int32_t rows = 0;
  size_t bytes = 0;       // of its frame, at most
  int64_t context = 0;    // summed over the entries
  bool prefills = false;  // some rows are prompt rows, which cost otherwise
  Clock::time_point sent_at;
};

class StepPlanner {
 public:
  StepPlanner(const ProtocolOptions& options, KvLedger& kv) : options_(options), kv_(kv) {}

  // The plan for the target, which is out from now on; its requests are verifying. Empty: one is out, or
  // there is nothing to do, or the target waits for drafts. `places`: sequences that it holds at most. There
  // may be more requests, of a group that died; some of them wait.
  std::optional<StepPlan> plan(RequestTable& requests, size_t places, Clock::time_point now);
  // The same without any entry, for what else a plan brings. None is out.
  StepPlan plan_nothing(RequestTable& requests, Clock::time_point now);
  // Null: the target is idle.
  const OutstandingPlan* outstanding() const { return plan_ ? &*plan_ : nullptr; }
  // Its result has come, or nobody is there to send one.
  OutstandingPlan take() { return *std::exchange(plan_, std::nullopt); }
  void drop() { plan_.reset(); }
  // The plan that is out is so much younger than it seems: nobody looked for its result.
  void move(Clock::duration missed) {
    if (plan_) plan_->sent_at += missed;
  }
  uint64_t next_step() const { return next_step_; }

  // Rows and bytes of drafts in any plan; the rest is kept for prompts.
  int32_t decode_rows() const { return options_.max_rows_per_step - options_.max_rows_per_step / 4; }
  size_t decode_bytes() const { return options_.max_bytes_per_step - options_.max_bytes_per_step / 4; }
  // Whether it fits a plan, alone. `frame_bytes`: of the Draft, or of the prompt's Open.
  bool draft_fits(size_t frame_bytes) const;
  // Rows of a sequence whose masks fit beside those of all others, one at least.
  int32_t mask_rows(int32_t vocab_size) const;
  bool open_fits(size_t frame_bytes) const;

 private:
  StepPlan begin(RequestTable& requests, Clock::time_point now);
  static bool waits_for_drafts(const RequestTable& requests, Clock::time_point now);
  void close_and_keep(RequestTable& requests, StepPlan& step);
  bool waits_for_prompt(const LiveRequest& live, int32_t known, const RequestTable& requests) const;
  void add_ready(RequestTable& requests, int32_t most_rows, size_t most_bytes, StepPlan* step);
  void add_prefill(RequestTable& requests, size_t places, StepPlan* step);
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
