// Traces for OpenTelemetry: what is read from clients and the environment, the spans of a request, and their
// way to a collector.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "serve/monitor/metrics_text.h"
#include "serve/monitor/span_exporter.h"
#include "trace_collector.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::attribute;
using testing::TraceCollector;

constexpr const char* kParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceParent, IsReadAsW3CSays) {
  const auto parent = parse_traceparent(kParent, "vendor=1");
  ASSERT_TRUE(parent);
  EXPECT_EQ(parent->trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(parent->span_id, "00f067aa0ba902b7");
  EXPECT_EQ(parent->state, "vendor=1");
  EXPECT_TRUE(parent->is_sampled);
  EXPECT_FALSE(parse_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-02", "")->is_sampled);
  EXPECT_TRUE(parse_traceparent("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0b-more", ""))
      << "a later version";
}

TEST(TraceParent, IsIgnoredWhereItIsNotValid) {
  for (const char* wrong : {"", "00", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
                            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
                            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
                            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g"})
    EXPECT_FALSE(parse_traceparent(wrong, "")) << wrong;
}

Result<OtlpChoice> choice_of(const std::string& flag,
                             const std::map<std::string, std::string>& environment = {}) {
  return otlp_target(flag, [&](const char* name) {
    const auto at = environment.find(name);
    return at == environment.end() ? std::string() : at->second;
  });
}

OtlpTarget target_of(const std::string& flag, const std::map<std::string, std::string>& environment = {}) {
  const OtlpChoice choice = choice_of(flag, environment).value();
  EXPECT_EQ(choice.warning, "");
  return choice.target.value();
}

TEST(OtlpTarget, IsTheFlagOrTheEnvironment) {
  EXPECT_FALSE(choice_of("").value().target);
  EXPECT_EQ(choice_of("").value().warning, "");
  const OtlpTarget flag = target_of("http://collector:4318");
  EXPECT_EQ(flag.host, "collector");
  EXPECT_EQ(flag.port, "4318");
  EXPECT_EQ(flag.path, "/v1/traces");
  EXPECT_EQ(flag.resource.at("service.name"), "outrider");
  EXPECT_EQ(target_of("http://c:1/base/").path, "/base/v1/traces");
  EXPECT_EQ(target_of("http://[::1]:99").host, "::1");
  EXPECT_EQ(target_of("http://c").port, "4318");
  const OtlpTarget all = target_of("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:5/x"},
                                        {"OTEL_SERVICE_NAME", "chat"},
                                        {"OTEL_RESOURCE_ATTRIBUTES", "service.name=other, zone = a%20b"},
                                        {"OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20k"},
                                        {"OTEL_EXPORTER_OTLP_TIMEOUT", "2500"}});
  EXPECT_EQ(all.path, "/x/v1/traces");
  EXPECT_EQ(all.resource.at("service.name"), "chat");
  EXPECT_EQ(all.resource.at("zone"), "a b");
  EXPECT_EQ(all.headers.at("authorization"), "Bearer k");
  EXPECT_EQ(all.timeout.count(), 2500);
  EXPECT_EQ(target_of("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:5"},
                           {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:6/as/it/is"}})
                .path,
            "/as/it/is");
}

TEST(OtlpTarget, AWrongFlagIsAnError) {
  for (const char* wrong : {"https://c:4318", "c:4318", "http://", "http://c:port", "http://c:4318/a b"}) {
    const auto choice = choice_of(wrong);
    ASSERT_FALSE(choice.ok()) << wrong;
    EXPECT_NE(choice.status().message().find("--otlp-endpoint"), std::string::npos);
  }
}

// Variables may be meant for other programs of the machine.
TEST(OtlpTarget, WrongVariablesAndThoseThatSwitchOffLeaveNoTraces) {
  const std::pair<const char*, const char*> cases[] = {
      {"OTEL_EXPORTER_OTLP_ENDPOINT", "https://c"},
      {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "c:4317"},
      {"OTEL_EXPORTER_OTLP_HEADERS", "a=b%0d%0ac"},
      {"OTEL_EXPORTER_OTLP_TIMEOUT", "10s"},
      {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"},
      {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"},
      {"OTEL_TRACES_EXPORTER", "none"},
      {"OTEL_TRACES_EXPORTER", "console"},
      {"OTEL_SDK_DISABLED", "True"},
  };
  for (const auto& [name, value] : cases) {
    std::map<std::string, std::string> environment{{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"}};
    environment[name] = value;
    const auto choice = choice_of("", environment);
    ASSERT_TRUE(choice.ok()) << name << ": " << choice.status().message();
    EXPECT_FALSE(choice->target) << name;
    EXPECT_TRUE(choice->warning.starts_with("traces: none are sent: " + std::string(name)))
        << choice->warning;
    EXPECT_EQ(choice->warning.find('\n'), std::string::npos);
  }
  for (const auto& [name, value] : {cases[2], cases[3], cases[6], cases[7]})
    EXPECT_FALSE(choice_of("http://c:4318", {{name, value}}).value().target) << name << " and the flag";
  EXPECT_EQ(choice_of("", {{"OTEL_SDK_DISABLED", "true"}}).value().warning, "") << "nobody asked for traces";
}

TEST(OtlpTarget, TheProtocolIsJson) {
  const auto choice = [](const char* all, const char* traces) {
    return choice_of("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"},
                          {"OTEL_EXPORTER_OTLP_PROTOCOL", all},
                          {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", traces}})
        .value();
  };
  for (const auto& [all, traces] : {std::pair{"", ""}, {"http/json", ""}, {"grpc", "http/json"}}) {
    EXPECT_TRUE(choice(all, traces).target) << all;
    EXPECT_EQ(choice(all, traces).warning, "");
  }
  EXPECT_TRUE(choice("http/protobuf", "").target);
  EXPECT_EQ(choice("http/protobuf", "").warning,
            "traces: OTEL_EXPORTER_OTLP_PROTOCOL is http/protobuf, but they are sent as http/json");
  EXPECT_TRUE(choice_of("http://c:4318", {{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}}).value().target)
      << "the flag names a port for HTTP";
}

Clock::time_point at(int64_t ms) { return Clock::time_point(std::chrono::milliseconds(ms)); }

TracedRequest some_request() {
  TracedRequest request{.parent = *parse_traceparent(kParent, ""),
                        .operation = "chat",
                        .model = "demo",
                        .request_id = "req-1",
                        .max_tokens = 50,
                        .temperature = 0.5,
                        .top_p = 1};
  request.add({.accepted_count = 0, .emitted = 1, .begun_at = at(20), .done_at = at(30)});  // the prefill's
  request.add({.group = 2,
               .gamma = 4,
               .drafted = 4,
               .accepted_count = 3,
               .emitted = 4,
               .draft_ns = 1'500'000,
               .begun_at = at(30),
               .decided_at = at(32),
               .planned_at = at(33),
               .done_at = at(40)});
  request.add(
      {.emitted = 1, .begun_at = at(40), .decided_at = at(40), .planned_at = at(40), .done_at = at(50)});
  RequestMetrics metrics;
  metrics.submitted_at = at(10);
  metrics.begun_at = at(20);
  metrics.first_token_at = at(30);
  metrics.last_token_at = metrics.finished_at = at(50);
  metrics.prompt_tokens = 7;
  metrics.cached_tokens = 5;
  metrics.rounds.add_round(0, 0, 1, true);
  metrics.rounds.add_round(4, 3, 4, false);
  metrics.rounds.add_round(0, 0, 1, false);
  request.finish({.reason = FinishReason::kLength, .error = {}, .metrics = metrics});
  request.clock_offset_ns = 1'000'000'000'000;
  return request;
}

json spans_of(const TracedRequest& request) {
  uint64_t last = 0;
  return outrider::spans_of(request, [&] { return ++last; });
}

TEST(RequestSpans, HaveTheTimesAndTheirParents) {
  const json spans = spans_of(some_request());
  std::map<std::string, json> by_id;
  std::vector<std::string> told;  // name, parent, ms from and to
  for (const json& span : spans) {
    EXPECT_EQ(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
    by_id[span["spanId"]] = span;
    const std::string parent = span.contains("parentSpanId") && by_id.contains(span["parentSpanId"])
                                   ? by_id.at(span["parentSpanId"])["name"].get<std::string>()
                                   : span.value("parentSpanId", "");
    const auto ms = [&](const char* key) {
      return std::to_string((std::stoll(span[key].get<std::string>()) - 1'000'000'000'000) / 1'000'000);
    };
    told.push_back(span["name"].get<std::string>() + " < " + parent + " " + ms("startTimeUnixNano") + "-" +
                   ms("endTimeUnixNano"));
  }
  EXPECT_EQ(told, (std::vector<std::string>{"chat demo < 00f067aa0ba902b7 10-50", "queue < chat demo 10-20",
                                            "prefill < chat demo 20-30", "round < chat demo 30-40",
                                            "draft < round 30-32", "verify < round 33-40",
                                            "round < chat demo 40-50", "verify < round 40-50"}));
}

TEST(RequestSpans, HaveTheAttributesOfOpenTelemetry) {
  const json spans = spans_of(some_request()), &root = spans[0], &round = spans[3];
  EXPECT_EQ(root["kind"], 2);
  EXPECT_EQ(attribute(root, "gen_ai.operation.name"), "chat");
  EXPECT_EQ(attribute(root, "gen_ai.request.model"), "demo");
  EXPECT_EQ(attribute(root, "gen_ai.request.max_tokens"), "50") << "integers of 64 bits are text in OTLP";
  EXPECT_EQ(attribute(root, "gen_ai.request.temperature"), 0.5);
  EXPECT_EQ(attribute(root, "gen_ai.usage.input_tokens"), "7");
  EXPECT_EQ(attribute(root, "gen_ai.usage.cache_read.input_tokens"), "5");
  EXPECT_EQ(attribute(root, "gen_ai.usage.output_tokens"), "6");
  EXPECT_EQ(attribute(root, "gen_ai.response.finish_reasons")["values"][0]["stringValue"], "length");
  EXPECT_EQ(attribute(root, "outrider.request_id"), "req-1");
  EXPECT_FALSE(root.contains("status"));
  EXPECT_EQ(attribute(round, "outrider.gamma"), "4");
  EXPECT_EQ(attribute(round, "outrider.accepted_tokens"), "3");
  EXPECT_EQ(attribute(round, "outrider.target_group"), "2");
  EXPECT_EQ(attribute(spans[4], "outrider.busy_seconds"), 0.0015);
}

TEST(RequestSpans, OfARequestThatFailedInTheQueue) {
  TracedRequest request{.operation = "chat", .model = "demo"};
  RequestMetrics metrics;
  metrics.submitted_at = at(10);
  metrics.finished_at = at(15);
  request.finish({.reason = FinishReason::kError, .error = unavailable("gone"), .metrics = metrics});
  const json spans = spans_of(request);
  ASSERT_EQ(spans.size(), 2u) << "no prefill";
  EXPECT_EQ(spans[0]["status"], json({{"code", 2}, {"message", "gone"}}));
  EXPECT_EQ(attribute(spans[0], "error.type"), "error");
  EXPECT_FALSE(spans[0].contains("parentSpanId")) << "it begins the trace";
  EXPECT_EQ(spans[0]["traceId"].get<std::string>().size(), 32u);
}

TEST(RequestSpans, AreBounded) {
  TracedRequest request = some_request();
  for (size_t i = 0; i < 2 * TracedRequest::kMaxRounds; ++i) request.add({.done_at = at(60)});
  EXPECT_EQ(request.rounds.size(), TracedRequest::kMaxRounds);
  EXPECT_EQ(attribute(spans_of(request)[0], "outrider.rounds_left_out"),
            std::to_string(TracedRequest::kMaxRounds + 3));
}

TEST(SpanExporter, PostsToTheCollector) {
  TraceCollector collector;
  OtlpTarget target = target_of(collector.url(), {{"OTEL_EXPORTER_OTLP_HEADERS", "x-team=a"}});
  const auto exporter = std::make_shared<SpanExporter>(target);
  exporter->add(some_request());
  exporter->add(some_request());
  EXPECT_EQ(collector.spans("chat demo", 2).size(), 16u);
  EXPECT_TRUE(collector.head().starts_with("POST /v1/traces HTTP/1.1\r\n")) << collector.head();
  EXPECT_NE(collector.head().find("Content-Type: application/json\r\n"), std::string::npos);
  EXPECT_NE(collector.head().find("x-team: a\r\n"), std::string::npos);
  EXPECT_EQ(collector.resource().at("service.name"), "outrider");
}

TEST(SpanExporter, SendsWhatWaitsAtTheEnd) {
  TraceCollector collector;
  { SpanExporter(target_of(collector.url())).add(some_request()); }
  EXPECT_EQ(collector.spans("chat demo", 1).size(), 8u);
}

// A POST beyond the collector's limit would be lost as a whole.
TEST(SpanExporter, BoundsTheSpansOfAPost) {
  TracedRequest large = some_request(), larger = some_request();
  const TracedRound round{.begun_at = at(60), .done_at = at(70), .gamma = 4};
  while (large.rounds.size() < TracedRequest::kMaxRounds) large.rounds.push_back(round);
  while (larger.rounds.size() < SpanExporter::kSpansOfPost) larger.rounds.push_back(round);
  TraceCollector collector;
  {
    SpanExporter exporter(target_of(collector.url()));
    for (int i = 0; i < 3; ++i) exporter.add(large);
    exporter.add(larger);
    exporter.add(some_request());
    (void)collector.spans("chat demo", 5);
  }
  EXPECT_EQ(spans_of(large).size(), 767u);
  EXPECT_LE(spans_of(large).size(), most_spans(large));
  size_t alone = 0;
  for (const size_t spans : collector.posts())
    if (spans == spans_of(larger).size())
      ++alone;
    else
      EXPECT_LE(spans, SpanExporter::kSpansOfPost);
  EXPECT_EQ(alone, 1u);
}

// Refused connections, errors and silence: add() never waits, and what is lost is counted.
TEST(SpanExporter, CountsWhatNoCollectorTakes) {
  const auto drops = [](const std::string& url) {
    OtlpTarget target = target_of(url);
    target.timeout = std::chrono::milliseconds(50);
    const SpanExporter exporter(target);
    const_cast<SpanExporter&>(exporter).add(some_request());
    for (int i = 0; i < 6000 && exporter.counts().dropped == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(exporter.counts().sent, 0);
    return exporter.counts().dropped.load();
  };
  uint16_t closed = 0;
  { closed = TraceCollector().port(); }
  EXPECT_EQ(drops("http://127.0.0.1:" + std::to_string(closed)), 1);
  TraceCollector busy(503), silent(0);
  EXPECT_EQ(drops(busy.url()), 1);
  EXPECT_EQ(drops(silent.url()), 1);
}

TEST(SpanExporter, HoldsABoundedNumberOfRequests) {
  TraceCollector silent(0);
  OtlpTarget target = target_of(silent.url());
  SpanExporter exporter(target);
  exporter.add(some_request());
  (void)silent.spans("chat demo", 1);  // its thread now waits for the answer
  for (size_t i = 0; i < SpanExporter::kMaxWaiting + 5; ++i) exporter.add(some_request());
  EXPECT_EQ(exporter.counts().dropped, 5);
  EXPECT_NE(metrics_text({}, {.spans = &exporter.counts()}).find("outrider_otlp_requests_dropped_total{"),
            std::string::npos);
}

// The POST under way is given up, and what waits behind it.
TEST(SpanExporter, EndsSoonBesideASilentCollector) {
  TraceCollector silent(0);
  SpanExporter exporter(target_of(silent.url()));
  exporter.add(some_request());
  (void)silent.spans("chat demo", 1);  // its thread now waits for the answer
  for (int i = 0; i < 2; ++i) exporter.add(some_request());
  ::testing::internal::CaptureStderr();
  const Clock::time_point begun = Clock::now();
  exporter.finish();
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(2));  // the farewell has half a second
  EXPECT_EQ(exporter.counts().sent, 0);
  EXPECT_EQ(exporter.counts().dropped, 3);
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("traces: at the end 3 requests are lost"), std::string::npos) << told;
}

class Inner final : public RequestSink {
 public:
  void emitted(const Emit&) override { ++emits; }
  void finished(const Finish&) override { ++finishes; }
  int emits = 0, finishes = 0;
};

TEST(TracedSink, PassesEverythingOn) {
  TraceCollector collector;
  const auto inner = std::make_shared<Inner>();
  {
    const auto exporter = std::make_shared<SpanExporter>(target_of(collector.url()));
    const auto sink = traced_sink(inner, {.operation = "chat", .model = "m"}, exporter);
    sink->emitted({});
    sink->round({});
    sink->finished({.reason = FinishReason::kCancelled, .error = {}, .metrics = {}});
  }
  EXPECT_EQ(inner->emits, 1);
  EXPECT_EQ(inner->finishes, 1);
  const auto spans = collector.spans("chat m", 1);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(attribute(spans[0], "error.type"), "cancelled");
  EXPECT_GT(std::stoll(spans[0]["startTimeUnixNano"].get<std::string>()), 1'600'000'000'000'000'000)
      << "not the beginning of the steady clock";
}

}  // namespace
}  // namespace outrider
