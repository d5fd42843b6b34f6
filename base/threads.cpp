#include "base/threads.h"

#include <pthread.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <future>
#include <new>
#include <vector>

#include <fmt/format.h>

namespace outrider {
namespace {

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// The nearest limit in this process's control group or its parents; empty: none.
std::string pids_max() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/a/b", or "7:pids:/a/b" of the first version
    const auto colon = line.find(':'), path = line.find(':', colon + 1);
    if (path == std::string::npos) continue;
    const std::string controllers = line.substr(colon + 1, path - colon - 1);
    if (!controllers.empty() && controllers != "pids") continue;
    const std::string root = controllers.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids";
    for (std::string group = line.substr(path + 1);; group.resize(group.rfind('/'))) {
      const std::string most = first_line(root + group + "/pids.max");
      if (!most.empty() && most != "max") return most;
      if (group.find('/') == std::string::npos) break;
    }
  }
  return {};
}

std::string limits() {
  std::string text;
  const auto add = [&text](const std::string& limit) { text += (text.empty() ? "" : ", ") + limit; };
  const auto add_limit = [&](auto resource, const char* name, rlim_t unit) {
    rlimit limit{};
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
      add(fmt::format("{} {}", name, limit.rlim_cur / unit));
  };
  add_limit(RLIMIT_NPROC, "ulimit -u (threads of this user)", 1);
  add_limit(RLIMIT_AS, "ulimit -v (KiB of address space)", 1024);
  if (const std::string most = pids_max(); !most.empty())
    add("pids.max of the control group (threads in it) " + most);
  if (text.empty()) add("kernel.threads-max " + first_line("/proc/sys/kernel/threads-max"));
  return text;
}

std::string out_of_memory() {
  rlimit limit{};
  const bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return "out of memory" +
         (limited ? fmt::format("; ulimit -v (KiB of address space) is {}", limit.rlim_cur / 1024) : "");
}

}  // namespace

NoThread::NoThread(const std::string& reason)
    : std::runtime_error(
          fmt::format("no further thread can be started: {}; the limits are {}: raise the one that is met, "
                      "or use fewer threads (--threads N)",
                      reason, limits())) {}

void run_on_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> failures(static_cast<size_t>(count));
  const auto guarded = [&](int i) {
    try {
      body(i);
    } catch (...) {
      failures[static_cast<size_t>(i)] = std::current_exception();
    }
  };
  {
    std::promise<bool> complete;
    const std::shared_future<bool> begins = complete.get_future().share();
    std::vector<std::jthread> threads;  // joins before the data of its threads ends
    try {
      for (int i = 1; i < count; ++i)
        threads.push_back(start_thread([&guarded, begins, i] {
          if (begins.get()) guarded(i);
        }));
    } catch (...) {
      complete.set_value(false);
      throw;
    }
    complete.set_value(true);
    guarded(0);
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

void run_with_stack(size_t bytes, const std::function<void()>& body) {
  struct Call {
    const std::function<void()>& body;
    std::exception_ptr failure;
  } call{body, nullptr};
  const auto run = [](void* of) -> void* {
    auto& made = *static_cast<Call*>(of);
    try {
      made.body();
    } catch (...) {
      made.failure = std::current_exception();
    }
    return nullptr;
  };
  pthread_attr_t attributes;
  int error = pthread_attr_init(&attributes);
  if (error != 0) throw NoThread(std::strerror(error));
  pthread_t thread{};
  error = pthread_attr_setstacksize(&attributes, bytes);
  if (error == 0) error = pthread_create(&thread, &attributes, run, &call);
  pthread_attr_destroy(&attributes);
  if (error != 0) throw NoThread(std::strerror(error));
  pthread_join(thread, nullptr);
  if (call.failure) std::rethrow_exception(call.failure);
}

NoMemory::NoMemory(const std::string& what) : what_(what + ": " + out_of_memory()) {}

std::string what_failed(const std::exception& error) {
  if (dynamic_cast<const NoMemory*>(&error) || !dynamic_cast<const std::bad_alloc*>(&error))
    return error.what();
  return out_of_memory();
}

std::string why_no_threads(int count) {
  try {
    run_on_threads(count + 1, [](int) {});
    return {};
  } catch (const NoThread& error) {
    return error.what();
  }
}

}  // namespace outrider
