#include "draft_worker/draft_worker.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace outrider {

DraftWorker::DraftWorker(Drafter& drafter, Transport& transport, DraftWorkerOptions options)
    : drafter_(drafter), transport_(transport), options_(std::move(options)) {}

Status DraftWorker::run() {
  RETURN_IF_ERROR(join());
  bool idle = true;
  while (!leaving_) {
    // Between two pieces of work only what has already arrived is looked at: a Propose interrupts
    // preparation, a Close or a newer Propose saves the drafting.
    auto incoming = transport_.receive(idle ? Clock::now() + options_.heartbeat : Clock::now());
    if (incoming) {
      handle(incoming->message);
      idle = false;
    } else {
      idle = !work();
    }
    beat();
  }
  return {};
}

bool DraftWorker::turn() {
  bool more = true;
  while (more && !leaving_) {
    const auto incoming = transport_.receive(Clock::now());
    if (incoming) handle(incoming->message);
    more = incoming || work();
  }
  beat();
  return !leaving_;
}

Status DraftWorker::join() {
  send(Hello{.role = Role::kDraft,
             .generation = options_.generation,
             .model = options_.info,
             .max_sequences = options_.max_sequences});
  const auto deadline = Clock::now() + options_.join_timeout;
  while (auto incoming = transport_.receive(deadline)) {
    if (std::holds_alternative<Shutdown>(incoming->message)) {
      leaving_ = true;
      return {};
    }
    if (const auto* welcome = std::get_if<Welcome>(&incoming->message))
      return welcome->accepted ? Status()
                               : invalid_argument("the coordinator refused this drafter: " + welcome->reason);
  }
  return deadline_exceeded(
      fmt::format("the coordinator did not answer this drafter within {} ms", options_.join_timeout.count()));
}

void DraftWorker::handle(const Message& message) {
  if (const auto* propose = std::get_if<Propose>(&message)) {
    if (Status status = drafter_.begin(*propose); !status.ok()) {
      spdlog::debug("sequence {}: {}", propose->sequence.value(), status.message());
      send(drafter_.held(propose->sequence));
    }
  } else if (const auto* open = std::get_if<Open>(&message)) {
    const Status status = drafter_.open(*open);
    if (!status.ok())  // the coordinator may ask again and again
      spdlog::log(std::exchange(told_full_, true) ? spdlog::level::debug : spdlog::level::warn,
                  "sequence {} is not drafted for: {}", open->sequence.value(), status.message());
  } else if (const auto* close = std::get_if<Close>(&message)) {
    drafter_.close(close->sequence);
  } else if (const auto* welcome = std::get_if<Welcome>(&message); welcome && !welcome->accepted) {
    spdlog::error("the coordinator refused this drafter: {}", welcome->reason);
    leaving_ = true;
  } else if (std::holds_alternative<Shutdown>(message)) {
    leaving_ = true;
  }
}

bool DraftWorker::work() {
  answers_.clear();
  const bool worked = drafter_.work(answers_);
  for (DraftAnswer& answer : answers_) {
    const SequenceId sequence = answer.draft.sequence;
    if (!answer.status.ok()) {
      spdlog::debug("sequence {}: {}", sequence.value(), answer.status.message());
      send(drafter_.held(sequence));
    } else if (answer.wanted) {
      send(std::move(answer.draft));
    }
  }
  return worked;
}

// A coordinator that does not take messages looks dead to us as we do to it; it will ask again when it is
// back.
void DraftWorker::send(const Message& message) {
  last_sent_ = Clock::now();
  if (Status status = transport_.send(kCoordinatorPeer, message); !status.ok())
    spdlog::debug("not sent: {}", status.message());
}

void DraftWorker::beat() {
  if (Clock::now() - last_sent_ >= options_.heartbeat) send(Heartbeat{options_.generation});
}

}  // namespace outrider
