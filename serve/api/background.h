// Background responses: POST /v1/responses with "background": true is answered at once, and its response is
// fetched later by its id. With a journal a server that is started again runs what was not finished.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "requests/finished_results.h"
#include "serve/api/answer.h"
#include "serve/api/desk.h"
#include "serve/api/journal.h"
#include "serve/monitor/background_counts.h"

namespace outrider {

struct BackgroundLimits {
  size_t responses = 1000;           // finished ones that are kept
  std::chrono::seconds age{86'400};  // of finished ones
};

// A journal, and what tells whether its requests can run here.
struct BackgroundJournal {
  Journal files;
  RequestFingerprints fingerprints;  // of this server's model and numerics
  std::string model() const;
};

// Thread-safe. Its own thread submits requests, collects their answers and writes the journal.
class Background {
 public:
  using Shared = std::shared_ptr<HttpReply>;
  // Reads a body, as for a request that is not in the background. `text`: as it was sent.
  using Reader = std::function<Result<ApiRequest>(const nlohmann::json& body, const std::string& text)>;

  // Everything must outlive it. With a journal it reads all entries.
  Background(BackgroundLimits limits, std::optional<BackgroundJournal> journal, Engine& engine,
             const Tokenizer& tokenizer, Reader reader);
  ~Background();

  // `request` was read from `body`, whose text the client sent.
  void create(ApiRequest request, std::string body, std::string client, const Shared& reply);
  // `id`: with its prefix.
  void get(const std::string& id, const Shared& reply);
  void cancel(const std::string& id, const Shared& reply);
  void remove(const std::string& id, const Shared& reply);

  // The engine takes requests from now on: runs those that the journal holds.
  void resume();
  // The server stops. With a journal, requests in progress end here and stay in it.
  void hand_over();

  const BackgroundCounts& counts() const { return counts_; }
  // The fault of the journal's directory; empty: none.
  std::string journal_fault() const;

 private:
  class Reply;
  struct Entry {
    int64_t created_us = 0;
    std::string client, model;          // as in the journal
    std::string model_name;             // in answers
    nlohmann::json repeated;            // repeated_in_response()
    std::shared_ptr<ApiAnswer> answer;  // null: waits to be submitted, or is finished
    std::shared_ptr<Reply> reply;       // of that answer
    int64_t finished_at = 0;
    std::string response;    // JSON; empty: unfinished
    bool is_lasting = true;  // false: it failed only here; its file waits for a server that can run it
  };
  using Entries = std::map<std::string, Entry>;
  struct Answered {
    int status = 0;
    std::string body;
    HttpHeaders headers;
  };

  void load();
  void load(const std::string& id, const JournalEntry& found);
  // Submits the request; the answer of a refusal.
  std::optional<Answered> submit(const std::string& id, Entry& entry, ApiRequest request);
  void answered(const std::string& id, Answered answer);
  void run_waiting();
  // False: the engine has no room now.
  bool run_again(const std::string& id);
  Result<ApiRequest> read_again(const JournalEntry& entry);
  void finish(const std::string& id, Entry& entry, std::string response, bool is_lasting = true);
  void fail(const std::string& id, Entry& entry, const std::string& message, bool is_lasting = true);
  void drop(Entries::iterator at);
  void drop_old();
  // The end: it sends 404.
  Entries::iterator find(const std::string& id, const Shared& reply);
  std::string shown(const std::string& id, const Entry& entry, const char* status) const;
  std::string shown(const std::string& id, const Entry& entry) const;
  Status write(const JournalEntry& entry);
  void look_at_journal();
  void post(std::function<void()> task) { desk_->post(std::move(task)); }
  void count();

  const BackgroundLimits limits_;
  const std::optional<BackgroundJournal> journal_;
  Engine& engine_;
  const Tokenizer& tokenizer_;
  const Reader reader_;
  BackgroundCounts counts_;
  mutable std::mutex fault_mutex_;
  std::string journal_fault_;  // guarded by fault_mutex_
  // Only the thread uses this and the following members.
  Entries entries_;                   // by id, without its prefix
  std::deque<std::string> waiting_;   // ids to be submitted, in order
  std::deque<std::string> finished_;  // in order; ids that were removed may be among them
  int64_t foreign_ = 0;               // unfinished requests of other models that the journal held
  bool stops_ = false;
  std::optional<Answered>* refusal_ = nullptr;  // set while a request is submitted
  std::atomic<bool> is_over_{false};
  const std::shared_ptr<Desk> desk_ = std::make_shared<Desk>();
  std::jthread thread_;
};

}  // namespace outrider
