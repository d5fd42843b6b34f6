#include "launch/commands/joined_worker.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include "base/program/interrupt.h"
#include "draft_worker/draft_worker.h"
#include "start/draft_life.h"

namespace outrider {
namespace {

constexpr const char* kName = "draft worker";
constexpr std::chrono::seconds kAfterRefusal{10};  // of a session that stays

}  // namespace

JoinedWorker::JoinedWorker(const DraftWorkerSettings& settings, const Preparation& prepared,
                           const ZmqOptions& zmq, const LoadWorkerModels& load)
    : settings_(settings),
      messages_(kName, settings, settings.run.quiet),
      prepared_(prepared),
      zmq_(zmq),
      load_(load) {}

JoinedWorker::JoinedWorker(const DraftWorkerSettings& settings, const Preparation& prepared,
                           const ZmqOptions& zmq, SharedSession session)
    : settings_(settings),
      messages_(kName, settings, settings.run.quiet, fmt::format("{}", fmt::join(settings.connect, ","))),
      prepared_(prepared),
      zmq_(zmq),
      session_(session) {}

Status JoinedWorker::load() {
  if (is_shared()) return {};
  ASSIGN_OR_RETURN(models_, load_());
  return {};
}

bool JoinedWorker::must_leave() const {
  return noted_signal() != 0 || (is_shared() && session_.turns->has_failed());
}

// A supervisor would restart a worker of one coordinator. A restart of a shared one would disturb the others.
bool JoinedWorker::tries_again_after(const Status& status) const {
  return !is_final(status) || (is_shared() && settings_.stay);
}

void JoinedWorker::rest(std::chrono::milliseconds pause) const {
  constexpr std::chrono::milliseconds kLook{100};
  const auto until = Clock::now() + pause;
  while (!must_leave() && Clock::now() < until)
    std::this_thread::sleep_for(std::min<Clock::duration>(kLook, until - Clock::now()));
}

Status JoinedWorker::run() {
  auto alone_since = Clock::now();
  for (int attempt = 0; !must_leave(); ++attempt) {
    bool joined = false;
    if (unloaded_) RETURN_IF_ERROR(load());
    unloaded_ = false;
    const Status status = live(&joined);
    if (unloaded_) {
      alone_since = Clock::now();
      attempt = -1;
      continue;
    }
    if (status.ok() && must_leave()) {
      if (joined) messages_.tell(LogLevel::kInfo, "leave", fmt::format("signal {}", noted_signal()));
      return {};
    }
    if (status.ok() && (joined || !settings_.stay))
      messages_.tell(LogLevel::kInfo, "leave", describe_end(settings_));
    if ((status.ok() && !settings_.stay) || !tries_again_after(status)) return status;
    if (joined) {
      alone_since = Clock::now();
      attempt = 0;
    }
    endpoints_.turn();
    if (joined) told_.clear();
    if (!status.ok() && told_.insert(status.message()).second) {  // an unknown host, a closed port
      const auto text =
          fmt::format("{}; looking for it for {} s (--retry-for)", status.message(), settings_.retry_for_s);
      joined ? messages_.tell(LogLevel::kWarning, "loss", text) : messages_.tell(text);
    }
    if (Clock::now() - alone_since >= std::chrono::seconds(settings_.retry_for_s))
      return (status.ok() ? unavailable("there is no next job") : status)
          .in(fmt::format("--retry-for {}", settings_.retry_for_s));
    rest(is_final(status) ? kAfterRefusal : pause_before(attempt));
  }
  return {};
}

// One connection with one identity: connects, joins, serves.
Status JoinedWorker::live(bool* joined) {
  ASSIGN_OR_RETURN(const auto transport, make_zmq_client(endpoints_.current(), zmq_));
  const DraftLife life{
      .asked_to_leave = [this] { return must_leave(); },
      .on_joined =
          [&](const Welcome& welcome) {
            *joined = true;
            messages_.tell(LogLevel::kInfo, "join",
                           fmt::format("model '{}' drafts for target '{}' at {}", prepared_.draft_info.name,
                                       welcome.target.name, endpoints_.current()));
          },
      .complain = [&](const std::string& text) { messages_.tell(text); },
      // Workers started by mpirun already send unencrypted traffic between hosts; a worker that joined with a
      // key does not.
      .crosses_hosts = settings_.parent != 0,
      .turns = session_.turns,
      .session = session_.index,
      .on_end =
          [&](const DraftWorker& worker) {
            drafts_ += worker.drafts();
            drafted_tokens_ += worker.drafted_tokens();
          }};
  const WorkerModels& models = is_shared() ? *session_.models : models_;
  ASSIGN_OR_RETURN(const auto pause, live_as_drafter(settings_.run, prepared_,
                                                     {.draft = models.draft.model.get(),
                                                      .pass_times = models.draft.pass_times,
                                                      .head = models.head.get(),
                                                      .hidden_state_head = models.hidden_state_head.get()},
                                                     *transport, life));
  if (!pause) return {};
  messages_.tell(LogLevel::kInfo, "leave",
                 fmt::format("unloaded for {} s: its drafts have not paid for long",
                             static_cast<double>(pause->count()) / 1000));
  models_ = {};
  unloaded_ = stay_unloaded(
      *transport, *pause, {.info = {}, .generation = life.generation, .asked_to_leave = life.asked_to_leave});
  return {};
}

}  // namespace outrider
