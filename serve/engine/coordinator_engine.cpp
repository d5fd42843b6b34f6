#include "serve/engine/coordinator_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace outrider {
namespace {

// The pause between copies of all sums, which take some microseconds.
constexpr std::chrono::milliseconds kBetweenCounts{100};
constexpr int kMaxPatience = 5;  // in stall limits, even after a stop of an hour

std::string_view why_not_ready(EngineState state) {
  switch (state) {
    case EngineState::kLoading:
      return "the models are being loaded; try again later";
    case EngineState::kDraining:
      return "the server is shutting down";
    case EngineState::kNoTarget:
      return "no target group is here";
    default:
      return "the target group failed";
  }
}

}  // namespace

// ---- any thread -----------------------------------------------------------------------------------------

Result<std::vector<Ticket>> CoordinatorEngine::submit_all(std::vector<Submission> submissions,
                                                          const std::string& client) {
  const auto count = static_cast<int64_t>(submissions.size());
  int64_t tokens = 0;
  for (const Submission& s : submissions) tokens += static_cast<int64_t>(s.request.prompt.size());
  const std::lock_guard lock(mutex_);
  if (const EngineStatus now = status_now(); now.state != EngineState::kReady)
    return unavailable(now.reason.empty() ? std::string(why_not_ready(now.state)) : now.reason);
  if (Status room = check_room({count, tokens}); !room.ok()) {
    if (room.code() == StatusCode::kResourceExhausted) numbers_.refused += count;
    return room;
  }
  const auto asked_at = Clock::now();
  if (open_ == 0) moved_at_ = finished_at_ = asked_at;  // the engine was idle before
  open_ += count;
  handed_tokens_ += tokens;
  std::vector<Ticket> tickets;
  Group group{.client = client, .waiting = {}};
  // All submissions of one call have the same priority.
  const int32_t priority =
      limits_.by_priority && !submissions.empty() ? submissions.front().request.priority : 0;
  for (Submission& s : submissions) {
    tickets.push_back(Ticket{++last_ticket_});
    s.request.asked_at = asked_at;
    group.waiting.push_back({tickets.back(), std::move(s.request), std::move(s.sink)});
  }
  if (!group.waiting.empty()) waiting_[priority].add(client, std::move(group));
  wake_();
  return tickets;
}

Status CoordinatorEngine::check_room(const Load& more) const {
  const Load now{open_, handed_tokens_ + queued_tokens_};
  if (has_room({now.requests + more.requests, now.prompt_tokens + more.prompt_tokens})) return {};
  if (!has_room(more))
    return invalid_argument(fmt::format(
        "{} texts of {} prompt tokens together are more than an idle server takes, whose limits are {} texts "
        "(--max-num-seqs {} and --max-queued-requests {}) and, where some of them wait, {} prompt tokens "
        "(--max-queued-tokens); ask for fewer at once, or shorten the prompt",
        more.requests, more.prompt_tokens, limits_.max_num_seqs + limits_.max_queued_requests,
        limits_.max_num_seqs, limits_.max_queued_requests, limits_.max_queued_tokens));
  return resource_exhausted(fmt::format(
      "{} requests with {} prompt tokens wait already, and this asks for {} more with {}; try again "
      "later, or raise --max-queued-requests or --max-queued-tokens",
      std::max<int64_t>(now.requests - limits_.max_num_seqs, 0), now.prompt_tokens, more.requests,
      more.prompt_tokens));
}

// Prompt tokens count only while requests wait.
bool CoordinatorEngine::has_room(const Load& all) const {
  const int64_t waiting = all.requests - limits_.max_num_seqs;
  return waiting <= 0 ||
         (waiting <= limits_.max_queued_requests && all.prompt_tokens <= limits_.max_queued_tokens);
}

void CoordinatorEngine::cancel(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  Handover* waits = nullptr;
  const auto look = [&](Group& group) {
    const auto at = std::find_if(group.waiting.begin(), group.waiting.end(),
                                 [&](const Handover& h) { return h.ticket == ticket; });
    if (at != group.waiting.end()) waits = &*at;
    return waits != nullptr;
  };
  if (std::none_of(waiting_.begin(), waiting_.end(), [&](auto& item) { return item.second.find(look); }))
    cancelled_.push_back(ticket);
  else if (waits->sink)
    gone_.push_back(std::move(waits->sink));
  if (wake_) wake_();
}

EngineStatus CoordinatorEngine::status() const {
  const std::lock_guard lock(mutex_);
  return status_now();
}

