// The flags of `outrider serve`, and the file with its key.
#include <fmt/format.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/program/secret_file.h"
#include "base/program/temporary_file.h"
#include "serve/api/access.h"
#include "serve/serve.h"
#include "start/flags/number_range.h"
#include "start/flags/options.h"
#include "start/flags/speculative_config.h"
#include "start/tree_option.h"

namespace outrider {
namespace {

constexpr int kMaxDrainTimeout = 24 * 3600;
constexpr size_t kMaxKeyBytes = 4096, kMaxKeys = 1000;

constexpr const char* kServeExamples =
    R"(Examples:
  outrider serve TARGET --draft-model DRAFT
  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json'
       -d '{"prompt": "Once upon a time", "max_tokens": 64, "temperature": 0}'
  curl -N http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json'
       -d '{"messages": [{"role": "user", "content": "Tell me a story"}], "stream": true}'
  curl http://127.0.0.1:8000/health    200 when requests can be served, 503 while loading, draining or failed
  curl http://127.0.0.1:8000/ready     the same, and 503 while requests wait for a target group
  curl http://127.0.0.1:8000/metrics   counters for Prometheus
  outrider serve TARGET --host 0.0.0.0 --api-key-file key.txt
      Clients send `Authorization: Bearer KEY`.
  mpirun -n 4 outrider serve --layout coordinator=1,draft=1,target=2 --model ... --draft-model ...
      SIGTERM to the process of rank 0 drains; its number is written at the start.
Options under Requests are the defaults of requests.
Exit codes: 0 after SIGTERM or SIGINT, 2 bad flag or file, 3 a port is taken, memory is short or a rank failed.)";

// Whether it can be the value of a header.
bool is_api_key(std::string_view key) {
  return !key.empty() && key.size() <= kMaxKeyBytes &&
         std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

// Adds a flag in seconds for a time in milliseconds.
void add_seconds(CLI::App& app, const char* flag, std::chrono::milliseconds& time, const char* help) {
  app.add_option_function<double>(
         flag, [&time](double s) { time = std::chrono::milliseconds(static_cast<int64_t>(s * 1e3)); }, help)
      ->check(number_in(0.001, 86400))
      ->default_str(fmt::format("{}", std::chrono::duration<double>(time).count()))
      ->group("Limits");
}

void add_limit_options(CLI::App& app, ServeOptions& o) {
  HttpLimits& http = o.http.limits;
  const auto add = [&app](const char* flag, auto& to, auto most, const char* help) {
    using Number = std::decay_t<decltype(to)>;
    app.add_option(flag, to, help)
        ->check(CLI::Range(Number{1}, static_cast<Number>(most)))
        ->group("Limits")
        ->capture_default_str();
  };
  add("--max-connections", http.connections, 1 << 20,
      "Open connections; where all are taken, the one that was silent longest makes room, or a new one gets "
      "503");
  add("--max-body-bytes", http.body_bytes, size_t{1} << 30, "Bytes of a request; a longer one gets 413");
  add("--max-header-bytes", http.header_bytes, size_t{1} << 20,
      "Bytes of the headers of a request; longer ones get 431");
  add("--max-unsent-bytes", http.unsent_bytes, size_t{1} << 30,
      "Of events that a client does not read; with more it is cut off");
  add("--max-choices", o.api_limits.choices, 1 << 20, "The most that `n` of a request may be");
  add("--max-texts", o.api_limits.requests, 1 << 20, "Prompts times `n` of a request, at most");
  add("--max-answer-logprobs", o.api_limits.logprobs, int64_t{1} << 40,
      "Log-probabilities that an answer which is not streamed may have: texts times tokens times those of a "
      "token, and those of prompts");
  add("--api-threads", o.http.handler_threads, 64,
      "Threads that read, check and tokenise requests; the first of several takes short ones only");
  app.add_option(
         "--max-num-speculative-tokens", o.max_num_speculative_tokens,
         "The longest draft that num_speculative_tokens or gamma_policy of a request may ask for; not "
         "less than --num-speculative-tokens of the server")
      ->check(CLI::Range(0, kMostSpeculativeTokens))
      ->group("Limits")
      ->capture_default_str();
  add_seconds(app, "--header-timeout", http.header_time, "Seconds for the headers of a request");
  add_seconds(app, "--body-timeout", http.body_time, "Seconds for its body");
  add_seconds(app, "--idle-timeout", http.idle_time,
              "Seconds that a connection may be silent before its first or next request");
  add_seconds(app, "--write-timeout", http.write_time, "Seconds that a client may take no byte");
}

void add_server_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--host", o.host,
                 "Address to listen on. Others than loopback let other machines ask: give --api-key-file "
                 "then, and put a proxy with TLS in front")
      ->group("Server")
      ->capture_default_str();
  app.add_option("--port", o.port, "0: any that is free; the address is printed on standard error")
      ->check(CLI::Range(0, 65535))
      ->group("Server")
      ->capture_default_str();
  app.add_option("--served-model-name", o.served_model_names,
                 "What clients call the model; may be repeated, or several with commas, the first is what "
                 "answers say. Default: org/name of the Hugging Face cache, else the "
                 "name of the file or directory")
      ->delimiter(',')
      ->group("Server");
  app.add_option("--api-key-file", o.api_key_file,
                 "A file with a key on each line, one of which clients must send as `Authorization: Bearer "
                 "KEY`; only you may be able to read it. /health, /ready, /live and / need none")
      ->check(CLI::Validator(
          [](const std::string& file) {
            return file.empty() ? std::string("\"\" must be the name of a file") : std::string();
          },
          ""))
      ->group("Server");
  app.add_option(
         "--api-key", o.api_keys,
         "The same as a flag, which others on this machine can see: rather set it in the environment. "
         "Several: repeat it, or write commas")
      ->delimiter(',')
      ->group("Server");
  app.add_option("--chat-template", o.chat_template, "A file with a template, instead of the model's own")
      ->group("Server");
  add_grammar_library_option(app, o.grammar_library, "Server");
  app.add_option("--allowed-origins", o.http.allowed_origins,
                 "Origins of web pages that may ask from a browser, such as https://example.org; '*': all")
      ->delimiter(',')
      ->group("Server");
  app.add_option(
         "--trusted-proxies", o.trusted_proxies,
         "Addresses or networks (10.0.0.0/8) of proxies whose X-Forwarded-For names the client: clients "
         "behind them take turns, and stand in the access log, by their own addresses")
      ->delimiter(',')
      ->group("Server");
  app.add_option("--access-log", o.access_log,
                 "A file that gets a line of JSON for each answer, appended; -: standard error")
      ->group("Server");
  app.add_option("--otlp-endpoint", o.otlp_endpoint,
                 "http://HOST:4318 of an OpenTelemetry collector, which gets a trace of each request "
                 "(OTLP/HTTP with JSON). Default: OTEL_EXPORTER_OTLP_ENDPOINT, if it is set; else none")
      ->check(
          [](const std::string& url) { return std::string(url.empty() ? "must be http://HOST:PORT" : ""); })
      ->group("Server");
  app.add_option(
         "--journal", o.journal,
         "A directory for background responses (POST /v1/responses with \"background\": true): a server that "
         "is started again with it runs what was not finished, with the same text. It is made if it is "
         "missing, and holds prompts and texts. Without it they are in memory, and end with the server")
      ->check(CLI::Validator(
          [](const std::string& directory) {
            return directory.empty() ? std::string("\"\" must be the name of a directory") : std::string();
          },
          ""))
      ->group("Server");
  app.add_flag("--standby", o.standby,
               "With --journal of a server that runs: wait for its end, then serve in its place, with its "
               "unfinished background responses. Target groups and draft workers with --stay and both "
               "addresses in --connect join")
      ->group("Server");
  app.add_option("--max-stored-responses", o.max_stored_responses,
                 "Finished background responses that are kept; the oldest is dropped")
      ->check(CLI::Range(1, 1 << 20))
      ->group("Limits")
      ->capture_default_str();
  app.add_option("--stored-response-age", o.stored_response_age_s,
                 "Seconds for which a finished background response is kept")
      ->check(CLI::Range(1, 10 * 365 * 86400))
      ->group("Limits")
      ->capture_default_str();
  app.add_option("--max-queued-requests", o.max_queued_requests,
                 "Requests that may wait for one of the --max-num-seqs places; more are refused with 429")
      ->check(CLI::Range(0, 1 << 20))
      ->group("Server")
      ->capture_default_str();
  app.add_option("--max-queued-tokens", o.max_queued_tokens,
                 "Tokens that the prompts of waiting requests may have together")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->group("Server")
      ->capture_default_str();
  app.add_option("--request-timeout", o.request_timeout_s,
                 "Seconds after which a request that does not say `timeout` itself is given up; 0: never")
      ->check(number_in(0, 86400))
      ->group("Server")
      ->capture_default_str();
  app.add_option("--keep-alive-interval", o.keep_alive_s,
                 "Seconds between the comments that a stream gets until its first token; 0: none")
      ->check(number_in(0, 3600))
      ->group("Server")
      ->capture_default_str();
  add_limit_options(app, o);
  app.add_option("--drain-timeout", o.drain_timeout_s,
                 "Seconds that requests have to finish after SIGTERM or SIGINT; a second signal ends at once")
      ->check(CLI::Range(0, kMaxDrainTimeout))
      ->group("Server")
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--metrics-compat", [&o](const std::string&) { o.metrics_compat_vllm = true; },
         "vllm: /metrics has the common numbers also under vLLM's names, for tools that know only those")
      ->check(CLI::IsMember({"vllm"}))
      ->group("Server");
  app.add_option_function<std::string>(
         "--reasoning-format", [&o](const std::string& format) { o.parts_thoughts = format == "auto"; },
         "Of chats whose model thinks between <think> and </think>: auto puts that into reasoning_content, "
         "none leaves it in the content; default: auto")
      ->check(CLI::IsMember({"auto", "none"}))
      ->group("Server");
  app.add_option_function<std::string>(
         "--per-request-spec-decode-metrics",
         [&o](const std::string& detail) { o.lists_rounds = detail == "detailed"; },
         "detailed: metrics.speculative_decoding of replies also has the drafted and accepted tokens of "
         "every round "
         "with a draft (per_step_drafted, per_step_accepted), as vLLM's; default: summary")
      ->check(CLI::IsMember({"summary", "detailed"}))
      ->group("Server");
}

}  // namespace

