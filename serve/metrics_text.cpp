#include "serve/metrics_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "coordinator/counters.h"

namespace outrider {
namespace {

// Seconds. Samples are kept in classes 0.8 % wide, so one this close above a bound may be counted below it.
constexpr std::array kBounds{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                             0.5,    1.0,   2.5,    5.0,   10.0, 25.0,  50.0, 100., 1000.};

std::string escaped(const std::string& value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    c == '\n' ? out += "\\n" : out += c;
  }
  return out;
}

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

// One metric after the other, each with its description.
class Writer {
 public:
  Writer(std::string prefix, const std::string& model)
      : prefix_(std::move(prefix)), model_(fmt::format("model_name=\"{}\"", escaped(model))) {}

  template <class Number>
  void counter(std::string_view name, std::string_view help, Number value) {
    begin(name, "counter", help);
    sample(name, "", value);
  }
  void gauge(std::string_view name, std::string_view help, int64_t value) {
    begin(name, "gauge", help);
    sample(name, "", value);
  }
  void begin(std::string_view name, std::string_view type, std::string_view help) {
    text_ += fmt::format("# HELP {0}{1} {2}\n# TYPE {0}{1} {3}\n", prefix_, name, help, type);
  }
  // `label`: name="value", or nothing.
  template <class Number>
  void sample(std::string_view name, std::string_view label, Number value) {
    text_ +=
        fmt::format("{}{}{{{}{}{}}} {}\n", prefix_, name, model_, label.empty() ? "" : ",", label, value);
  }
  // Those of the table's counters that have these names.
  template <class Table, class Sums>
  void table(const Table& table, const Sums& sums, Names names) {
    for (auto row = std::begin(table); row != std::end(table);) {
      const auto& first = *row;
      const auto same_metric = [&](const auto& other) { return other.metric == first.metric; };
      const auto end = std::find_if_not(row, std::end(table), same_metric);
      if (first.names == names) {
        begin(first.metric, "counter", first.help);
        while (row != end) row = shared_label(row, end, sums);
      }
      row = end;
    }
  }
  // [i] is the sample whose label has the value i.
  void counters(std::string_view name, std::string_view help, std::string_view label,
                const std::vector<int64_t>& values) {
    begin(name, "counter", help);
    for (size_t i = 0; i < values.size(); ++i) sample(name, fmt::format("{}=\"{}\"", label, i), values[i]);
  }
  void histogram(std::string_view name, std::string_view help, const DurationHistogram& durations) {
    begin(name, "histogram", help);
    const std::string bucket = fmt::format("{}_bucket", name);
    for (const double bound : kBounds)
      sample(bucket, fmt::format("le=\"{}\"", bound),
             durations.count_up_to(std::chrono::nanoseconds(static_cast<int64_t>(bound * 1e9))));
    sample(bucket, "le=\"+Inf\"", durations.count());
    sample(fmt::format("{}_sum", name), "", durations.sum_ns() * 1e-9);
    sample(fmt::format("{}_count", name), "", durations.count());
  }
  std::string take() { return std::move(text_); }

 private:
  // The sample of the counters from `row` on that have its label, and the first that has another.
  template <class Row, class Sums>
  Row shared_label(Row row, Row end, const Sums& sums) {
    const auto& first = *row;
    auto sum = value_of(first, sums);
    while (++row != end && row->label == first.label) sum += value_of(*row, sums);
    if (first.unit == Unit::kNanoseconds)
      sample(first.metric, first.label, seconds(static_cast<int64_t>(sum)));
    else
      sample(first.metric, first.label, sum);
    return row;
  }

