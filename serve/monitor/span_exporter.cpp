#include "serve/monitor/span_exporter.h"

#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cctype>
#include <charconv>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/json_text.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/threads.h"

namespace outrider {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Endpoints = tcp::resolver::results_type;

constexpr std::chrono::milliseconds kGather{500};  // so that requests share a POST
constexpr std::chrono::milliseconds kSpanFarewell{500};
constexpr std::chrono::milliseconds kSlice{20};  // between two looks at the time to stop
constexpr std::chrono::minutes kBetweenWarnings{1};

// Decodes %XX; an invalid escape stays.
std::string decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* const begin = text.data() + i + 1;
    const bool is_escape =
        text[i] == '%' && i + 2 < text.size() && std::from_chars(begin, begin + 2, byte, 16).ptr == begin + 2;
    out += is_escape ? static_cast<char>(byte) : text[i];
    if (is_escape) i += 2;
  }
  return out;
}

// "key=value,key=value", as OTEL_RESOURCE_ATTRIBUTES and OTEL_EXPORTER_OTLP_HEADERS have it. Parts without a
// key are left out.
std::map<std::string, std::string> key_values(std::string_view text) {
  std::map<std::string, std::string> out;
  const auto trimmed = [](std::string_view part) {
    const size_t from = part.find_first_not_of(' ');
    if (from == std::string_view::npos) return std::string_view();
    return part.substr(from, part.find_last_not_of(' ') + 1 - from);
  };
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view pair = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos || trimmed(pair.substr(0, equals)).empty()) continue;
    out[decoded(trimmed(pair.substr(0, equals)))] = decoded(trimmed(pair.substr(equals + 1)));
  }
  return out;
}

// http://HOST[:PORT][/PATH].
Status read_url(std::string_view url, OtlpTarget& out) {
  constexpr std::string_view kHttp = "http://";
  if (url.starts_with("https://"))
    return unsupported(
        "https is not supported; name a collector on this machine, which may send on with TLS");
  if (!url.starts_with(kHttp)) return invalid_argument("must be http://HOST:PORT");
  url.remove_prefix(kHttp.size());
  const size_t slash = std::min(url.find('/'), url.size());
  std::string_view address = url.substr(0, slash);
  out.path = std::string(url.substr(slash));
  out.port = "4318";
  if (address.starts_with('[')) {
    const size_t end = address.find(']');
    if (end == std::string_view::npos) return invalid_argument("has no ] after the address");
    out.host = std::string(address.substr(1, end - 1));
    address.remove_prefix(end + 1);
  } else {
    out.host = std::string(address.substr(0, address.find(':')));
    address.remove_prefix(out.host.size());
  }
  if (address.starts_with(':')) out.port = std::string(address.substr(1));
  uint16_t port = 0;
  const char* const end = out.port.data() + out.port.size();
  if (std::from_chars(out.port.data(), end, port).ptr != end || port == 0)
    return invalid_argument(fmt::format("has no port number after the host: '{}'", out.port));
  if (out.host.empty()) return invalid_argument("names no host");
  const auto is_bad = [](unsigned char c) { return c <= ' ' || c == 0x7f; };
  if (std::any_of(url.begin(), url.end(), is_bad)) return invalid_argument("has blanks");
  return {};
}

// All but the address.
Status read_settings(const std::function<std::string(const char*)>& environment, OtlpTarget& out) {
  out.headers = key_values(environment("OTEL_EXPORTER_OTLP_HEADERS"));
  for (const auto& [key, value] : out.headers)
    for (const unsigned char c : key + value)
      if (c < ' ' || c == 0x7f)
        return invalid_argument("OTEL_EXPORTER_OTLP_HEADERS has characters that no header may have");
  out.resource = key_values(environment("OTEL_RESOURCE_ATTRIBUTES"));
  if (const std::string name = environment("OTEL_SERVICE_NAME"); !name.empty())
    out.resource["service.name"] = name;
  out.resource.try_emplace("service.name", "outrider");
  if (const std::string timeout = environment("OTEL_EXPORTER_OTLP_TIMEOUT"); !timeout.empty()) {
    int64_t ms = 0;
    const char* const end = timeout.data() + timeout.size();
    if (std::from_chars(timeout.data(), end, ms).ptr != end || ms < 1 || ms > 3'600'000)
      return invalid_argument(fmt::format("OTEL_EXPORTER_OTLP_TIMEOUT '{}' must be milliseconds", timeout));
    out.timeout = std::chrono::milliseconds(ms);
  }
  return {};
}

// A look-up may take long and cannot be ended. Its thread is therefore detached, and shares only the result.
// Throws NoThread.
std::future<Endpoints> look_up(const std::string& host, const std::string& port) {
  std::packaged_task<Endpoints()> task([host, port] {
    asio::io_context context;
    return tcp::resolver(context).resolve(host, port);
  });
  auto found = task.get_future();
  start_thread(std::move(task)).detach();
  return found;
}

