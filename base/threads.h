// Starts threads. If the system refuses one, those started before it are stopped, and the error names the
// limits that may have been reached.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace outrider {

// what(): "no further thread can be started: ...", the limits that apply to this process, and the remedy.
class NoThread : public std::runtime_error {
 public:
  explicit NoThread(const std::string& reason);
};

// Throws NoThread.
template <class Body>
std::jthread start_thread(Body&& body) {
  try {
    return std::jthread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw NoThread(error.code().message());
  }
}

// Runs body(0) to body(count - 1) at the same time, each on a thread of its own, body(0) on the caller's. No
// body begins before all have a thread, because they may wait for each other. Returns when all have ended;
// then throws the first exception of a body. Throws NoThread if a thread cannot be started; no body has begun
// then.
void run_on_threads(int count, const std::function<void(int)>& body);

// Runs body() on a thread with a stack of `bytes` bytes (untouched pages take no memory), waits for its end
// and rethrows its exception. For libraries whose recursion depth depends on their input. Throws NoThread if
// the thread cannot be started; body() has not run then.
void run_with_stack(size_t bytes, const std::function<void()>& body);

// Memory for the named purpose is missing, as "model.safetensors: cannot map 12 bytes"; the text names the
// limit.
class NoMemory : public std::bad_alloc {
 public:
  explicit NoMemory(const std::string& what);
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

// what(), and if memory ran out, the limits on it.
std::string what_failed(const std::exception& error);

// Empty if `count` more threads can be started at once, else the message of NoThread. For libraries that
// abort where a thread cannot be started. It starts the threads to find out.
std::string why_no_threads(int count);

}  // namespace outrider
