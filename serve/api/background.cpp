#include "serve/api/background.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/event_log.h"
#include "base/json_file.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "base/shortened.h"
#include "base/threads.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr const char* kJsonType = "application/json";
constexpr std::string_view kPrefix = "resp_";
constexpr std::chrono::seconds kRetry{1};

int64_t microseconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}
int64_t seconds(int64_t microseconds) { return microseconds / 1'000'000; }

// An id cannot be guessed, because a client with the id may fetch the response.
std::string unguessable_id() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", random());
  return id;
}

json repeated_of(json repeated) {
  repeated["background"] = true;
  repeated["store"] = true;
  return repeated;
}

// The fields that a body leaves to the server, with their values. A server with other defaults, or another
// random seed, reads the same request from the body and these.
json resolved_of(const Request& request) {
  const SamplingParams& s = request.sampling;
  return {{"seed", s.seed.value},
          {"temperature", s.temperature},
          {"top_k", s.top_k},
          {"top_p", s.top_p},
          {"min_p", s.min_p},
          {"repetition_penalty", s.repetition_penalty},
          {"presence_penalty", s.presence_penalty},
          {"frequency_penalty", s.frequency_penalty},
          {"rule", rule_name(s.rule)},
          {"max_output_tokens", request.max_tokens},
          {"ignore_eos", request.ignore_eos}};
}

std::string fingerprint_of(const RequestFingerprints& fingerprints, const Request& request) {
  PromptRequest asked;
  asked.request = request;
  return format_fingerprint(fingerprints(asked));
}

// The message of an error's body.
std::string message_of(const std::string& body) {
  const json parsed = json::parse(body, nullptr, false);
  const json* const error = parsed.is_object() && parsed.contains("error") ? &parsed["error"] : nullptr;
  return error && error->is_object() ? error->value("message", body) : body;
}

}  // namespace

std::string BackgroundJournal::model() const { return format_fingerprint(fingerprints(PromptRequest{})); }

// In place of a connection: passes the answer on, and lets the answer's tasks run on the desk.
class Background::Reply final : public HttpReply {
 public:
  Reply(std::shared_ptr<Desk> desk, std::function<void(Answered)> answered)
      : desk_(std::move(desk)), answered_(std::move(answered)) {}
  void send(int status, std::string_view, std::string body, const HttpHeaders& headers) override {
    gone_ = nullptr;
    if (const auto answered = std::exchange(answered_, nullptr)) answered({status, std::move(body), headers});
  }
  void begin_events() override {}  // a background response is no stream
  void event(std::string, std::string_view) override {}
  void comment(std::string) override {}
  void end_events() override {}
  void later(std::function<void()> task) override { desk_->post(std::move(task)); }
  void after(std::chrono::milliseconds delay, std::function<void()> task) override {
    desk_->post_at(Desk::Clock::now() + delay, std::move(task));
  }
  void on_gone(std::function<void()> gone) override { gone_ = std::move(gone); }

  // The answer is not wanted any more: cancels its requests at the engine.
  void leave() {
    answered_ = nullptr;
    if (const auto gone = std::exchange(gone_, nullptr)) gone();
  }

 private:
  const std::shared_ptr<Desk> desk_;
  std::function<void(Answered)> answered_;
  std::function<void()> gone_;
};

Background::Background(BackgroundLimits limits, std::optional<BackgroundJournal> journal, Engine& engine,
                       const Tokenizer& tokenizer, Reader reader)
    : limits_(limits),
      journal_(std::move(journal)),
      engine_(engine),
      tokenizer_(tokenizer),
      reader_(std::move(reader)) {
  load();
  if (journal_) post([this] { look_at_journal(); });
  thread_ = start_thread([this] {
    set_thread_role("background");
    while (!is_over_) {
      try {
        desk_->run([this] { return is_over_.load(); });
      } catch (const std::exception& error) {  // of one request; the others go on
        tell_error(fmt::format("a background response is lost: {}", error.what()));
      }
    }
  });
}

Background::~Background() {
  is_over_ = true;
  desk_->post([] {});
  thread_.join();
}

void Background::count() {
  counts_.kept = static_cast<int64_t>(std::count_if(
      entries_.begin(), entries_.end(), [](const auto& entry) { return !entry.second.response.empty(); }));
  counts_.open = static_cast<int64_t>(entries_.size()) - counts_.kept;
}

// ---- the journal ----------------------------------------------------------------------------------------

