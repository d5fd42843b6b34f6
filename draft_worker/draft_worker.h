// The loop of a draft worker: joins a coordinator, answers its Proposes, prepares for the next ones, shows
// that it is alive. One thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "comm/message_check.h"
#include "comm/transport.h"
#include "draft_worker/drafter.h"
#include "draft_worker/slice_sender.h"

namespace outrider {

struct DraftWorkerOptions {
  ModelInfo info;  // for Hello
  Generation generation{1};
  int32_t max_sequences = 16;
  int64_t vocab_size = MessageLimits{}.vocab_size;  // of the target, for who has joined already
  uint64_t head_fingerprint = 0;                    // of the output head that the drafter has; 0: none
  uint64_t state_head = 0;                          // of the head that reads states; 0: it is none
  int32_t state_width = 0;                          // of the rows that it reads
  bool successors = false;                          // the drafter learns from TokenSuccessors
  bool finds_text = false;                          // and this: beside its model it finds drafts in the text
  uint64_t process = 0;                             // for Hello
  std::chrono::milliseconds heartbeat{250};
  std::chrono::milliseconds join_timeout{60'000};
  SliceSender* slices = nullptr;                  // to the target's ranks; null: q travels with the draft
  std::function<bool()> asked_to_leave = {};      // looked at between two pieces of work; empty: never
  std::function<Clock::time_point()> clock = {};  // empty: Clock::now; deadlines of the transport are of it
};

// Says hello and waits for the answer, which is empty if the coordinator is leaving, or the worker is asked
// to. kInvalidArgument: refused. kMalformed: the answer makes no sense.
Result<std::optional<Welcome>> join_coordinator(Transport& transport, const DraftWorkerOptions& options);

// Waits so long where a worker that was told to rest is connected, without a model. False: it is not to come
// back, because it was told or asked to leave, or the coordinator is gone.
bool rest_at(Transport& transport, std::chrono::milliseconds pause, const DraftWorkerOptions& options);

class DraftWorker {
 public:
  // Both must outlive the worker.
  DraftWorker(Drafter& drafter, Transport& transport, DraftWorkerOptions options);

  // Until told to shut down. An error: refused by the coordinator, it never answered, or it is gone; or,
  // kMalformed, it said what makes no sense (comm/message_check.h), and was told so with a Failure.
  Status run();
  // Runs until the job ends, for a worker that has joined already.
  Status serve();

  Status join();
  // run() in turns: turn() while it is true. A turn does all there is to do, the answer to its hello
  // included, and does not wait.
  Status begin_to_join();
  bool turn();
  // Why it ended, when turn() is false: ok if it was told to.
  const Status& end() const { return end_; }
  // It ended because it is to rest for so long (rest_at()).
  std::optional<std::chrono::milliseconds> rest() const { return rest_; }

  // The two halves of its life after joining, for those who bring their own loop. work() does one piece, at
  // most a forward pass, and is false when nothing is left to do.
  void handle(const Message& message);
  bool work();

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
  std::optional<Clock::time_point> joining_until_;  // there is no answer to its hello yet
  Clock::time_point last_sent_{};
  bool leaving_ = false;
  Status end_;  // not ok: refused, or the coordinator is gone
  std::optional<std::chrono::milliseconds> rest_;
  bool told_full_ = false;
  std::map<SequenceId, Clock::time_point> heard_of_;  // when last, of each open sequence
};

}  // namespace outrider
