#include "coordinator/scheduler/step_planner.h"

#include <algorithm>
#include <utility>

namespace outrider {
namespace {

// Upper bounds of the frame of a StepPlan: kPlanBytes, and for each entry kEntryBytes and the frames of its
// Open and Draft.
constexpr size_t kPlanBytes = 256, kEntryBytes = 144, kChangeBytes = 24, kBlocksBytes = 40;
// Each scored row of a prompt needs logits over the whole vocabulary, and room in the result.
constexpr int32_t kScoredChunk = 64;

// The shapes of the next trees, for a target that drafts itself.
size_t shape_bytes(const ProtocolOptions& options) {
  const TreeShape& shape = options.tree.shape;
  if (shape.is_chain()) return 0;
  const auto numbers = shape.widths.size() + shape.parents.size() + static_cast<size_t>(shape.nodes);
  return static_cast<size_t>(options.max_num_seqs) * (32 + numbers * sizeof(int32_t));
}

// The most bytes that a sequence adds to the plan's frame. Its draft takes no more than in the Draft's frame.
size_t entry_bytes(const LiveRequest& live) {
  const bool is_ready = live.state == RequestState::kReady;
  size_t bytes = kEntryBytes + (live.sequence.target.open ? 0 : live.open_bytes);
  if (is_ready && live.round.has_draft) bytes += live.round.draft_bytes;
  if (!live.constraint) return bytes;
  if (is_ready)
    return bytes + live.round.masks.bytes + static_cast<size_t>(live.round.masks.forced) * sizeof(TokenId);
  return bytes + kMaskBytes + most_set_bytes(live.constraint->vocab_size());  // of the first row
}

// Blocks can only follow whole blocks.
PrefixIndex::Match beginning_of_import(const LiveRequest& live, PrefixIndex::Match found) {
  if (found.length >= live.handoff.end) return found;
  found.part = PrefixIndex::kNoNode;
  found.length -= found.length % static_cast<int32_t>(kBlockTokens);
  return found;
}

}  // namespace

bool StepPlanner::draft_fits(size_t frame_bytes) const {
  return kPlanBytes + kEntryBytes + frame_bytes <= decode_bytes();
}
int32_t StepPlanner::mask_rows(int32_t vocab_size) const {
  const size_t share = decode_bytes() / static_cast<size_t>(options_.max_num_seqs);
  return static_cast<int32_t>(std::max<size_t>(share / (kMaskBytes + most_set_bytes(vocab_size)), 1));
}
bool StepPlanner::open_fits(size_t frame_bytes) const {
  return kPlanBytes + kEntryBytes + frame_bytes <= options_.max_bytes_per_step;
}

// Lockstep: a batch verifies together, so the idle target waits for drafts that are under way.
bool StepPlanner::waits_for_drafts(const RequestTable& requests, Clock::time_point now) {
  return std::any_of(requests.all().begin(), requests.all().end(), [now](const auto& item) {
    return item.second->state == RequestState::kDrafting && now < item.second->round.batch_deadline;
  });
}

// Closes finished sequences, and makes the prompts of open sequences available to others.
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

// If several waiting prompts begin alike, one is prefilled and the others reuse its blocks.
bool StepPlanner::waits_for_prompt(const LiveRequest& live, int32_t known,
                                   const RequestTable& requests) const {
  return std::any_of(requests.all().begin(), requests.all().end(), [&](const auto& item) {
    const LiveRequest& other = *item.second;
    const int32_t end = std::min(other.prefill_end(), other.sequence.prompt_length());
    const bool reads = other.running() && other.sequence.target.open && other.sequence.target.kv_length < end;
    return reads && &other != &live && kv_.should_wait_for(live, other, known);
  });
}

bool StepPlanner::open(LiveRequest& live, const PrefixIndex::Match& found, StepPlan* step) {
  const auto match = kv_.open(live, found);
  if (!match) return false;
  plan_->bytes += live.open_bytes + static_cast<size_t>(live.sequence.emitted()) * sizeof(TokenId);
  step->opens.push_back(live.open());
  live.sequence.target_opened(match->length);
  if (!live.recomputes() && !live.awaits_blocks()) live.metrics.cached_tokens = match->length;
  return true;
}

// The order in which slots and blocks are given.
bool StepPlanner::comes_before(const LiveRequest& a, const LiveRequest& b) const {
  return std::pair(options_.priority_of(a.request), a.id()) <
         std::pair(options_.priority_of(b.request), b.id());
}

// Preempts the youngest sequence: closes it, keeps its blocks as long as they are not needed, and opens it
// again when there is room. Slices of q would be lost with its KV slots.
bool StepPlanner::find_room(LiveRequest& live, int32_t tokens, RequestTable& requests, StepPlan* step) {
  while (!kv_.make_room(live, tokens)) {
    LiveRequest* last = nullptr;
    for (auto& [id, other] : requests.all()) {
      const bool waits =
          other->state == RequestState::kReady || other->state == RequestState::kPrefill ||
          (other->state == RequestState::kDrafting && other->link.proposal.message.q_kind != QKind::kSlices);
      const bool scores = other->request.prompt_logprobs >= 0 && !other->recomputes();
      if (waits && !scores && other->sequence.target.open && comes_before(live, *other) &&
          (!last || comes_before(*last, *other)))
        last = other.get();
    }
    if (!last) return false;
    kv_.close(*last);
    step->closes.push_back(last->id());
    last->sequence.target.open = false;
    plan_->lost_handoffs += last->awaits_blocks();
    if (last->awaits_blocks()) last->handoff = {};
    if (last->state == RequestState::kReady) last->become(RequestState::kPrefill);
    plan_->gave_up.push_back(last);
  }
  return true;
}

StepPlan StepPlanner::begin(RequestTable& requests, Clock::time_point now) {
  StepPlan step;
  step.step = next_step_++;
  close_and_keep(requests, step);
  plan_ = OutstandingPlan{.step = step.step,
                          .entries = {},
                          .bytes = kPlanBytes + shape_bytes(options_) + step.closes.size() * sizeof(uint64_t),
                          .sent_at = now};
  return step;
}

StepPlan StepPlanner::plan_nothing(RequestTable& requests, Clock::time_point now) {
  StepPlan step = begin(requests, now);
  kv_.finish(step);
  plan_->bytes += step.prefixes.size() * kChangeBytes;
  return step;
}

std::optional<StepPlan> StepPlanner::plan(RequestTable& requests, size_t seq_slots, Clock::time_point now) {
  if (plan_ || waits_for_drafts(requests, now)) return std::nullopt;
  for (LiveRequest* live : requests.in_state(RequestState::kReady))
    if (!live->sequence.target.open)
      live->become(RequestState::kPrefill);  // its draft came while it was closed
  const auto ready = requests.in_state(RequestState::kReady);
  const auto prefill = requests.in_state(RequestState::kPrefill);
  const bool has_closes = std::any_of(requests.all().begin(), requests.all().end(), [](const auto& item) {
    return item.second->finished() && item.second->sequence.target.open;
  });
  // A plan of closes alone is sent only if no other plan will bring them.
  if (ready.empty() && prefill.empty() && !(has_closes && requests.running() == 0)) return std::nullopt;

  StepPlan step = begin(requests, now);
  const int32_t most_rows = prefill.empty() ? options_.max_rows_per_step : decode_rows();
  const size_t most_bytes = prefill.empty() ? options_.max_bytes_per_step : decode_bytes();
  hand_over(requests, &step);
  add_ready(requests, most_rows, most_bytes, &step);
  add_prefill(requests, seq_slots, &step);
  kv_.finish(step);
  plan_->bytes += step.prefixes.size() * kChangeBytes;
  if (step.entries.empty() && step.closes.empty() && step.opens.empty() && step.prefixes.empty() &&
      step.imports.empty()) {
    plan_.reset();  // all requests wait for blocks or drafts
    --next_step_;
    return std::nullopt;
  }
  return step;
}

void StepPlanner::add_ready(RequestTable& requests, int32_t most_rows, size_t most_bytes, StepPlan* step) {
  for (LiveRequest* live : requests.in_state(RequestState::kReady)) {
    if (live->state != RequestState::kReady) continue;  // it was preempted just now
    const int32_t kv_length = live->sequence.target.kv_length;
    const int32_t input_count = live->sequence.committed() - kv_length;
    if (plan_->rows + input_count + live->round.drafted() > most_rows) continue;
    if (plan_->bytes + entry_bytes(*live) > most_bytes) continue;
    if (!find_room(*live, kv_length + input_count + live->round.drafted(), requests, step)) continue;
    add(*live, input_count, plan_->sent_at, step);
  }
}

// Closes prompts whose part here is done, and sends their blocks away. Their group is decided.
void StepPlanner::hand_over(RequestTable& requests, StepPlan* step) {
  for (LiveRequest* live : requests.in_state(RequestState::kPrefill)) {
    const Handoff& handoff = live->handoff;
    if (!live->has_prefilled() || handoff.to < 0) continue;
    if (handoff.transfer > 0) {
      step->exports.push_back({.sequence = live->id(),
                               .transfer = handoff.transfer,
                               .first = Position(handoff.first),
                               .count = handoff.end - handoff.first,
                               .inbox = handoff.inbox});
      plan_->exports.push_back({.sequence = live->id(), .count = handoff.end - handoff.first});
    }
    kv_.close(*live);
    step->closes.push_back(live->id());
    live->sequence.target.open = false;
    plan_->handed_over.push_back(live->id());
    plan_->bytes += kBlocksBytes + sizeof(uint64_t);
  }
}

// The sequence must begin with the blocks that the transfer assumes, or with more.
void StepPlanner::add_import(LiveRequest& live, RequestTable& requests, StepPlan* step) {
  const Handoff& handoff = live.handoff;
  const int32_t there = live.sequence.target.kv_length;
  if (there >= handoff.first && there < handoff.end) {
    if (plan_->bytes + kBlocksBytes > options_.max_bytes_per_step ||
        !find_room(live, handoff.end, requests, step))
      return;
    step->imports.push_back({.sequence = live.id(),
                             .transfer = handoff.transfer,
                             .first = Position(there),
                             .count = handoff.end - there});
    plan_->imports.push_back({.live = &live, .count = handoff.end - there});
    if (!handoff.deadline) live.handoff.deadline = plan_->sent_at + options_.handoff_timeout;
    plan_->bytes += kBlocksBytes;
    live.become(RequestState::kVerifying);
    return;
  }
  plan_->lost_handoffs += there < handoff.first;  // else another request brought the same beginning
  live.handoff = {};
}

void StepPlanner::add_prefill(RequestTable& requests, size_t seq_slots, StepPlan* step) {
  auto open_count =
      static_cast<size_t>(std::count_if(requests.all().begin(), requests.all().end(),
                                        [](const auto& item) { return item.second->sequence.target.open; }));
  bool is_full = false;  // a sequence waits for blocks, so no later one is opened
  auto waiting = requests.in_state(RequestState::kPrefill);
  if (options_.by_priority)
    std::stable_sort(waiting.begin(), waiting.end(), [](const LiveRequest* a, const LiveRequest* b) {
      return a->request.priority < b->request.priority;
    });
  for (LiveRequest* live : waiting) {
    if (std::find(plan_->gave_up.begin(), plan_->gave_up.end(), live) != plan_->gave_up.end()) continue;
    if (live->has_prefilled() || (live->handoff.prefill_to > 0 && live->handoff.to >= 0)) continue;
    const bool is_new = !live->sequence.target.open;
    if (is_new && (is_full || open_count >= seq_slots)) continue;
    auto found = is_new ? kv_.find(*live) : PrefixIndex::Match();
    if (live->awaits_blocks()) found = beginning_of_import(*live, found);
    if (is_new && waits_for_prompt(*live, found.length, requests)) continue;
    const bool scores = live->request.prompt_logprobs >= 0 && !live->recomputes();
    const int32_t room =
        std::min(scores ? std::min(options_.prefill_chunk, kScoredChunk) : options_.prefill_chunk,
                 options_.max_rows_per_step - plan_->rows);
    if (room <= 0 || plan_->bytes + entry_bytes(*live) > options_.max_bytes_per_step) continue;
    if (is_new && !open(*live, found, step)) {
      is_full = true;
      continue;
    }
    open_count += is_new;
    if (live->has_recomputed()) {
      live->become(RequestState::kReady);  // prefilled: its round is next
      continue;
    }
    if (live->awaits_blocks()) {
      add_import(*live, requests, step);
      if (live->awaits_blocks()) continue;
    }
    const int32_t input_count = std::min(live->prefill_end() - live->sequence.target.kv_length, room);
    if (input_count <= 0) continue;  // a group that only prefills found all of it
    if (find_room(*live, live->sequence.target.kv_length + input_count, requests, step))
      add(*live, input_count, plan_->sent_at, step);
  }
}

// Copies rows, so that another group can use them if this one fails.
template <class Row>
std::vector<Row> StepPlanner::rows_of_q(std::vector<Row>& rows) const {
  return options_.outlives_group() ? rows : std::move(rows);
}

void StepPlanner::add(LiveRequest& live, int32_t input_count, Clock::time_point now, StepPlan* step) {
  Sequence& sequence = live.sequence;
  plan_->bytes += entry_bytes(live);
  const bool reads = live.state == RequestState::kPrefill;
  const bool first = reads && !live.recomputes();
  const bool sampling = sequence.target.kv_length + input_count == sequence.committed();
  RoundInFlight& round = live.round;
  if (first) {
    round = RoundInFlight{};
    round.begun_at = round.decided_at = now;
    if (sampling) {
      round.number = sequence.begin_round();
      live.constrain();
    }
  }
  round.planned_at = now;
  const bool verifies = sampling && round.drafted() > 0;
  round.used |= sampling;
  step->entries.push_back({.sequence = live.id(),
                           .epoch = sequence.epoch(),
                           .round = round.number,
                           .base = Position(sequence.committed()),
                           .first_input = Position(sequence.target.kv_length),
                           .input_count = input_count,
                           .draft = verifies ? round.draft.ids : std::vector<TokenId>(),
                           .parents = verifies ? round.draft.parents : std::vector<int32_t>(),
                           .q_kind = verifies ? round.draft.q_kind : QKind::kNone,
                           .q = verifies ? rows_of_q(round.draft.q) : std::vector<QRow>(),
                           .hidden = verifies ? rows_of_q(round.draft.hidden) : std::vector<HiddenRow>(),
                           .worker = round.worker,
                           .prompt_logprobs = first ? live.request.prompt_logprobs : -1});
  plan_->rows += input_count + (verifies ? round.drafted() : 0);
  plan_->context += sequence.committed();
  plan_->prefills |= reads;
  if (sampling)
    for (const TokenMask& mask : round.masks.masks)  // if its draft was lost, only the first mask is left
      if (mask.row <= round.drafted()) step->entries.back().masks.push_back(mask);
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
