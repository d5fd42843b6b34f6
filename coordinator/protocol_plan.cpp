// What the idle target does next: one StepPlan over decode, verify and prefill rows.
#include <algorithm>

#include "coordinator/protocol.h"

namespace outrider {
namespace {

int32_t length(const std::vector<TokenId>& ids) { return static_cast<int32_t>(ids.size()); }

// Of what goes into the plan's frame for a sequence, at most: the Draft's frame held as much.
size_t entry_bytes(const LiveRequest& live) {
  const bool has_draft = live.state == RequestState::kReady && live.round.has_draft;
  return kPlanEntryBytes + (has_draft ? live.round.draft_bytes : 0) +
         (live.sequence.target.open ? 0 : live.open_bytes);
}

}  // namespace

// Lockstep: a batch verifies together, so the idle target waits for drafts that are on their way.
bool Protocol::waits_for_drafts() const {
  return std::any_of(live_.begin(), live_.end(), [this](const auto& item) {
    return item.second->state == RequestState::kDrafting && now_ < item.second->round.batch_deadline;
  });
}

// Oldest first, so that a sequence that found no room leads the next plan.
std::vector<LiveRequest*> Protocol::in_state(RequestState state) {
  std::vector<LiveRequest*> found;
  for (auto& [id, live] : live_) {
    if (live->state == state) found.push_back(live.get());
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const LiveRequest* a, const LiveRequest* b) { return a->ready_at < b->ready_at; });
  return found;
}

void Protocol::plan() {
  if (!target_ || plan_ || waits_for_drafts()) return;
  const auto ready = in_state(RequestState::kReady);
  const auto prefill = in_state(RequestState::kPrefill);
  const bool has_closes = std::any_of(live_.begin(), live_.end(), [](const auto& item) {
    return item.second->finished() && item.second->sequence.target.open;
  });
  // Closes alone are worth a step only when nothing else will bring them.
  if (ready.empty() && prefill.empty() && !(has_closes && running_ == 0)) return;

  StepPlan step;
  step.step = next_step_++;
  for (auto& [id, live] : live_) {
    step.state_hash += live->sequence.target_hash_term();
    if (!live->finished() || !live->sequence.target.open) continue;
    step.closes.push_back(id);
  }
  plan_ = OutstandingPlan{.step = step.step,
                          .entries = {},
                          .rows = 0,
                          .bytes = kPlanBytes + step.closes.size() * sizeof(uint64_t),
                          .sent_at = now_};
  const int32_t decode_rows =
      options_.max_rows_per_step - (prefill.empty() ? 0 : options_.max_rows_per_step / 4);
  const size_t decode_bytes = prefill.empty() ? options_.max_bytes_per_step : this->decode_bytes();
  for (LiveRequest* live : ready) {
    const int32_t input_count = live->sequence.committed() - live->sequence.target.kv_length;
    if (plan_->rows + input_count + length(live->round.draft.ids) > decode_rows) continue;
    if (plan_->bytes + entry_bytes(*live) > decode_bytes) continue;
    plan_entry(*live, input_count, &step);
  }
  for (LiveRequest* live : prefill) {
    const int32_t kv_length = live->sequence.target.open ? live->sequence.target.kv_length : 0;
    const int32_t input_count = std::min({live->sequence.committed() - kv_length, options_.prefill_chunk,
                                          options_.max_rows_per_step - plan_->rows});
    if (plan_->bytes + entry_bytes(*live) > options_.max_bytes_per_step) continue;
    if (input_count > 0) plan_entry(*live, input_count, &step);
  }
  learn_draft_phase({}, cost_);
  for (auto& [kind, cost] : costs_) learn_draft_phase(kind, cost);
  for (const SequenceId id : step.closes) live_.at(id)->sequence.target.open = false;
  if (!plan_->entries.empty()) ++totals_.target_passes;
  totals_.target_rows += plan_->rows;
  send(target_->peer, std::move(step));
}

void Protocol::plan_entry(LiveRequest& live, int32_t input_count, StepPlan* step) {
  Sequence& sequence = live.sequence;
  const size_t bytes = entry_bytes(live);
  if (!sequence.target.open) {
    sequence.target_opened();
    step->opens.push_back(live.open());
  }
  const bool first = live.state == RequestState::kPrefill;
  const bool sampling = sequence.target.kv_length + input_count == sequence.committed();
  RoundInFlight& round = live.round;
  if (first) {
    round = RoundInFlight{};
    round.begun_at = round.decided_at = now_;
    if (sampling) round.number = sequence.begin_round();
  }
  round.planned_at = now_;
  step->entries.push_back({.sequence = live.id(),
                           .epoch = sequence.epoch(),
                           .round = round.number,
                           .base = Position(sequence.committed()),
                           .first_input = Position(sequence.target.kv_length),
                           .input_count = input_count,
                           .draft = round.draft.ids,
                           .q_kind = round.draft.ids.empty() ? QKind::kNone : round.draft.q_kind,
                           .q = std::move(round.draft.q),
                           .hidden = std::move(round.draft.hidden),
                           .worker = round.worker});
  totals_.drafts_used += round.has_draft;
  plan_->bytes += bytes;
  plan_->rows += input_count + length(round.draft.ids);
  plan_->context += sequence.committed();
  plan_->prefills |= first;
  plan_->entries.push_back(
      {.sequence = live.id(), .input_count = input_count, .sampling = sampling, .first = first});
  live.become(RequestState::kVerifying);
}

// How long this plan's drafts were waited for. Rounds that met a timeout or read a prompt tell nothing about
// links and workers. `kind`: only that of its sequences.
void Protocol::learn_draft_phase(std::optional<DrafterKind> kind, CostModel& cost) {
  int32_t longest = 0, total = 0;
  double wait = 0, busiest = 0;
  draft_busy_.clear();
  for (const PlannedEntry& entry : plan_->entries) {
    const LiveRequest& live = *live_.at(entry.sequence);
    const RoundInFlight& round = live.round;
    if (round.gamma == 0 || (kind && round.kind != *kind)) continue;
    if (!round.has_draft || round.read_prompt || !live.link.peer) return;
    longest = std::max(longest, length(round.draft.ids));
    total += length(round.draft.ids);
    wait = std::max(wait, std::chrono::duration<double>(round.decided_at - round.begun_at).count());
    auto worker = std::find_if(draft_busy_.begin(), draft_busy_.end(),
                               [&](const auto& busy) { return busy.first == *live.link.peer; });
    if (worker == draft_busy_.end()) worker = draft_busy_.insert(worker, {*live.link.peer, 0.0});
    worker->second += static_cast<double>(round.draft.ingest_ns + round.draft.draft_ns) * 1e-9;
    busiest = std::max(busiest, worker->second);
  }
  cost.observe_draft_phase(longest, total, busiest, wait);
}

}  // namespace outrider