// One POST; the status of the answer. Throws boost::system::system_error.
asio::awaitable<void> post(const OtlpTarget& target, const Endpoints& endpoints, const std::string& body,
                           int& status) {
  tcp::socket socket(co_await asio::this_coro::executor);
  co_await asio::async_connect(socket, endpoints, asio::use_awaitable);
  const bool is_ipv6 = target.host.find(':') != std::string::npos;
  std::string text = fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}{}{}:{}\r\nContent-Type: application/json\r\nUser-Agent: outrider\r\n"
      "Connection: close\r\nContent-Length: {}\r\n",
      target.path, is_ipv6 ? "[" : "", target.host, is_ipv6 ? "]" : "", target.port, body.size());
  for (const auto& [key, value] : target.headers) text += fmt::format("{}: {}\r\n", key, value);
  text += "\r\n" + body;
  co_await asio::async_write(socket, asio::buffer(text), asio::use_awaitable);
  constexpr size_t kMaxLine = 8192;
  std::string answer;
  co_await asio::async_read_until(socket, asio::dynamic_buffer(answer, kMaxLine), "\r\n",
                                  asio::use_awaitable);
  if (answer.starts_with("HTTP/1.") && answer.size() > 12)
    std::from_chars(answer.data() + 9, answer.data() + 12, status);
}

}  // namespace

Result<OtlpChoice> otlp_target(const std::string& flag,
                               const std::function<std::string(const char*)>& environment) {
  constexpr const char* kTraces = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
  constexpr const char* kAll = "OTEL_EXPORTER_OTLP_ENDPOINT";
  const char* const source = !flag.empty()                   ? "--otlp-endpoint"
                             : !environment(kTraces).empty() ? kTraces
                                                             : kAll;
  const std::string url = !flag.empty() ? flag : environment(source);
  OtlpChoice out;
  if (url.empty()) return out;
  OtlpTarget target;
  const Status address = read_url(url, target).in(fmt::format("{} {}", source, url));
  if (!flag.empty()) RETURN_IF_ERROR(address);
  const auto none = [&](std::string_view why) {
    out.warning = fmt::format("traces: none are sent: {}", why);
    return out;
  };
  std::string disabled = environment("OTEL_SDK_DISABLED");
  for (char& c : disabled) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (disabled == "true") return none("OTEL_SDK_DISABLED is true");
  const std::string exporter = environment("OTEL_TRACES_EXPORTER");  // one or more, separated by commas
  if (!exporter.empty() && exporter.find("otlp") == std::string::npos)
    return none(fmt::format("OTEL_TRACES_EXPORTER is {}", exporter));
  if (flag.empty()) {
    constexpr const char* kTracesProtocol = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL";
    const char* const variable =
        !environment(kTracesProtocol).empty() ? kTracesProtocol : "OTEL_EXPORTER_OTLP_PROTOCOL";
    const std::string protocol = environment(variable);
    if (protocol == "grpc") return none(fmt::format("{} is grpc; http/json is supported", variable));
    // A collector takes JSON at the address for http/protobuf too.
    if (!protocol.empty() && protocol != "http/json")
      out.warning = fmt::format("traces: {} is {}, but they are sent as http/json", variable, protocol);
  }
  if (!address.ok()) return none(address.message());
  if (source != kTraces) {  // the address of the collector, not of its traces
    while (target.path.ends_with('/')) target.path.pop_back();
    target.path += "/v1/traces";
  } else if (target.path.empty()) {
    target.path = "/";
  }
  if (const Status read = read_settings(environment, target); !read.ok()) return none(read.message());
  out.target = std::move(target);
  return out;
}

// ---- the thread -----------------------------------------------------------------------------------------

struct SpanExporter::State {
  OtlpTarget target;
  SpanCounts counts;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<TracedRequest> waiting;  // guarded by the mutex, as are the following members
  size_t waiting_spans = 0;           // at most
  std::optional<Clock::time_point> stop_by;

  // Used by the thread only.
  std::future<Endpoints> found;  // valid: the look-up under way, even one that a POST has given up
  std::optional<Clock::time_point> warned_at;
  int64_t told = 0;  // lost requests, at the last warning

  void run();
  std::deque<TracedRequest> next();
  void send(const std::deque<TracedRequest>& batch, const std::function<uint64_t()>& random);
  bool is_late(Clock::time_point begun);
  bool post_before_late(const std::string& body, int& status);
  std::string why_not_taken(const std::string& body);
};

// Empty: the exporter ends.
std::deque<TracedRequest> SpanExporter::State::next() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return !waiting.empty() || stop_by; });
  changed.wait_for(lock, kGather, [&] { return waiting_spans >= kSpansOfPost || stop_by; });
  if (stop_by && Clock::now() >= *stop_by) {
    counts.dropped += static_cast<int64_t>(waiting.size());
    waiting.clear();
    waiting_spans = 0;
  }
  std::deque<TracedRequest> batch;
  for (size_t spans = 0; !waiting.empty();) {
    const size_t more = most_spans(waiting.front());
    if (!batch.empty() && spans + more > kSpansOfPost) break;
    spans += more;
    waiting_spans -= more;
    batch.push_back(std::move(waiting.front()));
    waiting.pop_front();
  }
  return batch;
}

