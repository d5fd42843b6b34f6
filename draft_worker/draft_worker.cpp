#include "draft_worker/draft_worker.h"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace outrider {

DraftWorker::DraftWorker(Drafter& drafter, Transport& transport, DraftWorkerOptions options)
    : drafter_(drafter), transport_(transport), options_(std::move(options)) {}

Status DraftWorker::run() {
  RETURN_IF_ERROR(join());
  while (!leaving_) {
    // With work at hand only what has already arrived is looked at: a Close or a newer Propose saves the
    // drafting.
    auto incoming = transport_.receive(proposes_.empty() ? Clock::now() + options_.heartbeat : Clock::now());
    if (incoming) {
      handle(incoming->message);
    } else if (!proposes_.empty()) {
      const Propose next = std::move(proposes_.front());
      proposes_.pop_front();
      answer(next);
    }
    beat();
  }
  return {};
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

void DraftWorker::handle(Message& message) {
  if (auto* propose = std::get_if<Propose>(&message)) {
    supersede(std::move(*propose));
  } else if (const auto* open = std::get_if<Open>(&message)) {
    std::erase_if(proposes_, [&](const Propose& old) { return old.sequence == open->sequence; });
    if (Status status = drafter_.open(*open); !status.ok())
      spdlog::warn("sequence {} is not drafted for: {}", open->sequence.value(), status.message());
  } else if (const auto* close = std::get_if<Close>(&message)) {
    std::erase_if(proposes_, [&](const Propose& old) { return old.sequence == close->sequence; });
    drafter_.close(close->sequence);
  } else if (const auto* welcome = std::get_if<Welcome>(&message); welcome && !welcome->accepted) {
    spdlog::error("the coordinator refused this drafter: {}", welcome->reason);
    leaving_ = true;
  } else if (std::holds_alternative<Shutdown>(message)) {
    leaving_ = true;
  }
}

// The newer Propose wins, but the committed ids that only the older one carries are kept.
void DraftWorker::supersede(Propose propose) {
  const auto older = std::find_if(proposes_.begin(), proposes_.end(),
                                  [&](const Propose& old) { return old.sequence == propose.sequence; });
  if (older != proposes_.end()) {
    if (older->base + static_cast<int32_t>(propose.committed.size()) == propose.base)
      propose.committed.insert(propose.committed.begin(), older->committed.begin(), older->committed.end());
    proposes_.erase(older);
  }
  proposes_.push_back(std::move(propose));
}

void DraftWorker::answer(const Propose& propose) {
  auto draft = drafter_.draft(propose);
  if (!draft.ok()) {
    spdlog::debug("sequence {}: {}", propose.sequence.value(), draft.status().message());
    send(drafter_.held(propose.sequence));
  } else if (propose.gamma > 0) {
    send(std::move(draft).value());
  }
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
