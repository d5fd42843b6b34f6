// State shared by the two ends of one answer: its writer, on any thread, and the connection, on the thread of
// the sockets.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace outrider {

// Passes tasks to the thread of the sockets while it exists; answers may outlive it. Thread-safe.
class SocketThread {
 public:
  explicit SocketThread(boost::asio::io_context& context) : context_(&context) {}

  void post(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    if (context_) boost::asio::post(*context_, std::move(task));
  }
  void after(std::chrono::milliseconds delay, std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    if (!context_) return;
    const auto timer = std::make_shared<boost::asio::steady_timer>(*context_, delay);
    timer->async_wait([timer, run = std::move(task)](const boost::system::error_code& error) {
      if (!error) run();
    });
  }
  void close() {
    const std::lock_guard lock(mutex_);
    context_ = nullptr;
  }

 private:
  std::mutex mutex_;
  boost::asio::io_context* context_;  // guarded; null after its end
};

// Whether the client still waits for this answer. Thread-safe.
class HttpExchange {
 public:
  void on_gone(std::function<void()> gone) {
    {
      const std::lock_guard lock(mutex_);
      if (state_ == State::kOpen) gone_ = std::move(gone);
      if (state_ != State::kGone) return;
    }
    gone();
  }
  // Only the first call counts.
  void complete() { end(State::kComplete); }
  void leave() {
    if (const auto gone = end(State::kGone)) gone();
  }
  bool is_gone() const {
    const std::lock_guard lock(mutex_);
    return state_ == State::kGone;
  }

 private:
  enum class State { kOpen, kComplete, kGone };

  std::function<void()> end(State state) {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kOpen) return {};
    state_ = state;
    return std::exchange(gone_, {});
  }

  mutable std::mutex mutex_;
  State state_ = State::kOpen;  // guarded by the mutex, as are the following members
  std::function<void()> gone_;
};

}  // namespace outrider
