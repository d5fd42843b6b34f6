#include "serve/batch.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/json_file.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "base/program/interrupt.h"
#include "base/program/temporary_file.h"
#include "base/shortened.h"
#include "base/threads.h"
#include "requests/output.h"
#include "serve/api/desk.h"
#include "serve/engine/engine_run.h"
#include "serve/serve.h"
#include "start/coordinator_run.h"
#include "start/flags/options.h"
#include "start/flags/speculative_config.h"
#include "text/chat_template/chat_template.h"

namespace outrider {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kMaxLineBytes = size_t{64} << 20;

// The answer to one line.
class LineReply final : public HttpReply {
 public:
  LineReply(Desk& desk, std::function<void(int status, const std::string& body)> answered)
      : desk_(desk), answered_(std::move(answered)) {}
  ~LineReply() override {
    if (answered_) answered_(500, R"({"error": {"message": "the request was not answered"}})");
  }
  void send(int status, std::string_view, std::string body, const HttpHeaders&) override {
    if (const auto answered = std::exchange(answered_, nullptr)) answered(status, body);
  }
  // A line cannot ask for events.
  void begin_events() override {}
  void event(std::string, std::string_view) override {}
  void comment(std::string) override {}
  void end_events() override {}
  void later(std::function<void()> task) override { desk_.post(std::move(task)); }
  void after(std::chrono::milliseconds delay, std::function<void()> task) override {
    desk_.post_at(Clock::now() + delay, std::move(task));
  }
  void on_gone(std::function<void()>) override {}

 private:
  Desk& desk_;
  std::function<void(int, const std::string&)> answered_;
};

struct BatchLine {
  std::string custom_id, url;
  std::string body;
};

Result<std::string> text_of(const ordered_json& line, const char* key) {
  const auto at = line.find(key);
  if (at == line.end() || !at->is_string())
    return invalid_argument(fmt::format("\"{}\" must be a text", key));
  return at->get<std::string>();
}

Result<BatchLine> read_line(const std::string& text) {
  // Schemas in the body keep the order of their keys.
  ASSIGN_OR_RETURN(
      const ordered_json line,
      parse_ordered_json(text, "not JSON", {.max_bytes = kMaxLineBytes, .whole_numbers_fit = true}));
  if (!line.is_object()) return invalid_argument("a line is an object {custom_id, method, url, body}");
  BatchLine out;
  ASSIGN_OR_RETURN(out.custom_id, text_of(line, "custom_id"));
  ASSIGN_OR_RETURN(const std::string method, text_of(line, "method"));
  ASSIGN_OR_RETURN(out.url, text_of(line, "url"));
  if (method != "POST") return invalid_argument("\"method\" must be POST");
  const auto body = line.find("body");
  if (body == line.end() || !body->is_object()) return invalid_argument("\"body\" must be an object");
  const ordered_json stream = body->value("stream", ordered_json());
  if (!stream.is_null() && stream != ordered_json(false))
    return invalid_argument("\"body\": \"stream\" has no meaning in a batch; leave it out");
  out.body = json_text(*body);
  return out;
}

// Reads all lines before any request runs.
Result<std::vector<BatchLine>> read_lines(const std::string& file) {
  std::ifstream in(file);
  std::error_code error;
  if (!in || std::filesystem::is_directory(file, error))
    return not_found(fmt::format("--input {}: cannot be read; name a file of JSON lines", file));
  std::vector<BatchLine> lines;
  std::set<std::string> ids;
  size_t number = 0;
  for (std::string text; std::getline(in, text);) {
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto line = read_line(text);
    if (line.ok() && !ids.insert(line->custom_id).second)
      line =
          invalid_argument(fmt::format("\"custom_id\" {} is an earlier line's", shortened(line->custom_id)));
    if (!line.ok()) return line.status().in(fmt::format("--input {}:{}", file, number));
    lines.push_back(std::move(line).value());
  }
  if (lines.empty()) return invalid_argument(fmt::format("--input {}: no requests in it", file));
  return lines;
}

// Keeps `in_flight` lines at the engine, and writes each answer as it comes.
class Batch {
 public:
  Batch(std::vector<BatchLine> lines, Api& api, Desk& desk, TemporaryFile& out, size_t in_flight)
      : desk_(desk), lines_(std::move(lines)), api_(api), out_(out), in_flight_(in_flight) {}

