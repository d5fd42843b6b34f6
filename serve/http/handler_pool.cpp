#include "serve/http/handler_pool.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/printable.h"
#include "base/threads.h"

namespace outrider {

HandlerPool::HandlerPool(const HttpOptions& options, HttpHandler handler)
    : handler_(std::move(handler)), short_body_bytes_(options.short_body_bytes) {
  const int threads = std::max(options.handler_threads, 1);
  for (int i = 0; i < threads; ++i)
    threads_.push_back(
        start_thread([this, takes_long_ones = i > 0 || threads == 1] { run(takes_long_ones); }));
}

HandlerPool::~HandlerPool() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void HandlerPool::add(HttpJob job) {
  {
    const std::lock_guard lock(mutex_);
    auto& queue = job.request.body.size() <= short_body_bytes_ ? short_ : long_;
    const std::string client = turn_of_address(job.request.client);
    queue.add(client, std::move(job));
  }
  changed_.notify_all();
}

void HandlerPool::run(bool takes_long_ones) {
  set_thread_role("api");
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || !short_.empty() || (takes_long_ones && !long_.empty()); });
    if (stopped_) return;
    HttpJob job = (takes_long_ones && !long_.empty() ? long_ : short_).take();
    lock.unlock();
    if (job.exchange->is_gone()) continue;
    try {  // an exception of a handler must not end other requests
      handler_(std::move(job.request), std::move(job.reply));
    } catch (const std::exception& error) {
      tell_error(fmt::format("a request is answered 500, for its handler threw: {}", error.what()));
    }
  }
}

}  // namespace outrider
