// The coordinator on a thread of its own, for clients that come and go: requests are submitted under a lock,
// and results come back on that thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/overview.h"
#include "coordinator/rounds/events.h"
#include "serve/engine/pace.h"

namespace outrider {

// Receives the results of one request. Called on the engine's thread, in order, and never after finished().
// The functions must only pass results on, because all sequences wait meanwhile.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void emitted(const Emit& emit) = 0;
  virtual void finished(const Finish& finish) = 0;
  // A round was verified; before its tokens are emitted or after.
  virtual void round(const RoundDone&) {}
};

// Names a request for cancel(); never repeated.
enum class Ticket : uint64_t {};

struct Submission {
  Request request;
  std::shared_ptr<RequestSink> sink;
};

enum class EngineState : uint8_t {
  kLoading,   // models load, workers join
  kReady,     // takes requests
  kDraining,  // finishes its requests
  kNoTarget,  // refuses requests until a target group joins
  kFailed,    // the target group is gone for good, or hangs
};

struct EngineStatus {
  EngineState state = EngineState::kLoading;
  // With kNoTarget and kFailed: the reason and where to look. With kLoading: the missing parties; empty:
  // none.
  std::string reason;
};

// The numbers for /metrics; a consistent copy.
struct EngineNumbers {
  Totals totals;
  TransportStats wire;
  int64_t running = 0, waiting = 0;  // requests
  int64_t refused = 0;               // so far, for lack of room
  int64_t draft_workers = 0;
  int64_t draft_workers_wanted = 0;  // Overview::workers_wanted, as a SteadyCount
  Overview overview;  // a recent copy
  Pace pace;          // over the last seconds
};

// Every method may be called from any thread.
class Engine {
 public:
  virtual ~Engine() = default;

  // Takes all submissions or none. kResourceExhausted: too many requests or prompt tokens wait already.
  // kInvalidArgument: they would not fit even into an idle engine. kUnavailable: not kReady. Other errors, of
  // a request that the target cannot take, come through finished(). `client`: waiting requests of different
  // clients are served in turns; so are those of different calls of one client.
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

  // Reports progress, not just a living process: an engine that holds requests and does not move is kFailed.
  virtual EngineStatus status() const = 0;
  // The expected time until there is room for a request again.
  virtual std::chrono::seconds retry_after() const = 0;
  virtual EngineNumbers numbers() const = 0;
};

}  // namespace outrider