  void run() {
    set_thread_role("batch");
    while (next_ < lines_.size() && next_ < in_flight_) ask_next();
    desk_.run([&] { return done_ == lines_.size() || stopped_; });
    is_over_ = true;
  }
  void stop() { stopped_ = true; }
  bool is_over() const { return is_over_; }
  bool is_whole() const { return done_ == lines_.size() && error_ == 0; }
  // Bytes of the complete lines in the output.
  int64_t bytes() const { return bytes_; }
  int error() const { return error_; }  // errno of the first write that failed
  size_t failed() const { return failed_; }

 private:
  void ask_next() {
    const size_t index = next_++;
    BatchLine& line = lines_[index];
    HttpRequest request{.method = "POST",
                        .path = line.url,
                        .host = "localhost",
                        .content_type = "application/json",
                        .request_id = fmt::format("batch_req_{}", index + 1),
                        .body = std::move(line.body)};
    const std::string id = request.request_id;
    api_.handle(std::move(request),
                std::make_shared<LineReply>(desk_, [this, index, id](int status, const std::string& body) {
                  desk_.post([this, index, id, status, body] { answered(index, id, status, body); });
                }));
  }

  void answered(size_t index, const std::string& id, int status, const std::string& body) {
    ++done_;
    failed_ += status != 200;
    json parsed = json::parse(body, nullptr, false);
    const json line{{"id", id},
                    {"custom_id", lines_[index].custom_id},
                    {"response",
                     {{"status_code", status},
                      {"request_id", id},
                      {"body", parsed.is_discarded() ? json(body) : std::move(parsed)}}},
                    {"error", nullptr}};
    write(json_text(line) + "\n");
    if (next_ < lines_.size() && !stopped_) ask_next();
  }

  // Writes whole lines one at a time, so that readers, and the file left by a crash, see no partial line.
  void write(const std::string& text) {
    errno = 0;
    std::FILE* const to = out_.stream();
    if (error_ == 0 && std::fwrite(text.data(), 1, text.size(), to) == text.size() && std::fflush(to) == 0) {
      if (bytes_ == 0) out_.keep();  // the answers are worth keeping
      bytes_ += static_cast<int64_t>(text.size());
      return;
    }
    if (error_ == 0) error_ = errno != 0 ? errno : EIO;
    stopped_ = true;
  }

