// A served request is a trace at a collector.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "served_program.h"
#include "trace_collector.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

TEST(ServeTraces, ARequestIsAChildOfTheClientsSpan) {
  TraceCollector collector;
  ServedProgram server({"--draft-model", demo_draft(), "--num-speculative-tokens", "4", "--quiet",
                        "--otlp-endpoint", collector.url()});
  const std::string body = kGreedy.dump(), trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  const auto headers = [&](const char* flags) {
    return "traceparent: 00-" + trace + "-00f067aa0ba902b7-" + flags +
           "\r\n";
  };
  EXPECT_EQ(server.client().post("/v1/completions", body, headers("00")).status, 200) << "not sampled";
  EXPECT_EQ(server.client().post("/v1/completions", body, headers("01")).status, 200);
  const auto spans = collector.spans("verify", 1);
  const auto root = std::find_if(spans.begin(), spans.end(), [](const json& span) {
    return span["name"].get<std::string>().starts_with("text_completion");
  });
  ASSERT_NE(root, spans.end());
  EXPECT_EQ(root->at("traceId"), trace);
  EXPECT_EQ(root->at("parentSpanId"), "00f067aa0ba902b7");
  EXPECT_EQ(attribute(*root, "gen_ai.usage.output_tokens"), "12");
  int64_t last = 0, rounds = 0, tokens = 0;
  for (const json& span : spans) {
    EXPECT_EQ(span["traceId"], trace) << "the request that is not sampled is not there";
    if (span["name"] != "round") continue;
    ++rounds;
    const int64_t from = std::stoll(span["startTimeUnixNano"].get<std::string>());
    EXPECT_GE(from, last) << "rounds of a request follow each other";
    last = std::stoll(span["endTimeUnixNano"].get<std::string>());
    tokens += std::stoll(attribute(span, "outrider.output_tokens").get<std::string>());
  }
  EXPECT_EQ(tokens, 11) << "the first token is that of the prefill";
  EXPECT_LT(rounds, 11) << "drafts are accepted";
}

// The variables of the environment may be meant for other programs.
TEST(ServeTraces, AWrongVariableDoesNotKeepTheServerFromStarting) {
  constexpr const char* kVariable = "OTEL_EXPORTER_OTLP_ENDPOINT";
  setenv(kVariable, "https://collector:4318", 1);
  ServedProgram server({"--quiet"});
  unsetenv(kVariable);
  EXPECT_NE(server.process().err().find("traces: none are sent: OTEL_EXPORTER_OTLP_ENDPOINT https://"),
            std::string::npos)
      << server.process().err();
  EXPECT_EQ(server.complete(kGreedy)["usage"]["completion_tokens"], 12);
}

}  // namespace
}  // namespace outrider::testing
