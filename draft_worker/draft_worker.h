// The loop of a draft worker: joins a coordinator, answers its Proposes, prepares for later ones, and sends
// heartbeats. One thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "comm/message_check.h"
#include "comm/transport.h"
#include "draft_worker/drafter.h"
#include "draft_worker/wire/slice_sender.h"

namespace outrider {

struct DraftWorkerOptions {
  ModelInfo info;                                    // for Hello
  std::vector<uint64_t> vocabulary_beginnings = {};  // for Hello
  Generation generation{1};
  int32_t max_sequences = 16;
  int64_t vocab_size = MessageLimits{}.vocab_size;  // of the target, for a worker that has joined already
  uint64_t head_fingerprint = 0;                    // of the output head that the drafter has; 0: none
  uint64_t hidden_state_head = 0;                   // of the head that reads hidden states; 0: none
  int32_t hidden_state_width = 0;                   // width of the rows that the head reads
  bool successors = false;                          // the drafter learns from TokenSuccessors
  bool finds_text = false;                          // beside its model, the drafter finds drafts in the text
  bool drafts_blocks = false;                       // for Hello
  int32_t max_prefill = 0;                          // for Hello
  PassTimes pass_times = {};                        // for Hello
  uint64_t process = 0;                             // for Hello
  std::chrono::milliseconds heartbeat{250};
  std::chrono::milliseconds join_timeout{60'000};
  SliceSender* slices = nullptr;                  // to the target's ranks; null: q travels with the draft
  std::function<bool()> asked_to_leave = {};      // polled between two pieces of work; empty: never
  std::function<Clock::time_point()> clock = {};  // empty: Clock::now; the transport's clock, too
};

// Sends a Hello and waits for the answer. Empty: the coordinator is leaving, or the worker is asked to leave.
// kInvalidArgument: refused. kMalformed: the answer makes no sense.
Result<std::optional<Welcome>> join_coordinator(Transport& transport, const DraftWorkerOptions& options);

// Waits for `pause` on the connection of an unloaded worker, without a model. False: the worker must not
// return, because it got a Shutdown or is asked to leave, or the coordinator is gone.
bool stay_unloaded(Transport& transport, std::chrono::milliseconds pause, const DraftWorkerOptions& options);

class DraftWorker {
 public:
  // Both must outlive the worker.
  DraftWorker(Drafter& drafter, Transport& transport, DraftWorkerOptions options);

  // Runs until Shutdown. An error: the coordinator refused the worker, never answered, or is gone.
  // kMalformed: the coordinator sent values that make no sense (comm/message_check.h), and got a Failure.
  Status run();
  // Runs until the job ends, for a worker that has joined already.
  Status serve();

  Status join();
  // run() in turns: call turn() while it is true. A turn does all pending work, including the answer to its
  // Hello, and does not wait.
  Status begin_to_join();
  bool turn();
  // The reason of the end, when turn() is false: ok after a Shutdown.
  const Status& end() const { return end_; }
  // The pause, if the worker ended because it was unloaded (stay_unloaded()).
  std::optional<std::chrono::milliseconds> rest() const { return unload_pause_; }

  // The two halves of serve(), for callers with a loop of their own. work() does one piece of work, at most a
  // forward pass, and returns false when there is none.
  void handle(const Message& message);
  bool work();
  // serve() in pieces, for a loop that serves several workers: listen() handles messages that have arrived, a
  // few at a time, and sends a heartbeat if it is time. Does not wait.
  enum class Heard : uint8_t { kNothing, kMessages, kTheEnd };  // kTheEnd: no further call but finish()
  Heard listen();
  // After kTheEnd, on any one thread: says goodbye if the worker was asked to leave. Returns as serve() does.
  Status finish();

  int64_t drafts() const { return drafts_; }  // that were sent
  int64_t drafted_tokens() const { return drafted_tokens_; }

 private:
  Clock::time_point now() const { return options_.clock ? options_.clock() : Clock::now(); }
  void take(Result<std::optional<Welcome>> answer);
  bool has_joined();
  void send(const Message& message);
  void send_draft(Draft draft);
  bool scatter(Draft& draft);
  void leave(Status why);
  void ask_about_oldest();
  bool shutdown_arrived();
  void beat();
  void say_goodbye();
  bool stays() const { return !leaving_ && end_.ok(); }

  Drafter& drafter_;
  Transport& transport_;
  DraftWorkerOptions options_;
  MessageLimits limits_;
  std::vector<DraftAnswer> answers_;                // of one piece of work
  std::optional<Clock::time_point> joining_until_;  // set while its Hello has no answer
  Clock::time_point last_sent_{};
  bool leaving_ = false;
  Status end_;  // not ok: refused, or the coordinator is gone
  std::optional<std::chrono::milliseconds> unload_pause_;
  bool told_full_ = false;
  int64_t drafts_ = 0, drafted_tokens_ = 0;
  std::map<SequenceId, Clock::time_point> heard_of_;  // time of the last message, by open sequence
};

}  // namespace outrider
