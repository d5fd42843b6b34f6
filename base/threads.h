// Starts threads, so that one which the system refuses stops what was started before it and is told with the
// limits that may be met.
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

// what(): "no further thread can be started: ...", the limits of this process that are set, and the remedy.
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

// body(0) to body(count - 1) at the same time, each on a thread of its own, body(0) on the caller's. None
// begins before all have their thread: they may wait for each other. Returns when all have ended; then throws
// the first exception of a body. NoThread: none has begun.
void run_on_threads(int count, const std::function<void(int)>& body);

// Runs body() on a thread with a stack of so many bytes, of which only what is used takes memory, and waits
// for its end; then throws its exception. For libraries that recurse as deep as their input says. NoThread:
// it has not begun.
void run_with_stack(size_t bytes, const std::function<void()>& body);

// There is no room for what is named, as "model.safetensors: cannot map 12 bytes"; its text names the limit.
class NoMemory : public std::bad_alloc {
 public:
  explicit NoMemory(const std::string& what);
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

// what(), and where memory ran out, the limits on it.
std::string what_failed(const std::exception& error);

// Whether so many more threads can be started at once, for libraries that abort where they cannot: tried, not
// computed. Empty: they can; else what NoThread says.
std::string why_no_threads(int count);

}  // namespace outrider
