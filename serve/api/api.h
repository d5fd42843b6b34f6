// The OpenAI-compatible front end: turns HTTP requests into requests of an engine, and results into answers.
// README.md in serve/ lists endpoints, fields and errors.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "requests/request_params.h"
#include "requests/run_files.h"
#include "serve/api/background.h"
#include "serve/api/request.h"
#include "serve/engine/engine.h"
#include "serve/http/server.h"
#include "serve/monitor/response_counts.h"
#include "start/prepare.h"
#include "start/settings.h"

namespace outrider {

class ChatTemplate;
class SpanExporter;

struct ServeOptions {
  ClusterSettings cluster;
  RequestParams defaults;                  // values of fields that requests leave out
  std::string generation_config = "none";  // auto: generation_config.json sets defaults that no flag sets
  RunFiles files;                          // reports only
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::vector<std::string> served_model_names;  // empty: --model as it was given
  // Keys that clients may send; both empty: no key is required.
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::string chat_template;                 // a file, instead of the model's
  std::vector<std::string> grammar_library;  // GrammarOptions::libraries
  int max_queued_requests = 1024;
  int64_t max_queued_tokens = int64_t{1} << 20;  // of prompts
  int drain_timeout_s = 30;
  int max_num_speculative_tokens = kDefaultGammaMax;  // limit for requests
  bool metrics_compat_vllm = false;                   // /metrics also under vLLM's names
  bool lists_rounds = false;                          // replies have the drafts of every round
  bool parts_thoughts = true;                         // reasoning of chats is apart from their content
  ApiLimits api_limits;
  double request_timeout_s = 0;  // of requests without their own; 0: none
  double keep_alive_s = 10;      // interval of comments until a stream's first event; 0: none
  std::vector<std::string> trusted_proxies;
  std::string otlp_endpoint;          // empty: that of the environment, if any
  std::string access_log;             // empty: none; "-": standard error
  std::string journal;                // directory of background responses; empty: they are in memory only
  bool standby = false;               // starts when the server that uses the journal has ended
  int max_stored_responses = 1000;    // finished ones in the background
  int stored_response_age_s = 86400;  // of these
  HttpOptions http;
};

// Answers from the moment the server listens, with 503 until the engine is ready. `engine`, `options` and
// `prepared` outlive it. Thread-safe.
class Api {
 public:
  virtual ~Api() = default;
  virtual void handle(HttpRequest request, std::shared_ptr<HttpReply> reply) = 0;
  // The engine takes requests from now on: background requests of the journal run again.
  virtual void resume() = 0;
  // The server stops: background requests stay in the journal, if there is one.
  virtual void hand_over() = 0;
  // Whether the request takes microseconds, whatever the engine does.
  static bool is_quick(const HttpRequest& request);
};

// Background responses are possible; without a journal they end with the process.
struct BackgroundSetup {
  std::optional<BackgroundJournal> journal;
};

// `api_keys`: clients must send one (not for /health); empty: no key is required. `responses`: counts of
// answers, for /metrics; must outlive the result. `spans`: null: requests are not traced.
Result<std::unique_ptr<Api>> make_api(const ServeOptions& options, const Preparation& prepared,
                                      Result<std::unique_ptr<ChatTemplate>> chat,
                                      std::vector<std::string> api_keys, const ResponseCounts& responses,
                                      Engine& engine, std::optional<BackgroundSetup> background = {},
                                      std::shared_ptr<SpanExporter> spans = {});

}  // namespace outrider
