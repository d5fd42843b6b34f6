// The OpenAI-compatible front: turns HTTP requests into requests of an engine and back. README.md beside this
// lists endpoints, fields and errors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "requests/request_params.h"
#include "requests/run_files.h"
#include "serve/engine.h"
#include "serve/http/server.h"
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
  std::string api_key_file;                     // empty: everybody may ask
  int max_queued_requests = 128;
  int64_t max_queued_tokens = int64_t{1} << 20;  // of prompts
  int drain_timeout_s = 30;
  bool metrics_compat_vllm = false;  // /metrics also under vLLM's names
  HttpLimits limits;
};

// Answers from the moment the server listens, with 503 until the engine is ready. `engine`, `options` and
// `prepared` outlive it. Thread-safe.
class Api {
 public:
  virtual ~Api() = default;
  virtual void handle(HttpRequest request, std::shared_ptr<HttpReply> reply) = 0;
};

// `api_key`: empty, or what clients must send as a bearer token (not for /health).
Result<std::unique_ptr<Api>> make_api(const ServeOptions& options, const Preparation& prepared,
                                      Result<std::unique_ptr<ChatTemplate>> chat, std::string api_key,
                                      Engine& engine);

}  // namespace outrider
