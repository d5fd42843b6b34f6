#include "coordinator/step_planner.h"

#include <algorithm>
#include <utility>

namespace outrider {
namespace {

// A StepPlan's frame takes no more than this, and for each entry so much and the frames of its Open and
// Draft.
constexpr size_t kPlanBytes = 256, kEntryBytes = 128, kChangeBytes = 24;
// Each row of a prompt that is scored has logits over the whole vocabulary, and a place in the result.
constexpr int32_t kScoredChunk = 64;

// The most that a sequence adds to the plan's frame. Its draft takes no more there than in the Draft's frame.
size_t entry_bytes(const LiveRequest& live) {
  const bool has_draft = live.state == RequestState::kReady && live.round.has_draft;
  return kEntryBytes + (has_draft ? live.round.draft_bytes : 0) +
         (live.sequence.target.open ? 0 : live.open_bytes);
}

}  // namespace

bool StepPlanner::draft_fits(size_t frame_bytes) const {
  return kPlanBytes + kEntryBytes + frame_bytes <= decode_bytes();
}
bool StepPlanner::open_fits(size_t frame_bytes) const {
  return kPlanBytes + kEntryBytes + frame_bytes <= options_.max_bytes_per_step;
}

// Lockstep: a batch verifies together, so the idle target waits for drafts that are on their way.
bool StepPlanner::waits_for_drafts(const RequestTable& requests, Clock::time_point now) {
  return std::any_of(requests.all().begin(), requests.all().end(), [now](const auto& item) {
    return item.second->state == RequestState::kDrafting && now < item.second->round.batch_deadline;
  });
}

// Who has finished is closed, and what open sequences have computed of their prompts is there for others.
void StepPlanner::close_and_keep(RequestTable& requests, StepPlan& step) {
  step.state_hash = kv_.state_hash();
  for (auto& [id, live] : requests.all()) {
    step.state_hash += live->sequence.target_hash_term();
    if (!live->sequence.target.open) continue;
    if (!live->finished()) {
      kv_.keep_prompt(*live);
      continue;
    }
    kv_.close(*live);
    step.closes.push_back(id);
    live->sequence.target.open = false;
  }
}

// Of several that begin alike one reads the prompt, and the others take it from there.
bool StepPlanner::waits_for_prompt(const LiveRequest& live, int32_t known,
                                   const RequestTable& requests) const {
  return std::any_of(requests.all().begin(), requests.all().end(), [&](const auto& item) {
    const LiveRequest& other = *item.second;
    const bool reads = other.running() && other.sequence.target.open &&
                       other.sequence.target.kv_length < other.sequence.prompt_length();
    return reads && &other != &live && kv_.should_wait_for(live, other, known);
  });
}

void StepPlanner::open(LiveRequest& live, const PrefixIndex::Match& match, StepPlan* step) {
  plan_->bytes += live.open_bytes;
  step->opens.push_back(live.open());
  kv_.open(live, match);
  live.sequence.target_opened(match.length);
  live.metrics.cached_tokens = match.length;
}

std::optional<StepPlan> StepPlanner::plan(RequestTable& requests, Clock::time_point now) {
  if (plan_ || waits_for_drafts(requests, now)) return std::nullopt;
  const auto ready = requests.in_state(RequestState::kReady);
  const auto prefill = requests.in_state(RequestState::kPrefill);
  const bool has_closes = std::any_of(requests.all().begin(), requests.all().end(), [](const auto& item) {
    return item.second->finished() && item.second->sequence.target.open;
  });
  // Closes alone are worth a step only when nothing else will bring them.
  if (ready.empty() && prefill.empty() && !(has_closes && requests.running() == 0)) return std::nullopt;

  StepPlan step;
  step.step = next_step_++;
  close_and_keep(requests, step);
  plan_ = OutstandingPlan{.step = step.step,
                          .entries = {},
                          .bytes = kPlanBytes + step.closes.size() * sizeof(uint64_t),
                          .sent_at = now};
  const int32_t most_rows = prefill.empty() ? options_.max_rows_per_step : decode_rows();
  const size_t most_bytes = prefill.empty() ? options_.max_bytes_per_step : decode_bytes();
  for (LiveRequest* live : ready) {
    const int32_t input_count = live->sequence.committed() - live->sequence.target.kv_length;
    if (plan_->rows + input_count + live->round.drafted() > most_rows) continue;
    if (plan_->bytes + entry_bytes(*live) > most_bytes) continue;
    add(*live, input_count, now, &step);
  }
  for (LiveRequest* live : prefill) {
    const bool is_new = !live->sequence.target.open;
    const auto match = is_new ? kv_.find(*live) : PrefixIndex::Match();
    const int32_t kv_length = is_new ? match.length : live->sequence.target.kv_length;
    if (is_new && waits_for_prompt(*live, kv_length, requests)) continue;
    const int32_t chunk = live->request.prompt_logprobs < 0 ? options_.prefill_chunk
                                                            : std::min(options_.prefill_chunk, kScoredChunk);
    const int32_t input_count =
        std::min({live->sequence.committed() - kv_length, chunk, options_.max_rows_per_step - plan_->rows});
    if (plan_->bytes + entry_bytes(*live) > options_.max_bytes_per_step) continue;
    if (input_count <= 0) continue;
    if (is_new) open(*live, match, &step);
    add(*live, input_count, now, &step);
  }
  kv_.finish(step);
  plan_->bytes += step.prefixes.size() * kChangeBytes;
  return step;
}

void StepPlanner::add(LiveRequest& live, int32_t input_count, Clock::time_point now, StepPlan* step) {
  Sequence& sequence = live.sequence;
  plan_->bytes += entry_bytes(live);
  kv_.make_room(live, sequence.target.kv_length + input_count + live.round.drafted());
  const bool first = live.state == RequestState::kPrefill;
  const bool sampling = sequence.target.kv_length + input_count == sequence.committed();
  RoundInFlight& round = live.round;
  if (first) {
    round = RoundInFlight{};
    round.begun_at = round.decided_at = now;
    if (sampling) round.number = sequence.begin_round();
  }
  round.planned_at = now;
  step->entries.push_back({.sequence = live.id(),
                           .epoch = sequence.epoch(),
                           .round = round.number,
                           .base = Position(sequence.committed()),
                           .first_input = Position(sequence.target.kv_length),
                           .input_count = input_count,
                           .draft = round.draft.ids,
                           .parents = round.draft.parents,
                           .q_kind = round.draft.ids.empty() ? QKind::kNone : round.draft.q_kind,
                           .q = std::move(round.draft.q),
                           .hidden = std::move(round.draft.hidden),
                           .worker = round.worker,
                           .prompt_logprobs = first ? live.request.prompt_logprobs : -1});
  plan_->rows += input_count + round.drafted();
  plan_->context += sequence.committed();
  plan_->prefills |= first;
  const bool scores = first && live.request.prompt_logprobs >= 0;
  plan_->entries.push_back({.live = &live,
                            .input_count = input_count,
                            .sampling = sampling,
                            .first = first,
                            .first_scored = sequence.target.kv_length + 1,
                            .scored = scores ? input_count - (sampling ? 1 : 0) : -1});
  live.become(RequestState::kVerifying);
}

}  // namespace outrider