  Desk& desk_;
  std::vector<BatchLine> lines_;
  Api& api_;
  TemporaryFile& out_;
  const size_t in_flight_;
  size_t next_ = 0, done_ = 0, failed_ = 0;
  int64_t bytes_ = 0;
  int error_ = 0;
  std::atomic<bool> stopped_{false}, is_over_{false};
};

Result<int> coordinate(const BatchOptions& options, const ClusterSettings& cluster,
                       const Preparation& prepared, MpiCluster* mpi) {
  const ServeOptions& serve = options.serve;
  RETURN_IF_ERROR(check_serve_options(serve));
  ASSIGN_OR_RETURN(auto policy, parse_gamma_policy(cluster.speculation.policy()));
  ASSIGN_OR_RETURN(auto lines, read_lines(options.input));
  const std::pair<const char*, std::string> files[] = {{"--input", options.input},
                                                       {"--output", options.output},
                                                       {"--report", serve.files.report},
                                                       {"--trace", serve.files.trace}};
  RETURN_IF_ERROR(check_distinct(files));
  RETURN_IF_ERROR(check_overwritten("--output", options.output, options.serve.files.overwrite));
  auto opened = TemporaryFile::create(options.output);
  if (!opened.ok()) return opened.status().in("--output");
  TemporaryFile output = std::move(opened).value();
  const size_t count = lines.size();
  Desk desk;  // must outlive all owners of an answer
  const int in_flight = options.in_flight > 0 ? options.in_flight : 2 * cluster.models.sequences();
  CoordinatorEngine engine(
      {.max_num_seqs = cluster.models.sequences(),
       .max_queued_requests = in_flight * static_cast<int64_t>(serve.api_limits.requests),
       .max_queued_tokens = std::numeric_limits<int64_t>::max() / 2,
       .by_priority = cluster.models.scheduling_policy == "priority"});
  auto chat = load_chat_template(cluster.models.model, serve.chat_template);
  if (!serve.chat_template.empty()) RETURN_IF_ERROR(chat.status().in("--chat-template"));
  const ResponseCounts none;
  ASSIGN_OR_RETURN(const auto api, make_api(serve, prepared, std::move(chat), {}, none, engine));
  if (cluster.mpi.preflight) return preflight(cluster, prepared, mpi);
  if (mpi) RETURN_IF_ERROR(mpi->start());
  Batch batch(std::move(lines), *api, desk, output, static_cast<size_t>(in_flight));
  std::jthread thread;
  auto ended = run_engine({.cluster = cluster,
                           .prepared = prepared,
                           .files = serve.files,
                           .engine = engine,
                           .policy = std::move(policy),
                           .on_ready =
                               [&] {
                                 note_first_signal();
                                 thread = start_thread([&batch] { batch.run(); });
                               },
                           .asked_to_drain =
                               [&] {
                                 if (noted_signal() != 0) batch.stop();
                                 return batch.is_over();
                               },
                           .drained = [&] { batch.stop(); },
                           .drain_limit = std::chrono::seconds(0),
                           .code_when_stopped = kExitRuntime},
                          mpi);
  if (thread.joinable()) thread.join();
  if (batch.is_whole()) {
    RETURN_IF_ERROR(output.commit().in("--output"));
  } else if (batch.bytes() > 0) {
    tell_error("what was answered is in " + output.leave(batch.bytes()));
  }
  RETURN_IF_ERROR(ended.status());
  if (batch.error() != 0)
    return unavailable(
        fmt::format("--output {}: cannot be written: {}", options.output, std::strerror(batch.error())));
  if (!batch.is_whole()) return unavailable("interrupted");
  if (!cluster.quiet)
    tell_error(fmt::format("{} requests answered, {} of them with an error", count, batch.failed()));
  return batch.failed() == 0 ? kExitOk : kExitRequestFailed;
}

}  // namespace

void add_batch_options(CLI::App& app, BatchOptions& o) {
  ServeOptions& serve = o.serve;
  add_model_options(app, serve.cluster);
  add_pool_options(app, serve.cluster.pool);
  app.add_option("-i,--input", o.input,
                 "A file with a request on each line: {\"custom_id\", \"method\": \"POST\", \"url\": "
                 "\"/v1/chat/completions\", \"body\"}")
      ->required()
      ->group("Batch");
  app.add_option("-o,--output", o.output,
                 "The answers, a line each, as they come: {\"custom_id\", \"response\": {\"status_code\", "
                 "\"body\"}}")
      ->required()
      ->group("Batch");
  app.add_flag("--overwrite", serve.files.overwrite,
               "Replace an --output file that exists; without it that is an error")
      ->group("Batch");
  app.add_option("--in-flight", o.in_flight, "Requests that are worked on at once; 0: twice --max-num-seqs")
      ->check(CLI::Range(0, 1 << 20))
      ->group("Batch")
      ->capture_default_str();
  app.add_option("--served-model-name", serve.served_model_names,
                 "What the requests call the model. Default: --model as it was written")
      ->delimiter(',')
      ->group("Batch");
  app.add_option("--chat-template", serve.chat_template, "A file with a template, instead of the model's own")
      ->group("Batch");
  add_grammar_library_option(app, serve.grammar_library, "Batch");
  serve.max_num_speculative_tokens = kMostSpeculativeTokens;
  serve.defaults.temperature = 1;
  add_sampling_options(app, serve.defaults, serve.generation_config);
  add_speculation_options(app, serve.cluster.speculation, serve.defaults.rule);
  add_speculative_config_option(app, serve.cluster, serve.defaults.rule);
  add_report_options(app, serve.files, serve.cluster.quiet);
  app.footer(
      "Example:\n  outrider batch --model TARGET --draft-model DRAFT --input in.jsonl --output out.jsonl");
}

int run_batch(const BatchOptions& options) {
  set_thread_role("coordinator");
  return run_coordinator(options.serve.cluster,
                         [&options](const ClusterSettings& cluster, const Preparation& prepared,
                                    MpiCluster* mpi) { return coordinate(options, cluster, prepared, mpi); });
}

}  // namespace outrider