void Background::load() {
  if (!journal_) return;
  std::vector<std::pair<int64_t, std::string>> finished;
  for (const Journal::Found& found : journal_->files.all()) {
    if (found.entry.ok()) {
      load(found.id, *found.entry);
    } else {
      Entry& entry = entries_[found.id];
      entry.created_us = found.modified_us;  // its own time may be what is damaged
      entry.model_name = "";
      entry.repeated = repeated_of(repeated_in_response(json::object()));
      log_event(LogLevel::kWarning, "journal", found.entry.status().message());
      fail(found.id, entry, found.entry.status().message(), false);
    }
    if (const auto at = entries_.find(found.id); at != entries_.end() && !at->second.response.empty())
      finished.emplace_back(at->second.finished_at, found.id);
  }
  finished_.clear();
  std::sort(finished.begin(), finished.end());
  for (auto& [at, id] : finished) finished_.push_back(std::move(id));
  drop_old();
}

void Background::load(const std::string& id, const JournalEntry& found) {
  Entry& entry = entries_[id];
  entry.created_us = found.created_us;
  entry.client = found.client;
  entry.model = found.model;
  entry.finished_at = found.finished_at;
  entry.response = found.response;
  if (found.is_finished()) return;
  const json body = json::parse(found.body, nullptr, false);
  entry.repeated = repeated_of(body.is_object() ? repeated_in_response(body) : json::object());
  entry.model_name = body.is_object() && body.contains("model") ? body["model"] : json("");
  // Its file stays, and a server of that model can still run it.
  if (found.model != journal_->model()) {
    ++foreign_;
    return fail(id, entry,
                fmt::format("the request was accepted for a model with other weights, or for other numerics "
                            "(instruction set, --weight-format, --activation-format, --kv-dtype, --device): "
                            "{}, and this server has {}; start a server of that model with this --journal",
                            found.model, journal_->model()),
                false);
  }
  waiting_.push_back(id);
}

Status Background::write(const JournalEntry& entry) {
  const Status written = journal_->files.write(entry);
  if (written.ok()) return written;
  ++counts_.journal_errors;
  log_event(LogLevel::kError, "journal", written.message());
  return written;
}

// Otherwise the loss of the directory would show at the next request only.
void Background::look_at_journal() {
  constexpr std::chrono::seconds kLook{1};
  const std::string fault = journal_->files.check().message();
  bool is_new = false;
  {
    const std::lock_guard lock(fault_mutex_);
    is_new = fault != journal_fault_;
    journal_fault_ = fault;
  }
  if (is_new && !fault.empty()) log_event(LogLevel::kError, "journal", fault);
  if (is_new && fault.empty())
    log_event(LogLevel::kInfo, "journal",
              fmt::format("--journal {}: can be written again", journal_->files.directory()));
  desk_->post_at(Desk::Clock::now() + kLook, [this] { look_at_journal(); });
}

std::string Background::journal_fault() const {
  const std::lock_guard lock(fault_mutex_);
  return journal_fault_;
}

void Background::resume() {
  post([this] {
    if (!journal_) return;
    const auto again = static_cast<int64_t>(waiting_.size());
    counts_.run_again += again;
    if (!entries_.empty())
      log_event(LogLevel::kInfo, "resume",
                fmt::format("--journal {}: {} unfinished requests run again; {} finished responses are kept",
                            journal_->files.directory(), again, counts_.kept.load() - foreign_),
                {{"requests", again}, {"kept", counts_.kept.load() - foreign_}});
    if (foreign_ > 0)
      log_event(LogLevel::kWarning, "resume",
                fmt::format("--journal {}: {} unfinished requests are of a model with other weights or "
                            "numerics; they failed here, and their files stay for a server of that model",
                            journal_->files.directory(), foreign_),
                {{"requests", foreign_}});
    run_waiting();
  });
}

void Background::hand_over() {
  post([this] {
    if (!journal_ || std::exchange(stops_, true)) return;
    int64_t left = 0;
    for (auto& [id, entry] : entries_) {
      if (!entry.response.empty()) continue;
      ++left;
      if (const auto reply = std::exchange(entry.reply, nullptr)) reply->leave();
      entry.answer = nullptr;
    }
    if (left > 0)
      log_event(LogLevel::kInfo, "handover",
                fmt::format("{} background requests stay in --journal {}; the next server runs them", left,
                            journal_->files.directory()),
                {{"requests", left}});
  });
}