EngineStatus CoordinatorEngine::status_now() const {
  const bool serves = state_ == EngineState::kReady || state_ == EngineState::kDraining;
  const auto still = Clock::now() - moved_at_;
  const auto patience =
      std::clamp<Clock::duration>(2 * longest_turn_, limits_.stall_limit, kMaxPatience * limits_.stall_limit);
  if (!serves) return {state_, reason_};
  if (open_ == 0 || still <= patience) return {state_, ""};
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(still).count();
  return {EngineState::kFailed,
          fmt::format("the engine holds {} requests and has not moved for {} s; see what its threads do, or "
                      "start it again",
                      open_, seconds)};
}

std::chrono::seconds CoordinatorEngine::retry_after() const {
  constexpr double kLeast = 1, kMost = 600;
  const std::lock_guard lock(mutex_);
  const auto excess = static_cast<double>(open_ - limits_.max_num_seqs - limits_.max_queued_requests + 1);
  const double seconds = std::ceil(finish_seconds_ * std::max(excess, 1.0));
  return std::chrono::seconds(static_cast<int64_t>(std::clamp(seconds, kLeast, kMost)));
}

EngineNumbers CoordinatorEngine::numbers() const {
  const std::lock_guard lock(mutex_);
  EngineNumbers numbers = numbers_;
  numbers.waiting = open_ - numbers.running;
  // The coordinator never received these requests.
  numbers.totals.submitted += gone_count_;
  numbers.totals.finished[static_cast<size_t>(FinishReason::kCancelled)] += gone_count_;
  return numbers;
}

// ---- the engine's thread --------------------------------------------------------------------------------

CoordinatorCallbacks CoordinatorEngine::callbacks() {
  return {.on_emit = [this](const Emit& emit) { requests_.at(emit.request).sink->emitted(emit); },
          .on_finish = [this](const Finish& finish) { on_finish(finish); },
          .on_round = [this](const RoundDone& round) { on_round(round); }};
}

Status CoordinatorEngine::serve(Coordinator& coordinator, const std::function<bool()>& asked_to_drain,
                                std::chrono::milliseconds drain_limit) {
  begin(coordinator);
  const Status& target = coordinator.protocol().target_status();
  std::optional<Clock::time_point> drained_by;
  while (target.ok() || limits_.outlives_targets) {
    if (!drained_by) follow_target(target);
    if (!drained_by && asked_to_drain()) {
      become(EngineState::kDraining);
      drained_by = Clock::now() + drain_limit;
      coordinator.probe_target();  // after the death of a rank mpirun asks all ranks to end
    }
    take_over();
    if (drained_by && Clock::now() >= *drained_by) cancel_all();
    if (drained_by && is_idle()) break;
    coordinator.poll(std::min(Clock::now() + limits_.look_up, drained_by.value_or(Clock::time_point::max())));
    note_progress();
  }
  if (!target.ok()) become(EngineState::kFailed, target.message());
  take_over();  // refuses requests that arrived meanwhile
  note_progress();
  const std::lock_guard lock(mutex_);
  wake_ = nullptr;
  coordinator_ = nullptr;
  return limits_.outlives_targets ? Status() : target;
}

void CoordinatorEngine::begin(Coordinator& coordinator) {
  coordinator_ = &coordinator;
  note_progress();
  const std::lock_guard lock(mutex_);
  wake_ = coordinator.waker();
  state_ = EngineState::kReady;
}

// Updates the state when target groups come and go.
void CoordinatorEngine::follow_target(const Status& target) {
  if (!limits_.outlives_targets) return;
  const bool had_failed = [this] {
    const std::lock_guard lock(mutex_);
    return state_ == EngineState::kNoTarget;
  }();
  if (target.ok() == !had_failed) return;
  if (target.ok())
    become(EngineState::kReady);
  else
    become(EngineState::kNoTarget, target.message());
}

void CoordinatorEngine::become(EngineState state, std::string reason) {
  const std::lock_guard lock(mutex_);
  state_ = state;
  reason_ = std::move(reason);
}

void CoordinatorEngine::take_over() {
  tell_gone();
  std::vector<Ticket> cancelled;
  {
    const std::lock_guard lock(mutex_);
    cancelled.swap(cancelled_);
  }
  for (const Ticket ticket : cancelled) cancel_now(ticket);
  bool any = !cancelled.empty();
  for (; is_place_near() || is_next_overtaken(); any = true) {
    auto next = next_waiting();
    if (!next) break;
    start(*next);
  }
  if (any) note_progress();
}

// The coordinator holds the requests it decodes and some more, so that slots do not stay empty for a pass.
// The remaining requests wait here, where clients take turns.
bool CoordinatorEngine::is_place_near() const {
  const auto places = static_cast<size_t>(limits_.max_num_seqs);
  return coordinator_->protocol().open_requests() < places + std::max<size_t>(places / 4, 1);
}

