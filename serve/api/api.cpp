#include "serve/api/api.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>

#include "base/json_file.h"
#include "base/json_text.h"
#include "base/shortened.h"
#include "base/version.h"
#include "serve/api/access.h"
#include "serve/api/answer.h"
#include "serve/api/format.h"
#include "serve/api/request.h"
#include "serve/api/slow_lane.h"
#include "serve/api/structure.h"
#include "serve/monitor/metrics_text.h"
#include "serve/monitor/span_exporter.h"
#include "serve/monitor/status.h"
#include "start/describe.h"
#include "start/flags/options.h"
#include "text/chat_template/chat_template.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr const char* kJson = "application/json";

// The error of a request that was refused before it reached the engine.
ApiError request_error(const Status& status) {
  if (status.code() == StatusCode::kNotFound)
    return {.status = 404, .message = status.message(), .param = "model", .code = "model_not_found"};
  if (status.code() == StatusCode::kUnavailable)  // of the operator, not of the request
    return {.status = 501,
            .message = status.message(),
            .param = param_of(status.message()),
            .code = "no_grammar_library"};
  if (status.code() == StatusCode::kDeadlineExceeded)
    return {.status = 503, .message = status.message(), .param = param_of(status.message())};
  const bool is_too_long = status.code() == StatusCode::kResourceExhausted;
  const bool names_field = status.code() != StatusCode::kMalformed;
  return {.status = 400,
          .message = status.message(),
          .param = names_field ? param_of(status.message()) : "",
          .code = is_too_long ? "context_length_exceeded" : ""};
}

uint64_t random_seed() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

std::string loading(const EngineStatus& status) {
  return status.reason.empty() ? "Loading model" : status.reason;
}

// Decodes %XX in a path. An invalid escape stays.
std::string unescaped(std::string_view path) {
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    unsigned char byte = 0;
    const char *const begin = path.data() + i + 1, *const end = begin + 2;
    const bool is_escaped =
        path[i] == '%' && i + 2 < path.size() && std::from_chars(begin, end, byte, 16).ptr == end;
    out += is_escaped ? static_cast<char>(byte) : path[i];
    if (is_escaped) i += 2;
  }
  return out;
}

class ServedApi final : public Api {
 public:
  ServedApi(const ServeOptions& options, const Preparation& prepared,
            Result<std::unique_ptr<ChatTemplate>> chat, std::unique_ptr<GrammarCompiler> grammars,
            std::vector<std::string> api_keys, const ResponseCounts& responses, Engine& engine,
            std::optional<BackgroundSetup> background, std::shared_ptr<SpanExporter> spans)
      : options_(options),
        prepared_(prepared),
        chat_(std::move(chat)),
        grammars_(std::move(grammars)),
        access_(std::move(api_keys), is_loopback(options.host)),
        responses_(responses),
        engine_(engine),
        spans_(std::move(spans)),
        builder_(model_with_grammars()),
        models_(options.served_model_names),
        started_(std::chrono::system_clock::now()) {
    if (models_.empty()) models_.push_back(model_display_name(options.cluster.models));
    if (background)
      background_.emplace(BackgroundLimits{.responses = static_cast<size_t>(options.max_stored_responses),
                                           .age = std::chrono::seconds(options.stored_response_age_s)},
                          std::move(background->journal), engine, *prepared.tokenizer,
                          [this](const json& body, const std::string& text) {
                            return read(ApiKind::kResponses, body, text);
                          });
  }

  Status check_defaults() const { return builder_.check_defaults(options_.defaults); }
  void handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override;
  void resume() override {
    if (background_) background_->resume();
  }
  void hand_over() override {
    if (background_) background_->hand_over();
  }

 private:
  using Shared = std::shared_ptr<HttpReply>;
  struct Route {
    std::string_view path, method;
    bool is_open;   // to clients without the key
    bool has_more;  // the path continues after this
    void (ServedApi::*answer)(const HttpRequest&, const Shared&);
  };
  static const Route kRoutes[];