void add_serve_options(CLI::App& app, ServeOptions& o) {
  add_model_options(app, o.cluster);
  add_pool_options(app, o.cluster.pool);
  add_server_options(app, o);
  o.defaults.temperature = 1;  // the default of OpenAI's API
  add_sampling_options(app, o.defaults, o.generation_config);
  add_speculation_options(app, o.cluster.speculation, o.defaults.rule);
  add_speculative_config_option(app, o.cluster, o.defaults.rule);
  add_report_options(app, o.files, o.cluster.quiet);
  app.footer(kServeExamples);
}

Status check_serve_options(const ServeOptions& o) {
  const auto& names = o.served_model_names;
  if (std::any_of(names.begin(), names.end(), [](const std::string& name) { return name.empty(); }))
    return invalid_argument("--served-model-name must not be empty");
  if (!std::all_of(o.api_keys.begin(), o.api_keys.end(), is_api_key))
    return invalid_argument("--api-key must be visible ASCII characters without blanks");
  if (o.api_keys.empty() && o.api_key_file.empty())
    for (const char* variable : {"OUTRIDER_API_KEY", "OUTRIDER_API_KEY_FILE"})
      if (std::getenv(variable))
        return invalid_argument(
            fmt::format("{} is set and empty, and without a key every client would be answered; give it a "
                        "value, or unset it",
                        variable));
  if (o.standby && o.journal.empty())
    return invalid_argument("--standby needs --journal: it waits for the server that uses that directory");
  RETURN_IF_ERROR(TrustedProxies::parse(o.trusted_proxies).status());
  RETURN_IF_ERROR(check_rule_of_trees(o.cluster.speculation.speculative_tree, o.defaults.rule));
  // Reports are written at the end, perhaps after weeks, so their paths are checked now.
  if (!o.files.report.empty()) RETURN_IF_ERROR(TemporaryFile::check(o.files.report).in("--report"));
  if (!o.files.trace.empty()) RETURN_IF_ERROR(TemporaryFile::check(o.files.trace).in("--trace"));
  return {};
}

