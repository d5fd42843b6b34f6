// The coordinator on a thread of its own, for clients that come and go: what they ask for is handed over
// under a lock, and what becomes of it comes back on that thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/events.h"
#include "coordinator/overview.h"
#include "serve/pace.h"

namespace outrider {

// One client's request. Called on the engine's thread, in order, and never again after finished(): both must
// only hand over, for all sequences wait meanwhile.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void emitted(const Emit& emit) = 0;
  virtual void finished(const Finish& finish) = 0;
};

// Names a request to cancel(); never used twice.
enum class Ticket : uint64_t {};

struct Submission {
  Request request;
  std::shared_ptr<RequestSink> sink;
};

enum class EngineState : uint8_t {
  kLoading,   // models are read, workers join
  kReady,     // takes requests
  kDraining,  // finishes what it has
  kNoTarget,  // refuses requests until a target group joins
  kFailed,    // the target group is gone for good, or hangs
};

struct EngineStatus {
  EngineState state = EngineState::kLoading;
  // With kNoTarget and kFailed: why, and what to look at. With kLoading: who has to join; empty: nobody.
  std::string reason;
};

// What /metrics tells; a consistent copy.
struct EngineNumbers {
  Totals totals;
  TransportStats wire;
  int64_t running = 0, waiting = 0;  // requests
  int64_t refused = 0;               // so far, for want of room
  int64_t draft_workers = 0;
  Overview overview;  // a moment old
  Pace pace;          // over the last seconds
};

// Every method may be called from any thread.
class Engine {
 public:
  virtual ~Engine() = default;

  // Takes all or none. kResourceExhausted: too many requests, or prompt tokens, wait already.
  // kInvalidArgument: there would be no room for these if nobody else were there. kUnavailable: not kReady.
  // Other errors, of a request that the target cannot take, are told by finished().
  // `client`: who takes turns with other clients where requests wait; those of one call take turns with other
  // calls of that client.
  virtual Result<std::vector<Ticket>> submit_all(std::vector<Submission> submissions,
                                                 const std::string& client) = 0;
  Result<std::vector<Ticket>> submit_all(std::vector<Submission> submissions) {
    return submit_all(std::move(submissions), {});
  }
  Result<Ticket> submit(Request request, std::shared_ptr<RequestSink> sink) {
    std::vector<Submission> one;
    one.push_back({std::move(request), std::move(sink)});
    ASSIGN_OR_RETURN(const auto tickets, submit_all(std::move(one)));
    return tickets.front();
  }
  // finished(kCancelled) follows unless the request has finished already.
  virtual void cancel(Ticket ticket) = 0;

  // Proof of progress, not of a living process: an engine that holds requests and does not move is kFailed.
  virtual EngineStatus status() const = 0;
  // How long it takes, as things go, until there is room for a request again.
  virtual std::chrono::seconds retry_after() const = 0;
  virtual EngineNumbers numbers() const = 0;
};

}  // namespace outrider