  void health(const HttpRequest&, const Shared& reply);
  void live(const HttpRequest&, const Shared& reply);
  void ready(const HttpRequest&, const Shared& reply);
  bool is_healthy(const Shared& reply) const;
  std::string journal_fault() const { return background_ ? background_->journal_fault() : ""; }
  void version(const HttpRequest&, const Shared& reply);
  void models(const HttpRequest& request, const Shared& reply);
  void model(const HttpRequest& request, const Shared& reply);
  void page(const HttpRequest&, const Shared& reply);
  void status(const HttpRequest&, const Shared& reply);
  void metrics(const HttpRequest&, const Shared& reply);
  void tokenize(const HttpRequest& request, const Shared& reply);
  void count_tokens(const HttpRequest& request, const Shared& reply);
  void detokenize(const HttpRequest& request, const Shared& reply);
  void tokenizer_info(const HttpRequest&, const Shared& reply);
  void completions(const HttpRequest& request, const Shared& reply) {
    complete(ApiKind::kCompletion, request, reply);
  }
  void chat_completions(const HttpRequest& request, const Shared& reply) {
    complete(ApiKind::kChat, request, reply);
  }
  void messages(const HttpRequest& request, const Shared& reply) {
    complete(ApiKind::kMessages, request, reply);
  }
  void responses(const HttpRequest& request, const Shared& reply) {
    complete(ApiKind::kResponses, request, reply);
  }
  void stored_response(const HttpRequest& request, const Shared& reply);
  void delete_response(const HttpRequest& request, const Shared& reply);
  void cancel_response(const HttpRequest& request, const Shared& reply);
  void complete(ApiKind kind, const HttpRequest& request, const Shared& reply);
  void answer(ApiKind kind, const json& body, const HttpRequest& request, const Shared& reply);
  Result<ApiRequest> read(ApiKind kind, const json& body, const std::string& text) const;
  RequestModel model_with_grammars() const {
    RequestModel model =
        request_model(options_.cluster.models, options_.cluster.speculation, prepared_, chat_);
    model.grammars = grammars_.get();
    model.is_shared = true;
    model.max_num_speculative_tokens = std::max(
        options_.max_num_speculative_tokens, options_.cluster.speculation.num_speculative_tokens.value_or(0));
    return model;
  }
  decltype(AnswerOptions::trace) trace_of(ApiKind kind, const std::string& model,
                                          const HttpRequest& request) const;
  Result<json> tokenized(const std::string& body) const;
  Result<json> counted(const std::string& body) const;
  Result<json> detokenized(const std::string& body) const;
  json model_json(const std::string& name) const;
  double uptime_s() const {
    return std::chrono::duration<double>(std::chrono::system_clock::now() - started_).count();
  }
  static void send(HttpReply& reply, const Result<json>& body) {
    body.ok() ? reply.send(200, kJson, json_text(*body)) : send_error(reply, request_error(body.status()));
  }

  const ServeOptions& options_;
  const Preparation& prepared_;
  const Result<std::unique_ptr<ChatTemplate>> chat_;
  const std::unique_ptr<GrammarCompiler> grammars_;
  const ApiAccess access_;
  const ResponseCounts& responses_;
  Engine& engine_;
  const std::shared_ptr<SpanExporter> spans_;  // null: requests are not traced
  const RequestBuilder builder_;
  std::vector<std::string> models_;
  const std::chrono::system_clock::time_point started_;
  // These end first: their tasks use the other members.
  std::optional<Background> background_;  // its thread reads requests
  SlowLane slow_lane_{"grammars"}, writers_{"answers"};
};

const ServedApi::Route ServedApi::kRoutes[] = {
    {"/", "GET", true, false, &ServedApi::page},
    {"/health", "GET", true, false, &ServedApi::health},
    {"/ping", "GET", true, false, &ServedApi::health},
    {"/live", "GET", true, false, &ServedApi::live},
    {"/ready", "GET", true, false, &ServedApi::ready},
    {"/version", "GET", false, false, &ServedApi::version},
    {"/metrics", "GET", false, false, &ServedApi::metrics},
    {"/status", "GET", false, false, &ServedApi::status},
    {"/v1/models", "GET", false, false, &ServedApi::models},
    {"/v1/models/", "GET", false, true, &ServedApi::model},
    {"/v1/completions", "POST", false, false, &ServedApi::completions},
    {"/v1/chat/completions", "POST", false, false, &ServedApi::chat_completions},
    {"/v1/messages", "POST", false, false, &ServedApi::messages},
    {"/v1/messages/count_tokens", "POST", false, false, &ServedApi::count_tokens},
    {"/v1/responses", "POST", false, false, &ServedApi::responses},
    {"/v1/responses/", "GET", false, true, &ServedApi::stored_response},
    {"/v1/responses/", "DELETE", false, true, &ServedApi::delete_response},
    {"/v1/responses/", "POST", false, true, &ServedApi::cancel_response},
    {"/tokenize", "POST", false, false, &ServedApi::tokenize},
    {"/detokenize", "POST", false, false, &ServedApi::detokenize},
    {"/tokenizer_info", "GET", false, false, &ServedApi::tokenizer_info},
};