// Whether the POST that began then is given up.
bool SpanExporter::State::is_late(Clock::time_point begun) {
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(mutex);
  return now - begun >= target.timeout || (stop_by && now >= *stop_by);
}

// False: it is given up. Throws what stands in its way.
bool SpanExporter::State::post_before_late(const std::string& body, int& status) {
  const Clock::time_point begun = Clock::now();
  if (!found.valid()) found = look_up(target.host, target.port);
  while (found.wait_for(kSlice) != std::future_status::ready)
    if (is_late(begun)) return false;
  const Endpoints endpoints = found.get();
  bool is_done = false;
  asio::io_context context;
  asio::co_spawn(context, post(target, endpoints, body, status), [&](const std::exception_ptr& thrown) {
    is_done = true;
    if (thrown) std::rethrow_exception(thrown);
  });
  while (!is_done && !is_late(begun)) context.run_for(kSlice);
  return is_done;
}

// Empty: the collector has the spans.
std::string SpanExporter::State::why_not_taken(const std::string& body) {
  int status = 0;
  try {
    if (!post_before_late(body, status)) return "no answer in time";
  } catch (const std::exception& problem) {
    return problem.what();
  }
  return status >= 200 && status < 300 ? std::string() : fmt::format("its answer has status {}", status);
}

void SpanExporter::State::send(const std::deque<TracedRequest>& batch,
                               const std::function<uint64_t()>& random) {
  nlohmann::json spans = nlohmann::json::array();
  for (const TracedRequest& request : batch)
    for (nlohmann::json& span : spans_of(request, random)) spans.push_back(std::move(span));
  const auto count = static_cast<int64_t>(spans.size());
  const std::string why = why_not_taken(json_text(export_request(target.resource, std::move(spans))));
  if (why.empty()) {
    counts.sent += count;
    return;
  }
  counts.dropped += static_cast<int64_t>(batch.size());
  const auto now = Clock::now();
  if (warned_at && now - *warned_at < kBetweenWarnings) return;
  warned_at = now;
  told = counts.dropped;
  tell_error(fmt::format("traces: the collector at {}:{} did not take {} requests: {}; {} are lost so far",
                         target.host, target.port, batch.size(), why, told));
}

void SpanExporter::State::run() {
  set_thread_role("traces");
  sigset_t broken_pipe;  // a collector that leaves must not end the program
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  std::random_device seed;
  std::mt19937_64 generator(uint64_t{seed()} << 32 | seed());
  for (auto batch = next(); !batch.empty(); batch = next()) send(batch, [&] { return generator(); });
  if (const int64_t dropped = counts.dropped; dropped > told)
    tell_error(fmt::format("traces: at the end {} requests are lost", dropped));
}

// ---- any thread -----------------------------------------------------------------------------------------

SpanExporter::SpanExporter(OtlpTarget target) : state_(std::make_unique<State>()) {
  state_->target = std::move(target);
  thread_ = start_thread([state = state_.get()] { state->run(); });
}

SpanExporter::~SpanExporter() { finish(); }

void SpanExporter::finish() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop_by = Clock::now() + kSpanFarewell;
  }
  state_->changed.notify_all();
  thread_.join();
}

void SpanExporter::add(TracedRequest request) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->waiting.size() >= kMaxWaiting) {
      ++state_->counts.dropped;
      return;
    }
    state_->waiting_spans += most_spans(request);
    state_->waiting.push_back(std::move(request));
  }
  state_->changed.notify_one();
}

const SpanCounts& SpanExporter::counts() const { return state_->counts; }

// ---- the engine's thread --------------------------------------------------------------------------------

namespace {

class TracedSink final : public RequestSink {
 public:
  TracedSink(std::shared_ptr<RequestSink> inner, TracedRequest about, std::shared_ptr<SpanExporter> exporter)
      : inner_(std::move(inner)), request_(std::move(about)), exporter_(std::move(exporter)) {}

  void emitted(const Emit& emit) override { inner_->emitted(emit); }
  void round(const RoundDone& round) override { request_.add(round); }
  void finished(const Finish& finish) override {
    inner_->finished(finish);
    request_.finish(finish);
    if (request_.submitted_at == Clock::time_point{})  // cancelled while it waited
      request_.submitted_at = asked_at_, request_.finished_at = Clock::now();
    request_.clock_offset_ns =
        std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count() -
        std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
    exporter_->add(std::move(request_));
  }

 private:
  const std::shared_ptr<RequestSink> inner_;
  const Clock::time_point asked_at_ = Clock::now();
  TracedRequest request_;
  const std::shared_ptr<SpanExporter> exporter_;
};

}  // namespace

std::shared_ptr<RequestSink> traced_sink(std::shared_ptr<RequestSink> inner, TracedRequest about,
                                         std::shared_ptr<SpanExporter> exporter) {
  return std::make_shared<TracedSink>(std::move(inner), std::move(about), std::move(exporter));
}

}  // namespace outrider
