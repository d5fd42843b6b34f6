// The OpenAI-compatible front: turns HTTP requests into requests of an engine and back. README.md beside this
// lists endpoints, fields and errors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "requests/request_params.h"
#include "requests/run_files.h"
#include "serve/api/request.h"
#include "serve/engine.h"
#include "serve/http/server.h"
#include "serve/response_counts.h"
#include "start/prepare.h"
#include "start/settings.h"

namespace outrider {

class ChatTemplate;

struct ServeOptions {
  ClusterSettings cluster;
  RequestParams defaults;                  // what requests get that do not say
  std::string generation_config = "none";  // auto: generation_config.json says what no flag does
  RunFiles files;                          // reports only
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::vector<std::string> served_model_names;  // empty: --model as it was written
  // Keys that clients may send; none in either: everybody may ask.
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::string chat_template;                 // a file, instead of the model's
  std::vector<std::string> grammar_library;  // GrammarOptions::libraries
  int max_queued_requests = 1024;
  int64_t max_queued_tokens = int64_t{1} << 20;  // of prompts
  int drain_timeout_s = 30;
  int max_num_speculative_tokens = kDefaultGammaMax;  // that a request may ask for
  bool metrics_compat_vllm = false;                   // /metrics also under vLLM's names
  ApiLimits api_limits;
  double request_timeout_s = 0;  // of requests that do not say; 0: none
  double keep_alive_s = 10;      // a comment so often until a stream's first event; 0: none
  std::vector<std::string> trusted_proxies;
  std::string access_log;  // empty: none; "-": standard error
  HttpOptions http;
};

// Answers from the moment the server listens, with 503 until the engine is ready. `engine`, `options` and
// `prepared` outlive it. Thread-safe.
class Api {
 public:
  virtual ~Api() = default;
  virtual void handle(HttpRequest request, std::shared_ptr<HttpReply> reply) = 0;
  // Whether that takes microseconds, whatever the engine does.
  static bool is_quick(const HttpRequest& request);
};

// `api_keys`: one of them clients must send (not for /health); none: nothing.
// `responses`: what was answered so far, for /metrics; outlives it.
Result<std::unique_ptr<Api>> make_api(const ServeOptions& options, const Preparation& prepared,
                                      Result<std::unique_ptr<ChatTemplate>> chat,
                                      std::vector<std::string> api_keys, const ResponseCounts& responses,
                                      Engine& engine);

}  // namespace outrider
