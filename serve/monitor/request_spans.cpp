#include "serve/monitor/request_spans.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/version.h"

namespace outrider {
namespace {

using nlohmann::json;

enum SpanKind { kInternal = 1, kServer = 2 };
constexpr int kStatusError = 2;

// OTLP's JSON writes integers of 64 bits as text.
json value_of(int64_t value) { return {{"intValue", std::to_string(value)}}; }
json value_of(double value) { return {{"doubleValue", value}}; }
json value_of(const std::string& value) { return {{"stringValue", value}}; }
json value_of(const std::vector<std::string>& values) {
  json list = json::array();
  for (const std::string& value : values) list.push_back(value_of(value));
  return {{"arrayValue", {{"values", std::move(list)}}}};
}

class Attributes {
 public:
  template <class Value>
  Attributes& add(const char* key, const Value& value) {
    list_.push_back({{"key", key}, {"value", value_of(value)}});
    return *this;
  }
  json take() { return std::move(list_); }

 private:
  json list_ = json::array();
};

class SpanWriter {
 public:
  SpanWriter(const TracedRequest& request, const std::function<uint64_t()>& random)
      : request_(request), random_(random), trace_id_(request.parent.trace_id) {
    if (trace_id_.empty()) trace_id_ = id() + id();
  }
  // Returns the id of the new span.
  std::string add(const std::string& name, const std::string& parent, Clock::time_point from,
                  Clock::time_point to, json attributes, SpanKind kind = kInternal) {
    std::string span = id();
    json out{{"traceId", trace_id_},
             {"spanId", span},
             {"name", name},
             {"kind", kind},
             {"startTimeUnixNano", unix_ns(from)},
             {"endTimeUnixNano", unix_ns(std::max(from, to))},
             {"attributes", std::move(attributes)}};
    if (!parent.empty()) out["parentSpanId"] = parent;
    if (!request_.parent.state.empty()) out["traceState"] = request_.parent.state;
    spans_.push_back(std::move(out));
    return span;
  }
  json& last() { return spans_.back(); }
  json take() { return std::move(spans_); }

 private:
  std::string id() {
    uint64_t bits = random_();
    while (bits == 0) bits = random_();
    return fmt::format("{:016x}", bits);
  }
  std::string unix_ns(Clock::time_point at) const {
    return std::to_string(std::chrono::nanoseconds(at.time_since_epoch()).count() + request_.clock_offset_ns);
  }

  const TracedRequest& request_;
  const std::function<uint64_t()>& random_;
  std::string trace_id_;
  json spans_ = json::array();
};

json attributes_of(const TracedRequest& r) {
  Attributes out;
  out.add("gen_ai.operation.name", r.operation)
      .add("gen_ai.provider.name", std::string("outrider"))
      .add("gen_ai.request.model", r.model)
      .add("gen_ai.response.model", r.model)
      .add("gen_ai.request.max_tokens", r.max_tokens)
      .add("gen_ai.request.temperature", r.temperature)
      .add("gen_ai.request.top_p", r.top_p)
      .add("gen_ai.usage.input_tokens", r.prompt_tokens)
      .add("gen_ai.usage.cache_read.input_tokens", r.cached_tokens)
      .add("gen_ai.usage.output_tokens", r.emitted)
      .add("gen_ai.response.finish_reasons",
           std::vector<std::string>{std::string(finish_reason_name(r.reason))})
      .add("outrider.request_id", r.request_id)
      .add("outrider.choice", static_cast<int64_t>(r.choice))
      .add("outrider.draft_tokens", r.drafted)
      .add("outrider.accepted_tokens", r.accepted);
  if (r.reason == FinishReason::kError || r.reason == FinishReason::kCancelled)
    out.add("error.type", std::string(finish_reason_name(r.reason)));
  if (r.rounds_left_out > 0) out.add("outrider.rounds_left_out", r.rounds_left_out);
  return out.take();
}

void add_round(const TracedRound& round, const std::string& parent, SpanWriter& out) {
  const std::string span = out.add("round", parent, round.begun_at, round.done_at,
                                   Attributes()
                                       .add("outrider.gamma", int64_t{round.gamma})
                                       .add("outrider.draft_tokens", int64_t{round.drafted})
                                       .add("outrider.accepted_tokens", int64_t{round.accepted})
                                       .add("outrider.output_tokens", int64_t{round.emitted})
                                       .add("outrider.target_group", int64_t{round.group})
                                       .take());
  if (round.gamma > 0)
    out.add("draft", span, round.begun_at, round.decided_at,
            Attributes().add("outrider.busy_seconds", static_cast<double>(round.draft_ns) * 1e-9).take());
  out.add("verify", span, round.planned_at, round.done_at, json::array());
}

}  // namespace

void TracedRequest::add(const RoundDone& round) {
  if (rounds.size() >= kMaxRounds) {
    ++rounds_left_out;
    return;
  }
  rounds.push_back({.begun_at = round.begun_at,
                    .decided_at = round.decided_at,
                    .planned_at = round.planned_at,
                    .done_at = round.done_at,
                    .gamma = round.gamma,
                    .drafted = round.drafted,
                    .accepted = round.accepted_count,
                    .emitted = round.emitted,
                    .group = round.group,
                    .draft_ns = round.draft_ns});
}

void TracedRequest::finish(const Finish& finish) {
  const RequestMetrics& metrics = finish.metrics;
  reason = finish.reason;
  error = finish.error.ok() ? std::string() : finish.error.message();
  submitted_at = metrics.submitted_at;
  begun_at = metrics.begun_at;
  first_token_at = metrics.first_token_at;
  finished_at = metrics.finished_at;
  prompt_tokens = metrics.prompt_tokens;
  cached_tokens = metrics.cached_tokens;
  emitted = metrics.rounds.emitted;
  drafted = metrics.rounds.drafted;
  accepted = metrics.rounds.accepted;
}

// The round that ends the prefill is a part of the prefill. A request that ended earlier has no such span.
json spans_of(const TracedRequest& request, const std::function<uint64_t()>& random) {
  SpanWriter out(request, random);
  const Clock::time_point end = request.finished_at.value_or(request.submitted_at);
  const std::string root = out.add(request.operation + " " + request.model, request.parent.span_id,
                                   request.submitted_at, end, attributes_of(request), kServer);
  if (request.reason == FinishReason::kError)
    out.last()["status"] = {{"code", kStatusError}, {"message", request.error}};
  out.add("queue", root, request.submitted_at, request.begun_at.value_or(end), json::array());
  if (request.begun_at)
    out.add("prefill", root, *request.begun_at, request.first_token_at.value_or(end),
            Attributes().add("outrider.cached_tokens", request.cached_tokens).take());
  for (const TracedRound& round : request.rounds)
    if (request.first_token_at && round.done_at > *request.first_token_at) add_round(round, root, out);
  return out.take();
}

size_t most_spans(const TracedRequest& request) { return 3 + 3 * request.rounds.size(); }

json export_request(const std::map<std::string, std::string>& resource, json spans) {
  Attributes attributes;
  for (const auto& [key, value] : resource) attributes.add(key.c_str(), value);
  return {{"resourceSpans",
           {{{"resource", {{"attributes", attributes.take()}}},
             {"scopeSpans",
              {{{"scope", {{"name", "outrider"}, {"version", std::string(kVersion)}}},
                {"spans", std::move(spans)}}}}}}}};
}

}  // namespace outrider