void Background::run_waiting() {
  while (!waiting_.empty() && !stops_) {
    const auto at = entries_.find(waiting_.front());
    const bool waits = at != entries_.end() && at->second.response.empty() && !at->second.answer;
    if (waits && !run_again(waiting_.front())) {
      desk_->post_at(Desk::Clock::now() + kRetry, [this] { run_waiting(); });
      return;
    }
    waiting_.pop_front();
  }
}

bool Background::run_again(const std::string& id) {
  Entry& entry = entries_.at(id);
  const auto found = journal_->files.read(id);
  if (!found.ok()) return fail(id, entry, found.status().message(), false), true;
  auto request = read_again(*found);
  if (!request.ok()) {
    log_event(LogLevel::kWarning, "resume",
              fmt::format("--journal {}: {} cannot run again here: {}", journal_->files.directory(), id,
                          request.status().message()));
    fail(id, entry, "the request cannot run again here: " + request.status().message(), false);
    return true;
  }
  const auto refusal = submit(id, entry, std::move(request).value());
  if (!refusal) return true;
  if (refusal->status == 429 || refusal->status == 503) return false;
  fail(id, entry, message_of(refusal->body));
  return true;
}

Result<ApiRequest> Background::read_again(const JournalEntry& entry) {
  ASSIGN_OR_RETURN(json body, read_body(entry.body));
  const json repeated = repeated_in_response(body);
  body.erase("background");
  body.update(entry.resolved);
  ASSIGN_OR_RETURN(ApiRequest read, reader_(body, entry.body));
  Request& request = read.requests.front();
  request.prompt.clear();
  for (const int32_t token : entry.prompt) request.prompt.emplace_back(token);
  read.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (fingerprint_of(journal_->fingerprints, request) != entry.request)
    return invalid_argument(
        "the defaults of this server (its flags under Requests) give the request other parameters; start it "
        "with those of the server that accepted it");
  read.repeated = std::make_shared<const json>(repeated_of(repeated));
  return read;
}

// ---- requests -------------------------------------------------------------------------------------------

std::optional<Background::Answered> Background::submit(const std::string& id, Entry& entry,
                                                       ApiRequest request) {
  entry.model_name = request.model;
  entry.repeated = *request.repeated;
  entry.reply = std::make_shared<Reply>(desk_, [this, id](Answered answer) {
    if (refusal_)
      *refusal_ = std::move(answer);
    else
      answered(id, std::move(answer));
  });
  const auto answer =
      std::make_shared<ApiAnswer>(std::move(request), entry.reply, tokenizer_,
                                  AnswerOptions{.id = id, .created = seconds(entry.created_us)});
  std::optional<Answered> refusal;
  refusal_ = &refusal;
  answer->submit(engine_, entry.client);
  refusal_ = nullptr;
  if (refusal)
    entry.reply = nullptr;
  else
    entry.answer = answer;
  return refusal;
}

void Background::create(ApiRequest request, std::string body, std::string client, const Shared& reply) {
  const auto shared = std::make_shared<ApiRequest>(std::move(request));
  post([this, shared, body = std::move(body), client = std::move(client), reply] {
    if (stops_) return send_error(*reply, {.status = 503, .message = "the server is shutting down"});
    const std::string id = unguessable_id();
    Entry& entry = entries_[id];
    entry.created_us = microseconds_since_1970();
    entry.client = client;
    JournalEntry record{.id = id, .created_us = entry.created_us, .client = client, .model = {}};
    if (journal_) {
      const Request& one = shared->requests.front();
      entry.model = record.model = journal_->model();
      record.body = body;
      record.resolved = resolved_of(one);
      for (const TokenId token : one.prompt) record.prompt.push_back(token.value());
      record.request = fingerprint_of(journal_->fingerprints, one);
    }
    shared->repeated = std::make_shared<const json>(repeated_of(*shared->repeated));
    if (const auto refusal = submit(id, entry, std::move(*shared))) {
      entries_.erase(id);
      return reply->send(refusal->status, kJsonType, refusal->body, refusal->headers);
    }
    if (journal_) {
      if (const Status written = write(record); !written.ok()) {
        entry.reply->leave();
        entries_.erase(id);
        return send_error(*reply, {.status = 500, .message = written.message(), .code = "journal"});
      }
    }
    drop_old();
    reply->send(200, kJsonType, shown(id, entry, "queued"));
  });
}