void ServedApi::handle(HttpRequest request, Shared reply) {
  const auto is_here = [&](const Route& r) {
    return r.has_more ? request.path.starts_with(r.path) : request.path == r.path;
  };
  auto route = std::find_if(std::begin(kRoutes), std::end(kRoutes), is_here);
  const bool is_known = route != std::end(kRoutes);
  std::string methods, allowed;  // of the path
  for (const Route& r : kRoutes) {
    if (!is_here(r)) continue;
    methods += fmt::format("{}, ", r.method);
    allowed += r.method == "GET" ? "GET, HEAD, " : fmt::format("{}, ", r.method);
    if (r.method == request.method) route = &r;
  }
  allowed += "OPTIONS";
  // A page's browser asks, without the key, whether the page has access.
  if (is_known && request.method == "OPTIONS" && request.is_allowed_origin)
    return reply->send(204, "", "",
                       {{"Access-Control-Allow-Methods", methods + "OPTIONS"},
                        {"Access-Control-Allow-Headers", request.requested_headers},
                        {"Access-Control-Max-Age", "86400"}});
  if (const auto refusal = access_.refusal(request, !is_known || !route->is_open))
    return send_error(*reply, *refusal);
  if (!is_known)
    return send_error(
        *reply, {.status = 404, .message = fmt::format("there is no {} here", request.path.substr(0, 100))});
  if (request.method == "OPTIONS") return reply->send(204, "", "", {{"Allow", allowed}});
  if (request.method != route->method)
    return send_error(*reply,
                      {.status = 405,
                       .message = fmt::format("{} takes {}, not {}", route->path,
                                              methods.substr(0, methods.size() - 2), request.method)},
                      {{"Allow", allowed}});
  (this->*route->answer)(request, reply);
}

// False: sends the reason.
bool ServedApi::is_healthy(const Shared& reply) const {
  const EngineStatus status = engine_.status();
  const auto refuse = [&](std::string message, const char* code) {
    send_error(*reply, {.status = 503, .message = std::move(message), .code = code});
    return false;
  };
  switch (status.state) {
    case EngineState::kReady:
      return true;
    case EngineState::kLoading:
      return refuse(loading(status), "loading");
    case EngineState::kDraining:
      return refuse("the server stops", "draining");
    case EngineState::kNoTarget:
      return refuse(status.reason, "no_target");
    case EngineState::kFailed:
      return refuse(status.reason, "failed");
  }
  return false;
}

// Whether requests are accepted.
void ServedApi::health(const HttpRequest&, const Shared& reply) {
  if (!is_healthy(reply)) return;
  const EngineNumbers numbers = engine_.numbers();
  const int64_t workers = numbers.draft_workers, groups = numbers.overview.groups_here();
  json reasons = missing_members(numbers, options_.cluster.speculates());
  if (const std::string fault = journal_fault(); !fault.empty()) reasons.push_back(fault);
  send(*reply, json{{"status", "ok"},
                    {"draft_workers", workers},
                    {"target_groups", groups},
                    {"degraded", !reasons.empty()},
                    {"degraded_by", std::move(reasons)}});
}

// Readiness: whether a new request would be computed. For load balancers.
void ServedApi::ready(const HttpRequest&, const Shared& reply) {
  if (!is_healthy(reply)) return;
  if (!engine_.numbers().overview.can_decode())
    return send_error(
        *reply, {.status = 503, .message = "requests wait for a target group to join", .code = "no_target"});
  send(*reply, json{{"status", "ok"}});
}

