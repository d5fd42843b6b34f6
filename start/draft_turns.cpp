#include "start/draft_turns.h"

#include <poll.h>

#include <algorithm>

namespace outrider {
namespace {

// Workers look for signals and send heartbeats this often at least.
constexpr std::chrono::milliseconds kLook{100};

}  // namespace

DraftTurns::DraftTurns(const std::vector<double>& weights, KvCache* kv,
                       std::function<Clock::time_point()> now)
    : kv_(kv),
      clock_(std::move(now)),
      served_(weights.size()),
      present_(weights.size()),
      order_(weights),
      looked_at_(weights.size()) {}

void DraftTurns::run() {
  try {
    while (take_turns()) continue;
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
    throw;
  }
}

bool DraftTurns::has_failed() const {
  const std::lock_guard lock(mutex_);
  return failure_ != nullptr;
}

void DraftTurns::compute(size_t session, const std::function<void()>& body) {
  std::unique_lock lock(mutex_);
  Body mine{.session = session, .run = &body};
  if (!failure_) {
    bodies_.push_back(&mine);
    bell_.ring();
    changed_.wait(lock, [&] { return mine.done || failure_; });
  }
  if (mine.error) std::rethrow_exception(mine.error);
  if (mine.done) return;
  std::erase(bodies_, &mine);
  enter(session);
  body();  // under the lock: the sessions' threads are the only ones left
}

void DraftTurns::serve(size_t session, DraftWorker& worker, const Transport& transport) {
  std::unique_lock lock(mutex_);
  served_[session] = {.worker = &worker, .fd = transport.ready_fd()};
  bell_.ring();
  changed_.wait(lock, [&] { return !served_[session].worker || failure_; });
  served_[session] = {};
  if (failure_) std::rethrow_exception(failure_);
}

void DraftTurns::leave() {
  const std::lock_guard lock(mutex_);
  --present_;
  bell_.ring();
}

// False: every session has left.
bool DraftTurns::take_turns() {
  run_bodies();
  {
    const std::lock_guard lock(mutex_);
    if (present_ == 0) return false;
    looked_at_ = served_;
  }
  const bool heard = listen();
  if (const auto session = order_.next())
    work(*session);
  else if (!heard)
    sleep();
  return true;
}

void DraftTurns::run_bodies() {
  std::unique_lock lock(mutex_);
  while (!bodies_.empty()) {
    Body& body = *bodies_.front();
    lock.unlock();
    enter(body.session);
    try {
      (*body.run)();
    } catch (...) {
      body.error = std::current_exception();
    }
    lock.lock();
    bodies_.pop_front();
    body.done = true;
    changed_.notify_all();
  }
}

bool DraftTurns::listen() {
  bool heard_any = false;
  for (size_t session = 0; session < looked_at_.size(); ++session) {
    if (!looked_at_[session].worker) continue;
    enter(session);
    const auto begun = now();
    const auto heard = looked_at_[session].worker->listen();
    if (heard == DraftWorker::Heard::kTheEnd) end(session);
    if (heard != DraftWorker::Heard::kMessages) continue;
    order_.charge(session, now() - begun);
    order_.wait(session);  // there may be work
    heard_any = true;
  }
  return heard_any;
}

void DraftTurns::work(size_t session) {
  enter(session);
  const auto begun = now();
  const bool worked = looked_at_[session].worker->work();
  order_.charge(session, now() - begun);
  if (!worked) order_.leave(session);
}

void DraftTurns::end(size_t session) {
  order_.leave(session);
  const std::lock_guard lock(mutex_);
  looked_at_[session] = served_[session] = {};
  changed_.notify_all();
}

void DraftTurns::sleep() {
  std::vector<pollfd> fds{{bell_.fd(), POLLIN, 0}};
  for (const Served& served : looked_at_)
    if (served.worker) fds.push_back({served.fd, POLLIN, 0});
  (void)poll(fds.data(), fds.size(), static_cast<int>(kLook.count()));
  (void)bell_.heard();
}

}  // namespace outrider