Result<std::vector<std::string>> read_api_keys(const std::string& file) {
  std::vector<std::string> keys;
  if (file.empty()) return keys;
  const auto wrong = [&file](const std::string& what) {
    return invalid_argument(fmt::format("--api-key-file {}: {}", file, what));
  };
  struct stat info {};
  std::ifstream in(file);
  if (!in || stat(file.c_str(), &info) != 0) return wrong(std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return wrong("is a directory; name a file in it");
  if (may_be_read_by_others(info))
    return wrong(
        fmt::format("others may read this key; run chmod 600 {}, or give it mode 0440, root or you as its "
                    "owner and a group of yours",
                    file));
  for (std::string key; std::getline(in, key);) {
    if (key.ends_with('\r')) key.pop_back();
    if (!is_api_key(key) || keys.size() == kMaxKeys)
      return wrong(
          "each line must be one key of visible ASCII characters, as `openssl rand -hex 32` makes; a "
          "thousand "
          "at most");
    keys.push_back(std::move(key));
  }
  if (keys.empty()) return wrong("there is no key in it");
  return keys;
}

std::string explain_exposure(const ServeOptions& o) {
  if (is_loopback(o.host) || !o.api_key_file.empty() || !o.api_keys.empty()) return {};
  return fmt::format(
      "outrider: WARNING: --host {} lets every machine that reaches this one send requests, read the metrics "
      "and fill "
      "the queue: there is no --api-key-file\n",
      o.host);
}

}  // namespace outrider