// Liveness: fails only if a restart of the server would help. For process supervisors.
void ServedApi::live(const HttpRequest&, const Shared& reply) {
  const EngineStatus status = engine_.status();
  if (status.state == EngineState::kFailed)
    return send_error(*reply, {.status = 503, .message = status.reason, .code = "failed"});
  send(*reply, json{{"status", state_name(status.state)}});
}

void ServedApi::version(const HttpRequest&, const Shared& reply) {
  send(*reply, json{{"version", kVersion}});
}

json ServedApi::model_json(const std::string& name) const {
  const auto age = std::chrono::duration_cast<std::chrono::seconds>(started_.time_since_epoch());
  return {{"id", name},
          {"object", "model"},
          {"created", age.count()},
          {"owned_by", "outrider"},
          {"root", options_.cluster.models.model},
          {"max_model_len", prepared_.max_model_len}};
}

void ServedApi::models(const HttpRequest&, const Shared& reply) {
  json list = json::array();
  for (const std::string& name : models_) list.push_back(model_json(name));
  send(*reply, json{{"object", "list"}, {"data", std::move(list)}});
}

// Names may contain slashes, plain or as %2F.
void ServedApi::model(const HttpRequest& request, const Shared& reply) {
  const std::string name = unescaped(request.path.substr(std::string_view("/v1/models/").size()));
  if (std::find(models_.begin(), models_.end(), name) == models_.end())
    return send_error(*reply, {.status = 404,
                               .message = fmt::format("there is no model {}; GET /v1/models lists those that "
                                                      "are served",
                                                      name.substr(0, 100)),
                               .param = "model",
                               .code = "model_not_found"});
  send(*reply, model_json(name));
}

