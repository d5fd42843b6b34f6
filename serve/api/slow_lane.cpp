#include "serve/api/slow_lane.h"

#include <fmt/format.h>

#include "base/log.h"
#include "base/printable.h"
#include "base/threads.h"

namespace outrider {

SlowLane::SlowLane(std::string thread_role)
    : role_(std::move(thread_role)), thread_(start_thread([this] { run(); })) {}

SlowLane::~SlowLane() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SlowLane::add(const std::string& client, std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.add(client, std::move(task));
  }
  changed_.notify_all();
}

void SlowLane::run() {
  set_thread_role(role_);
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || !tasks_.empty(); });
    if (stopped_) return;
    const std::function<void()> task = tasks_.take();
    lock.unlock();
    try {  // like handlers: one request's exception must not end the server
      task();
    } catch (const std::exception& error) {
      tell_error(
          fmt::format("a request is answered 500, for what reads or writes it threw: {}", error.what()));
    }
  }
}

}  // namespace outrider