void Background::answered(const std::string& id, Answered answer) {
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  Entry& entry = at->second;
  if (answer.status == 200) return finish(id, entry, std::move(answer.body));
  // The target is gone, or the server stops: the request waits for the next one.
  if (answer.status == 503 && journal_) {
    entry.answer = nullptr;
    entry.reply = nullptr;
    waiting_.push_back(id);
    if (waiting_.size() == 1 && !stops_)
      desk_->post_at(Desk::Clock::now() + kRetry, [this] { run_waiting(); });
    return;
  }
  fail(id, entry, message_of(answer.body));
}

void Background::fail(const std::string& id, Entry& entry, const std::string& message, bool is_lasting) {
  json failed = json::parse(shown(id, entry, "failed"));
  failed["error"] = {{"code", "server_error"}, {"message", message}};
  finish(id, entry, json_text(failed), is_lasting);
}

void Background::finish(const std::string& id, Entry& entry, std::string response, bool is_lasting) {
  entry.answer = nullptr;
  entry.reply = nullptr;
  entry.response = std::move(response);
  entry.finished_at = seconds(microseconds_since_1970());
  entry.is_lasting = is_lasting;
  finished_.push_back(id);
  if (journal_ && is_lasting) {
    JournalEntry record{
        .id = id, .created_us = entry.created_us, .client = entry.client, .model = entry.model};
    record.finished_at = entry.finished_at;
    record.response = entry.response;
    (void)write(record);  // an error was reported; the request would run again
  }
  drop_old();
}

void Background::drop(Entries::iterator at) {
  if (journal_ && at->second.is_lasting) journal_->files.remove(at->first);
  entries_.erase(at);
}

void Background::drop_old() {
  const int64_t oldest = seconds(microseconds_since_1970()) - limits_.age.count();
  while (!finished_.empty()) {
    const auto at = entries_.find(finished_.front());
    const bool is_there = at != entries_.end() && !at->second.response.empty();
    if (is_there && finished_.size() <= limits_.responses && at->second.finished_at >= oldest) break;
    if (is_there) drop(at);
    finished_.pop_front();
  }
  count();
}

// ---- the endpoints --------------------------------------------------------------------------------------

Background::Entries::iterator Background::find(const std::string& id, const Shared& reply) {
  drop_old();
  const auto at = id.starts_with(kPrefix) ? entries_.find(id.substr(kPrefix.size())) : entries_.end();
  if (at == entries_.end())
    send_error(*reply,
               {.status = 404,
                .message = fmt::format("there is no response {}: only those with \"background\": true "
                                       "are kept, until they are deleted, or dropped by "
                                       "--max-stored-responses or --stored-response-age",
                                       shortened(id)),
                .code = "not_found"});
  return at;
}

std::string Background::shown(const std::string& id, const Entry& entry, const char* status) const {
  return json_text(response_object(
      {.id = id, .created = seconds(entry.created_us), .model = entry.model_name, .repeated = entry.repeated},
      status, json::array()));
}

std::string Background::shown(const std::string& id, const Entry& entry) const {
  if (!entry.response.empty()) return entry.response;
  return shown(id, entry, entry.answer && entry.answer->has_begun() ? "in_progress" : "queued");
}

void Background::get(const std::string& id, const Shared& reply) {
  post([this, id, reply] {
    const auto at = find(id, reply);
    if (at != entries_.end()) reply->send(200, kJsonType, shown(at->first, at->second));
  });
}

void Background::cancel(const std::string& id, const Shared& reply) {
  post([this, id, reply] {
    const auto at = find(id, reply);
    if (at == entries_.end()) return;
    Entry& entry = at->second;
    if (entry.response.empty()) {
      if (const auto running = std::exchange(entry.reply, nullptr)) running->leave();
      finish(at->first, entry, shown(at->first, entry, "cancelled"));
    }
    reply->send(200, kJsonType, entry.response);
  });
}

void Background::remove(const std::string& id, const Shared& reply) {
  post([this, id, reply] {
    const auto at = find(id, reply);
    if (at == entries_.end()) return;
    if (const auto running = std::exchange(at->second.reply, nullptr)) running->leave();
    std::erase(finished_, at->first);
    at->second.is_lasting = true;
    drop(at);
    count();
    reply->send(200, kJsonType, json_text(json{{"id", id}, {"object", "response"}, {"deleted", true}}));
  });
}

}  // namespace outrider