void ServedApi::page(const HttpRequest&, const Shared& reply) {
  reply->send(
      200, "text/html; charset=utf-8", std::string(status_page()),
      {{"Content-Security-Policy",
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"}});
}

void ServedApi::status(const HttpRequest&, const Shared& reply) {
  send(*reply, status_json(engine_.numbers(), engine_.status(),
                           {.model = models_.front(),
                            .policy = options_.cluster.speculation.policy(),
                            .max_num_seqs = int64_t{options_.cluster.models.data_parallel_size} *
                                            options_.cluster.models.max_num_seqs,
                            .max_queued_requests = options_.max_queued_requests,
                            .uptime_s = uptime_s(),
                            .journal_fault = journal_fault(),
                            .responses = responses_}));
}

void ServedApi::metrics(const HttpRequest&, const Shared& reply) {
  reply->send(200, "text/plain; version=0.0.4; charset=utf-8",
              metrics_text(engine_.numbers(), {.model = models_.front(),
                                               .policy = options_.cluster.speculation.policy(),
                                               .vllm_names = options_.metrics_compat_vllm,
                                               .responses = &responses_,
                                               .background = background_ ? &background_->counts() : nullptr,
                                               .spans = spans_ ? &spans_->counts() : nullptr}));
}

Result<json> ServedApi::tokenized(const std::string& text) const {
  ASSIGN_OR_RETURN(const json body, read_body(text));
  RETURN_IF_ERROR(read_model(body, models_).status());
  ASSIGN_OR_RETURN(const auto ids, read_tokenize(body, text, builder_));
  json tokens = json::array();
  for (const TokenId id : ids) tokens.push_back(id.value());
  return json{
      {"tokens", std::move(tokens)}, {"count", ids.size()}, {"max_model_len", prepared_.max_model_len}};
}

Result<json> ServedApi::detokenized(const std::string& text) const {
  ASSIGN_OR_RETURN(const json body, read_body(text));
  RETURN_IF_ERROR(read_model(body, models_).status());
  ASSIGN_OR_RETURN(std::string prompt, read_detokenize(body, builder_));
  return json{{"prompt", std::move(prompt)}};
}

// Anthropic's: the number of tokens of a message.
Result<json> ServedApi::counted(const std::string& text) const {
  ASSIGN_OR_RETURN(const json body, read_body(text));
  RETURN_IF_ERROR(read_model(body, models_).status());
  ASSIGN_OR_RETURN(const auto ids, read_count_tokens(body, text, builder_));
  return json{{"input_tokens", ids.size()}};
}

void ServedApi::count_tokens(const HttpRequest& request, const Shared& reply) {
  send(*reply, counted(request.body));
}
void ServedApi::tokenize(const HttpRequest& request, const Shared& reply) {
  send(*reply, tokenized(request.body));
}
void ServedApi::detokenize(const HttpRequest& request, const Shared& reply) {
  send(*reply, detokenized(request.body));
}

// The model's tokenizer_config.json, if it exists, with the chat template in use here.
void ServedApi::tokenizer_info(const HttpRequest&, const Shared& reply) {
  const Tokenizer& tokenizer = *prepared_.tokenizer;
  const auto file = std::filesystem::path(options_.cluster.models.model) / "tokenizer_config.json";
  std::error_code ignored;
  json info = json::object();
  if (std::filesystem::exists(file, ignored))
    if (auto config = read_json_file(file); config.ok() && config->is_object()) info = *std::move(config);
  if (!builder_.chat_template().empty()) info["chat_template"] = builder_.chat_template();
  info["vocab_size"] = tokenizer.vocab_size();
  if (const auto bos = tokenizer.bos(); bos && !info.contains("bos_token"))
    info["bos_token"] = tokenizer.token(*bos);
  send(*reply, info);
}

Result<ApiRequest> ServedApi::read(ApiKind kind, const json& body, const std::string& text) const {
  const ApiDefaults defaults{.params = options_.defaults,
                             .models = models_,
                             .synthetic_acceptance = options_.cluster.speculation.synthetic_acceptance,
                             .seed = random_seed(),
                             .limits = options_.api_limits,
                             .timeout = milliseconds_of(options_.request_timeout_s),
                             .lists_rounds = options_.lists_rounds,
                             .parts_thoughts = options_.parts_thoughts,
                             .drafts = options_.cluster.speculates(),
                             .text = text};
  return read_api_request(kind, body, defaults, builder_);
}

// Paths of background responses: /v1/responses/ID and, to cancel one, /v1/responses/ID/cancel.
void ServedApi::stored_response(const HttpRequest& request, const Shared& reply) {
  const std::string id = request.path.substr(std::string_view("/v1/responses/").size());
  if (!background_) return send_error(*reply, {.status = 404, .message = "no responses are stored here"});
  if (request.query.find("stream=true") != std::string::npos)
    return send_error(*reply, {.status = 400,
                               .message = "a background response is no stream; leave \"stream\" out, and ask "
                                          "again until its status is completed",
                               .param = "stream"});
  background_->get(id, reply);
}
void ServedApi::delete_response(const HttpRequest& request, const Shared& reply) {
  const std::string id = request.path.substr(std::string_view("/v1/responses/").size());
  if (!background_) return send_error(*reply, {.status = 404, .message = "no responses are stored here"});
  background_->remove(id, reply);
}
void ServedApi::cancel_response(const HttpRequest& request, const Shared& reply) {
  constexpr std::string_view kCancel = "/cancel";
  std::string id = request.path.substr(std::string_view("/v1/responses/").size());
  if (!background_ || !id.ends_with(kCancel))
    return send_error(*reply,
                      {.status = 404,
                       .message = fmt::format("there is no POST {}; POST /v1/responses/ID/cancel ends "
                                              "a background response",
                                              shortened(request.path))});
  id.resize(id.size() - kCancel.size());
  background_->cancel(id, reply);
}

// A request with a structure goes to the slow lane, so that compiling its grammar delays no other request.
void ServedApi::complete(ApiKind kind, const HttpRequest& request, const Shared& reply) {
  if (const EngineStatus status = engine_.status(); status.state == EngineState::kLoading)
    return send_error(*reply, {.status = 503, .message = loading(status), .code = "loading"},
                      {{"Retry-After", "5"}});
  auto body = read_body(request.body);
  if (!body.ok()) return send_error(*reply, request_error(body.status()));
  if (!asks_for_structure(*body)) return answer(kind, *body, request, reply);
  const auto is_gone = std::make_shared<std::atomic<bool>>(false);
  reply->on_gone([is_gone] { *is_gone = true; });
  slow_lane_.add(access_.turn_of(request), [this, kind, body = std::move(*body), request, reply, is_gone] {
    if (!*is_gone) answer(kind, body, request, reply);
  });
}

void ServedApi::answer(ApiKind kind, const json& body, const HttpRequest& request, const Shared& reply) {
  const bool waits_for_no_answer =
      background_ && kind == ApiKind::kResponses && body.value("background", json()) == json(true);
  if (const json background = body.value("background", json());
      kind == ApiKind::kResponses && background_ && !background.is_null() && !background.is_boolean())
    return send_error(
        *reply, {.status = 400, .message = "\"background\" must be true or false", .param = "background"});
  if (waits_for_no_answer && body.value("store", json()) == json(false))
    return send_error(*reply,
                      {.status = 400,
                       .message = "\"store\" is false, but a background response is stored until it is "
                                  "fetched and deleted; leave \"store\" out, or \"background\"",
                       .param = "store"});
  json own = body;
  if (waits_for_no_answer) own.erase("background");
  auto read_request = read(kind, own, request.body);
  if (!read_request.ok()) return send_error(*reply, request_error(read_request.status()));
  if (waits_for_no_answer) {
    if (read_request->stream)
      return send_error(*reply, {.status = 400,
                                 .message = "\"stream\" and \"background\" exclude each other here; leave "
                                            "\"stream\" out, and GET /v1/responses/ID",
                                 .param = "stream"});
    return background_->create(std::move(read_request).value(), request.body, access_.turn_of(request),
                               reply);
  }
  auto trace = trace_of(kind, read_request->model, request);
  const auto answer =
      std::make_shared<ApiAnswer>(std::move(read_request).value(), reply, *prepared_.tokenizer,
                                  AnswerOptions{.keep_alive = milliseconds_of(options_.keep_alive_s),
                                                .writers = &writers_,
                                                .trace = std::move(trace)});
  reply->later(
      [answer, &engine = engine_, client = access_.turn_of(request)] { answer->submit(engine, client); });
}

// The choices of a request share its trace. A request of a trace that is not sampled is not recorded; without
// a traceparent every request is, as by OpenTelemetry's sampler parentbased_always_on.
decltype(AnswerOptions::trace) ServedApi::trace_of(ApiKind kind, const std::string& model,
                                                   const HttpRequest& request) const {
  if (!spans_) return {};
  TracedRequest about{.operation = kind == ApiKind::kCompletion ? "text_completion" : "chat",
                      .model = model,
                      .request_id = request.request_id};
  if (const auto parent = parse_traceparent(request.traceparent, request.tracestate)) {
    if (!parent->is_sampled) return {};
    about.parent = *parent;
  } else {
    about.parent.trace_id = fmt::format("{:016x}{:016x}", random_seed() | 1, random_seed());
  }
  return [about, spans = spans_](std::shared_ptr<RequestSink> sink, size_t choice, const Request& asked) {
    TracedRequest own = about;
    own.choice = choice;
    own.max_tokens = asked.max_tokens;
    own.temperature = asked.sampling.temperature;
    own.top_p = asked.sampling.top_p;
    return traced_sink(std::move(sink), std::move(own), spans);
  };
}

}  // namespace

bool Api::is_quick(const HttpRequest& request) { return request.method != "POST"; }

Result<std::unique_ptr<Api>> make_api(const ServeOptions& options, const Preparation& prepared,
                                      Result<std::unique_ptr<ChatTemplate>> chat,
                                      std::vector<std::string> api_keys, const ResponseCounts& responses,
                                      Engine& engine, std::optional<BackgroundSetup> background,
                                      std::shared_ptr<SpanExporter> spans) {
  ASSIGN_OR_RETURN(auto grammars, make_grammars(prepared, options.grammar_library));
  if (const auto library = grammars->library_file(); library.ok() && !options.cluster.quiet)
    std::fprintf(stderr, "outrider: structured output uses %s\n", library->c_str());
  else if (!library.ok() && !options.cluster.quiet && chat.ok() && tool_format_of((*chat)->source()).ok())
    std::fputs(
        "outrider: there is no llguidance: forms, and tools that must be called or are strict, are refused "
        "with "
        "501; run `pip install llguidance` and start again, or give --grammar-library FILE\n",
        stderr);
  auto api = std::make_unique<ServedApi>(options, prepared, std::move(chat), std::move(grammars),
                                         std::move(api_keys), responses, engine, std::move(background),
                                         std::move(spans));
  RETURN_IF_ERROR(api->check_defaults());
  return std::unique_ptr<Api>(std::move(api));
}

}  // namespace outrider
