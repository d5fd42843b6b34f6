// A server without HTTP: the demo pair in this process, and an engine on a thread of its own.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "serve/engine/coordinator_engine.h"
#include "start/local_cluster.h"

namespace outrider::testing {

// A client that records its replies.
class Client final : public RequestSink {
 public:
  void emitted(const Emit& emit) override;
  void finished(const Finish& finish) override;

  // These wait for it.
  void wait_for_tokens(size_t count);
  Finish wait_for_end();

  std::string text() const;
  std::vector<TokenId> ids() const;
  int ends() const;  // how often finished() came

  std::function<void()> on_first_token;  // on the engine's thread

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  std::vector<TokenId> ids_;
  Finish finish_;
  int ends_ = 0;
};

ClusterSettings demo_pair(bool drafts = true);

class ServedPair {
 public:
  struct Settings {
    EngineLimits limits;
    std::chrono::milliseconds drain_limit{60'000};
    // Wraps the coordinator's end.
    std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)> wire;
  };
  ServedPair(const ClusterSettings& cluster, Settings settings);
  ~ServedPair() { (void)end(); }

  Engine& engine() { return engine_; }
  const Preparation& prepared() const { return prepared_; }
  Request request(const std::string& prompt, int max_tokens) const;
  // Submits a request that is expected to be taken.
  Ticket submit(Request request, const std::shared_ptr<Client>& client);
  void ask_to_drain();
  // Asks for it, and waits until the engine has ended.
  Status end();

 private:
  Status serve();

  const ClusterSettings cluster_;
  const Settings settings_;
  Preparation prepared_;
  CoordinatorEngine engine_;
  std::atomic<bool> drains_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false;
  Status status_;
  std::thread thread_;
};

}  // namespace outrider::testing