// True if a more urgent request waits here than the coordinator's next one; it should get the next slot
// instead.
bool CoordinatorEngine::is_next_overtaken() const {
  const Request* const next = limits_.by_priority ? coordinator_->protocol().next_queued() : nullptr;
  const std::lock_guard lock(mutex_);
  return next && !waiting_.empty() && waiting_.begin()->first < next->priority;
}

std::optional<CoordinatorEngine::Handover> CoordinatorEngine::next_waiting() {
  const std::lock_guard lock(mutex_);
  while (!waiting_.empty()) {
    const auto first_of_all = waiting_.begin();
    const int32_t priority = first_of_all->first;
    Group group = first_of_all->second.take();
    if (first_of_all->second.empty()) waiting_.erase(first_of_all);
    Handover first = std::move(group.waiting.front());
    group.waiting.pop_front();
    const std::string client = group.client;
    if (!group.waiting.empty()) waiting_[priority].add(client, std::move(group));
    handed_tokens_ -= static_cast<int64_t>(first.request.prompt.size());
    if (first.sink) return first;
  }
  return std::nullopt;
}

// Finishes requests that were cancelled before they began, at no cost for the target.
void CoordinatorEngine::tell_gone() {
  std::vector<std::shared_ptr<RequestSink>> gone;
  {
    const std::lock_guard lock(mutex_);
    gone.swap(gone_);
    gone_count_ += static_cast<int64_t>(gone.size());
  }
  for (const auto& sink : gone) {
    note_progress(1);
    sink->finished({.reason = FinishReason::kCancelled, .error = {}, .metrics = {}});
  }
}

bool CoordinatorEngine::is_idle() const {
  const std::lock_guard lock(mutex_);
  return open_ == 0;
}

void CoordinatorEngine::start(Handover& handover) {
  // Ids are given in order, and a refused request finishes before submit() returns.
  const SequenceId expected(++started_);
  requests_.emplace(expected, OpenRequest{handover.ticket, std::move(handover.sink)});
  const SequenceId id = coordinator_->submit(std::move(handover.request));
  CHECK(id == expected, "request {} got id {}", started_, id.value());
}

void CoordinatorEngine::cancel_now(Ticket ticket) {
  const auto at = std::find_if(requests_.begin(), requests_.end(),
                               [&](const auto& item) { return item.second.ticket == ticket; });
  if (at != requests_.end()) coordinator_->cancel(at->first);
}

void CoordinatorEngine::cancel_all() {
  std::vector<SequenceId> ids;
  for (const auto& [id, request] : requests_) ids.push_back(id);
  for (const SequenceId id : ids) coordinator_->cancel(id);
  while (auto waiting = next_waiting()) {
    const std::lock_guard lock(mutex_);
    gone_.push_back(std::move(waiting->sink));
  }
  tell_gone();
}

void CoordinatorEngine::on_finish(const Finish& finish) {
  const auto request = requests_.extract(finish.request);
  note_progress(1);  // before the sink is called: its client may look at the numbers at once
  request.mapped().sink->finished(finish);
}

// A request may have finished in this round.
void CoordinatorEngine::on_round(const RoundDone& round) {
  if (const auto at = requests_.find(round.request); at != requests_.end()) at->second.sink->round(round);
}

void CoordinatorEngine::note_progress(int64_t finished) {
  const Protocol& protocol = coordinator_->protocol();
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  if (open_ > 0) longest_turn_ = std::max(longest_turn_, now - moved_at_);
  moved_at_ = now;
  open_ -= finished;
  if (finished > 0) {
    constexpr double kNewest = 0.1;
    const double seconds = std::chrono::duration<double>(now - finished_at_).count();
    finish_seconds_ += (finish_seconds_ == 0 ? 1 : kNewest) * (seconds - finish_seconds_);
    finished_at_ = now;
  }
  queued_tokens_ = protocol.queued_tokens();
  numbers_.running = static_cast<int64_t>(protocol.running_requests());
  numbers_.draft_workers = static_cast<int64_t>(protocol.worker_count());
  numbers_.draft_workers_wanted = workers_wanted_.follow(open_ > 0 ? wanted_by_last_batch_ : 0, now);
  if (open_ > 0 && now - counted_at_ < kBetweenCounts) return;
  counted_at_ = now;
  numbers_.totals = protocol.totals();
  numbers_.wire = coordinator_->transport_stats();
  numbers_.overview = coordinator_->overview();
  numbers_.pace = pace_.look(now, numbers_.totals, numbers_.overview);
  if (numbers_.overview.plain_round_seconds > 0) wanted_by_last_batch_ = numbers_.overview.workers_wanted;
}

}  // namespace outrider