  const std::string prefix_, model_;
  std::string text_;
};

int64_t finished(const Totals& totals, FinishReason reason) {
  return totals.finished[static_cast<size_t>(reason)];
}

// What other servers count too, by vLLM's names.
std::string common_metrics(const EngineNumbers& numbers, Writer out) {
  const Totals& totals = numbers.totals;
  const RoundSums& rounds = totals.rounds;
  out.gauge("num_requests_running", "Requests that are being decoded.", numbers.running);
  out.gauge("num_requests_waiting", "Requests that wait for a place.", numbers.waiting);
  out.table(kEventCounters, totals, Names::kCommon);
  out.begin("request_success_total", "counter", "Requests that ended, but for errors.");
  for (const auto& [reason, name] : {std::pair{FinishReason::kStop, "stop"},
                                     {FinishReason::kLength, "length"},
                                     {FinishReason::kCancelled, "abort"}})
    out.sample("request_success_total", fmt::format("finished_reason=\"{}\"", name),
               finished(totals, reason));
  out.counter("spec_decode_num_drafts_total", "Drafts that were verified.", rounds.rounds - rounds.g0_rounds);
  out.table(kRoundCounters, rounds, Names::kCommon);
  out.counters("spec_decode_num_accepted_tokens_per_pos_total",
               "Accepted draft tokens, by their position in the draft.", "position",
               rounds.position_accepted);
  out.histogram("time_to_first_token_seconds", "Time from submission to the first token.", totals.ttft);
  out.histogram("inter_token_latency_seconds", "Time between tokens; zero between those of one burst.",
                totals.gaps);
  out.histogram("e2e_request_latency_seconds",
                "Time from submission to the end, of requests that ended with stop or length.", totals.e2e);
  return out.take();
}

void write_requests(const EngineNumbers& numbers, Writer& out) {
  out.begin("requests_finished_total", "counter", "Requests that ended, by reason.");
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kError, FinishReason::kCancelled})
    out.sample("requests_finished_total", fmt::format("reason=\"{}\"", finish_reason_name(reason)),
               finished(numbers.totals, reason));
  out.counter("requests_refused_total", "Requests that found no room in the queue.", numbers.refused);
}

void write_rounds(const RoundSums& rounds, Writer& out) {
  out.table(kRoundCounters, rounds, Names::kOwn);
  out.counters("spec_decode_num_tested_tokens_per_pos_total",
               "Draft tokens that the target looked at, by position: those behind a rejected one are not.",
               "position", rounds.position_tested);
  out.counters("rounds_total", "Verified rounds, by the length of their draft.", "draft_tokens",
               rounds.gamma_histogram);
}

void write_events(const EngineNumbers& numbers, Writer& out) {
  const Totals& totals = numbers.totals;
  out.table(kEventCounters, totals, Names::kOwn);
  out.table(kPhaseCounters, totals.phases, Names::kOwn);
  out.table(kPreparationCounters, totals.preparation, Names::kOwn);
  out.begin("drafts_discarded_total", "counter", "Drafts that were not verified, by reason.");
  for (size_t i = 0; i < kDropReasonNames.size(); ++i)
    out.sample("drafts_discarded_total", fmt::format("reason=\"{}\"", kDropReasonNames[i]),
               totals.drafts_dropped[i]);
  out.gauge("draft_workers", "Draft workers that are here.", numbers.draft_workers);
}

void write_wire(const EngineNumbers& numbers, Writer& out) {
  const TransportStats& wire = numbers.wire;
  uint64_t sent = 0, received = 0;
  for (size_t kind = 0; kind < TransportStats::kKinds; ++kind) {
    sent += wire.sent_bytes[kind];
    received += wire.received_bytes[kind];
  }
  out.counter("sent_bytes_total", "Bytes that went to workers.", sent);
  out.counter("received_bytes_total", "Bytes that came from workers.", received);
  out.table(kWireCounters, wire, Names::kOwn);
  out.table(kSliceCounters, numbers.totals, Names::kOwn);
}

}  // namespace

// Colons belong to the rules of who collects, says Prometheus; vLLM's names have them all the same.
std::string metrics_text(const EngineNumbers& numbers, const std::string& model, bool vllm_names) {
  std::string text = common_metrics(numbers, Writer("outrider_", model));
  Writer own("outrider_", model);
  write_requests(numbers, own);
  write_rounds(numbers.totals.rounds, own);
  write_events(numbers, own);
  write_wire(numbers, own);
  text += own.take();
  if (vllm_names) text += common_metrics(numbers, Writer("vllm:", model));
  return text;
}

}  // namespace outrider
