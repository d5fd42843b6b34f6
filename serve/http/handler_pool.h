// The threads that handle requests, and their order. Clients take turns, however many requests each has sent,
// and requests with short bodies have a thread of their own, so that they do not wait for long prompts of
// others.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fair_queue.h"
#include "serve/http/exchange.h"
#include "serve/http/server.h"

namespace outrider {

struct HttpJob {
  HttpRequest request;
  std::shared_ptr<HttpReply> reply;
  std::shared_ptr<const HttpExchange> exchange;
};

// The number of jobs is bounded by that of connections.
class HandlerPool {
 public:
  HandlerPool(const HttpOptions& options, HttpHandler handler);
  ~HandlerPool();  // drops waiting jobs

  void add(HttpJob job);

 private:
  void run(bool takes_long_ones);

  const HttpHandler handler_;
  const size_t short_body_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  FairQueue<HttpJob> short_, long_;  // guarded by the mutex, as are the following members
  bool stopped_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace outrider
