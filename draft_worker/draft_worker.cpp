#include "draft_worker/draft_worker.h"

#include <algorithm>
#include <utility>

#include "base/absence.h"
#include "base/log_line.h"

namespace outrider {
namespace {

constexpr std::chrono::milliseconds kGoodbye{500};  // time for the coordinator to read the goodbye
constexpr std::chrono::milliseconds kLook{100};     // between two polls of asked_to_leave

bool asked_to_leave(const DraftWorkerOptions& options) {
  return options.asked_to_leave && options.asked_to_leave();
}

Status refused(const Welcome& welcome) {
  return invalid_argument("the coordinator refused this drafter: " + welcome.reason);
}

Status say_hello(Transport& transport, const DraftWorkerOptions& options) {
  return transport.send(kCoordinatorPeer, Hello{.role = Role::kDraft,
                                                .generation = options.generation,
                                                .model = options.info,
                                                .vocabulary_beginnings = options.vocabulary_beginnings,
                                                .max_sequences = options.max_sequences,
                                                .head_fingerprint = options.head_fingerprint,
                                                .hidden_state_head = options.hidden_state_head,
                                                .hidden_state_width = options.hidden_state_width,
                                                .successors = options.successors,
                                                .finds_text = options.finds_text,
                                                .drafts_blocks = options.drafts_blocks,
                                                .max_prefill = options.max_prefill,
                                                .pass_times = options.pass_times,
                                                .process = options.process});
}

// The result of join_coordinator(), if this message decides it.
std::optional<Result<std::optional<Welcome>>> answer_in(Message& message) {
  if (std::holds_alternative<Shutdown>(message)) return std::optional<Welcome>();
  auto* welcome = std::get_if<Welcome>(&message);
  if (!welcome) return std::nullopt;
  if (!welcome->accepted) return refused(*welcome);
  if (Status status = check(*welcome); !status.ok()) return status;
  return std::optional(std::move(*welcome));
}

Status not_answered(const DraftWorkerOptions& options) {
  return deadline_exceeded(
      fmt::format("the coordinator did not answer this drafter within {} ms", options.join_timeout.count()));
}

}  // namespace

DraftWorker::DraftWorker(Drafter& drafter, Transport& transport, DraftWorkerOptions options)
    : drafter_(drafter),
      transport_(transport),
      options_(std::move(options)),
      limits_{.vocab_size = options_.vocab_size,
              .max_context = std::max(options_.info.max_context, drafter.max_context()),
              .hidden_state_width = options_.hidden_state_width} {}

Result<std::optional<Welcome>> join_coordinator(Transport& transport, const DraftWorkerOptions& options) {
  RETURN_IF_ERROR(say_hello(transport, options));
  MovingDeadline deadline(Clock::now() + options.join_timeout);
  auto next_beat = Clock::now() + options.heartbeat;
  Status gone;
  while (!deadline.is_over()) {  // other messages are ignored
    if (asked_to_leave(options)) return std::optional<Welcome>();
    // The coordinator may have to wait for its target, and takes a silent worker for dead.
    if (Clock::now() >= next_beat) {
      next_beat = Clock::now() + options.heartbeat;
      const Status beat = transport.send(kCoordinatorPeer, Heartbeat{options.generation});
      gone = beat.code() == StatusCode::kUnavailable ? beat : Status();
    }
    auto incoming = transport.receive(std::min(deadline.next_look(), Clock::now() + kLook));
    if (incoming) {
      if (auto answer = answer_in(incoming->message)) return std::move(*answer);
    } else if (!gone.ok()) {
      return gone;
    }
  }
  return not_answered(options);
}

bool stay_unloaded(Transport& transport, std::chrono::milliseconds pause, const DraftWorkerOptions& options) {
  const auto until = Clock::now() + pause;
  while (Clock::now() < until) {
    if (asked_to_leave(options)) return false;
    const auto incoming = transport.receive(std::min(until, Clock::now() + options.heartbeat));
    if (incoming && std::holds_alternative<Shutdown>(incoming->message)) return false;
    if (!incoming &&
        transport.send(kCoordinatorPeer, Heartbeat{options.generation}).code() == StatusCode::kUnavailable)
      return false;
  }
  return true;
}

Status DraftWorker::run() {
  RETURN_IF_ERROR(join());
  return serve();
}

Status DraftWorker::serve() {
  bool idle = true;
  while (stays()) {
    if (asked_to_leave(options_)) {
      say_goodbye();
      break;
    }
    // Between two pieces of work only arrived messages are handled: a Propose interrupts preparation, a Close
    // or a newer Propose saves the drafting.
    auto incoming = transport_.receive(idle ? now() + options_.heartbeat : now());
    if (incoming) {
      handle(incoming->message);
      idle = false;
    } else {
      idle = !work();
    }
    beat();
  }
  return end_;
}

DraftWorker::Heard DraftWorker::listen() {
  constexpr int kAtOnce = 8;  // so that a flood at one worker does not hold up others
  if (asked_to_leave(options_)) return Heard::kTheEnd;
  beat();
  // Nothing is sent after the last look: a send may clear what Transport::ready_fd() shows.
  Heard heard = Heard::kNothing;
  for (int i = 0; i < kAtOnce && stays(); ++i) {
    const auto incoming = transport_.receive(now());
    if (!incoming) break;
    handle(incoming->message);
    heard = Heard::kMessages;
  }
  return stays() ? heard : Heard::kTheEnd;
}

Status DraftWorker::finish() {
  if (stays()) say_goodbye();
  return end_;
}

bool DraftWorker::turn() {
  bool more = has_joined();
  while (more && stays()) {
    const auto incoming = transport_.receive(now());
    if (incoming) handle(incoming->message);
    more = incoming || work();
  }
  if (stays()) beat();
  return stays();
}

Status DraftWorker::join() {
  take(join_coordinator(transport_, options_));
  return end_;
}

Status DraftWorker::begin_to_join() {
  joining_until_ = now() + options_.join_timeout;
  last_sent_ = now();
  return say_hello(transport_, options_);
}

void DraftWorker::take(Result<std::optional<Welcome>> answer) {
  joining_until_.reset();
  end_ = answer.status();
  if (!end_.ok()) return;
  leaving_ = !answer->has_value();
  if (*answer) limits_.vocab_size = (*answer)->target.vocab_size;
  last_sent_ = now();
}

// False: no answer yet, or the worker ends.
bool DraftWorker::has_joined() {
  while (joining_until_) {
    auto incoming = transport_.receive(now());
    if (!incoming) {
      if (now() < *joining_until_) return false;
      take(not_answered(options_));
    } else if (auto answer = answer_in(incoming->message)) {
      take(std::move(*answer));
    }
  }
  return stays();
}

void DraftWorker::handle(const Message& message) {
  if (Status status = check_from_job(message, limits_); !status.ok()) return leave(std::move(status));
  if (const auto* propose = std::get_if<Propose>(&message)) {
    if (const auto at = heard_of_.find(propose->sequence); at != heard_of_.end()) at->second = now();
    if (Status status = drafter_.begin(*propose); !status.ok()) {
      log_line(LogLevel::kDebug, "sequence {}: {}", propose->sequence.value(), status.message());
      send(drafter_.held(propose->sequence));
    }
  } else if (const auto* rows = std::get_if<HiddenStateRows>(&message)) {
    if (const Status status = drafter_.take(*rows); !status.ok()) {
      log_line(LogLevel::kDebug, "sequence {}: {}", rows->sequence.value(), status.message());
      send(drafter_.held(rows->sequence));
    }
  } else if (const auto* open = std::get_if<Open>(&message)) {
    const Status status = drafter_.open(*open);
    if (status.ok()) {
      heard_of_[open->sequence] = now();
    } else {  // the coordinator may ask repeatedly
      log_line(std::exchange(told_full_, true) ? LogLevel::kDebug : LogLevel::kWarning,
               "sequence {} is not drafted for: {}", open->sequence.value(), status.message());
      if (status.code() == StatusCode::kResourceExhausted) ask_about_oldest();
    }
  } else if (const auto* close = std::get_if<Close>(&message)) {
    drafter_.close(close->sequence);
    heard_of_.erase(close->sequence);
  } else if (const auto* welcome = std::get_if<Welcome>(&message); welcome && !welcome->accepted) {
    end_ = refused(*welcome);
  } else if (const auto* unload = std::get_if<Unload>(&message)) {
    unload_pause_ = std::chrono::milliseconds(unload->pause_ms);
    leaving_ = true;
  } else if (std::holds_alternative<Shutdown>(message)) {
    leaving_ = true;
  }
}

// A lost Close would leave its sequence open for ever. So this asks about the sequence that is silent
// longest; the coordinator closes it again if it has ended.
void DraftWorker::ask_about_oldest() {
  const auto oldest = std::min_element(heard_of_.begin(), heard_of_.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (oldest == heard_of_.end()) return;
  oldest->second = now();
  send(drafter_.held(oldest->first));
}

bool DraftWorker::work() {
  answers_.clear();
  const bool worked = drafter_.work(answers_);
  for (DraftAnswer& answer : answers_) {
    const SequenceId sequence = answer.draft.sequence;
    if (!answer.status.ok()) {
      log_line(LogLevel::kDebug, "sequence {}: {}", sequence.value(), answer.status.message());
      send(drafter_.held(sequence));
    } else if (answer.wanted) {
      send_draft(std::move(answer.draft));
    } else {
      drafter_.reuse(std::move(answer.draft));
    }
  }
  return worked;
}

// Sends slices before the draft itself, so that ranks wait little for the slices that a plan announces.
void DraftWorker::send_draft(Draft draft) {
  ++drafts_;
  drafted_tokens_ += static_cast<int64_t>(draft.ids.size());
  std::vector<QRow> scattered;
  if (draft.q_kind == QKind::kSlices && !draft.ids.empty() && scatter(draft)) scattered.swap(draft.q);
  Message message(std::move(draft));
  send(message);
  auto& sent = std::get<Draft>(message);
  if (!scattered.empty()) sent.q.swap(scattered);
  drafter_.reuse(std::move(sent));
}

// Sends the draft's slices. False: its rows must travel in the draft.
bool DraftWorker::scatter(Draft& draft) {
  const int64_t before = options_.slices ? options_.slices->bytes() : 0;
  const int64_t linked_before = options_.slices ? options_.slices->link_bytes() : 0;
  if (!options_.slices || !options_.slices->send(draft)) {
    draft.q_kind = QKind::kDense;
    return false;
  }
  draft.slice_bytes = options_.slices->bytes() - before;
  draft.link_bytes = options_.slices->link_bytes() - linked_before;
  return true;
}

// A failed send needs no retry: a live coordinator asks again. If the coordinator is gone, looks for a
// Shutdown that is still unread before it reports an error.
void DraftWorker::send(const Message& message) {
  last_sent_ = now();
  Status status = transport_.send(kCoordinatorPeer, message);
  if (!status.ok()) log_line(LogLevel::kDebug, "not sent: {}", status.message());
  if (status.code() != StatusCode::kUnavailable || !stays()) return;
  leaving_ = shutdown_arrived();
  if (!leaving_) end_ = std::move(status);
}

// A coordinator that violates the protocol once is not trusted again: reports why and leaves.
void DraftWorker::leave(Status why) {
  send(Failure{"this worker leaves: " + why.message()});
  if (stays()) end_ = why.in("the job broke the protocol");
}

bool DraftWorker::shutdown_arrived() {
  while (const auto incoming = transport_.receive(now()))
    if (std::holds_alternative<Shutdown>(incoming->message)) return true;
  return false;
}

// A connection that closes before its last message was read looks like a crash.
void DraftWorker::say_goodbye() {
  send(Shutdown{});
  const auto deadline = now() + kGoodbye;
  while (now() < deadline) {
    const auto incoming = transport_.receive(deadline);
    if (!incoming || std::holds_alternative<Shutdown>(incoming->message)) return;
  }
}

void DraftWorker::beat() {
  if (now() - last_sent_ >= options_.heartbeat) send(Heartbeat{options_.generation});
}

}  // namespace outrider
