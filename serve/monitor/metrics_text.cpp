#include "serve/monitor/metrics_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "coordinator/metrics/counters.h"
#include "serve/monitor/process_numbers.h"
#include "serve/monitor/status.h"

namespace outrider {
namespace {

// Seconds. Samples are kept in classes 0.8 % wide, so a sample slightly above a bound may be counted below
// it.
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

// Writes metrics one after the other, each with its description.
class Writer {
 public:
  Writer(std::string prefix, const std::string& model)
      : prefix_(std::move(prefix)), model_(fmt::format("model_name=\"{}\"", escaped(model))) {}

  template <class Number>
  void counter(std::string_view name, std::string_view help, Number value) {
    begin(name, "counter", help);
    sample(name, "", value);
  }
  template <class Number>
  void gauge(std::string_view name, std::string_view help, Number value) {
    begin(name, "gauge", help);
    sample(name, "", value);
  }
  void begin(std::string_view name, std::string_view type, std::string_view help) {
    text_ += fmt::format("# HELP {0}{1} {2}\n# TYPE {0}{1} {3}\n", prefix_, name, help, type);
  }
  // `label`: name="value", or empty.
  template <class Number>
  void sample(std::string_view name, std::string_view label, Number value) {
    text_ +=
        fmt::format("{}{}{{{}{}{}}} {}\n", prefix_, name, model_, label.empty() ? "" : ",", label, value);
  }
  // Writes the counters of the table with these names.
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
  void histogram(std::string_view name, std::string_view help, const LengthHistogram& lengths) {
    begin(name, "histogram", help);
    const std::string bucket = fmt::format("{}_bucket", name);
    int64_t count = 0;
    for (size_t i = 0; i < LengthHistogram::kClasses; ++i) {
      count += lengths.classes()[i];
      const bool is_last = i + 1 == LengthHistogram::kClasses;
      sample(bucket, is_last ? "le=\"+Inf\"" : fmt::format("le=\"{}\"", int64_t{1} << i), count);
    }
    sample(fmt::format("{}_sum", name), "", lengths.sum());
    sample(fmt::format("{}_count", name), "", count);
  }
  std::string take() { return std::move(text_); }

 private:
  // Writes the sample of the counters from `row` on with its label; returns the first row with another label.
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

// Metrics that other servers have too, by vLLM's names.
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
  out.histogram("request_queue_time_seconds", "Time from submission until a request began.", totals.queued);
  out.histogram("request_prompt_tokens", "Prompt tokens of requests that began.", totals.prompt_lengths);
  out.histogram("request_generation_tokens", "Generated tokens of requests that ended with stop or length.",
                totals.generation_lengths);
  const Overview& now = numbers.overview;
  out.gauge("kv_cache_usage_perc", "Share of the target's cache that is in use; 1 is all.",
            now.kv_room > 0 ? static_cast<double>(now.kv_tokens) / static_cast<double>(now.kv_room) : 0.0);
  return out.take();
}

// Figures of the last seconds; serve/engine/pace.h defines each.
void write_pace(const EngineNumbers& numbers, const MetricsContext& context, Writer& out) {
  const Pace& pace = numbers.pace;
  const Overview& now = numbers.overview;
  out.begin("gamma_policy_info", "gauge", "What chooses the length of drafts, unless a request does.");
  out.sample("gamma_policy_info", fmt::format("policy=\"{}\"", escaped(context.policy)), 1);
  out.gauge("gamma_mean", "Draft tokens that were asked for in the rounds under way, on average.",
            now.mean_gamma);
  out.begin("gamma_sequences", "gauge", "Sequences by the length of the draft of their round under way.");
  for (size_t g = 0; g < now.gammas.size(); ++g)
    out.sample("gamma_sequences", fmt::format("draft_tokens=\"{}\"", g), now.gammas[g]);
  out.gauge("recent_tokens_per_second", "Generated in the last ten seconds.", pace.tokens_per_second);
  out.gauge("recent_acceptance", "Accepted draft tokens per one that the target looked at, of ten seconds.",
            pace.acceptance);
  out.gauge("recent_tokens_per_round", "Tokens of a verified round of one sequence, of ten seconds.",
            pace.tokens_per_round);
  out.gauge("recent_tokens_per_target_pass", "Tokens of a pass, of all its sequences, of ten seconds.",
            pace.tokens_per_target_pass);
  out.begin("recent_speedup", "gauge",
            "Speed against plain decoding of the same batch as the cost model knows it; 0 while nothing is "
            "drafted.");
  out.sample("recent_speedup", "kind=\"predicted\"", pace.predicted_speedup);
  out.sample("recent_speedup", "kind=\"measured\"", pace.measured_speedup);
}

// A worker's number is new for every connection, so its counters begin at 0. `weights` tells the versions of
// a draft model apart.
void write_workers(const Overview& now, Writer& out) {
  const auto each = [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
    out.begin(name, type, help);
    for (const WorkerOverview& worker : now.workers)
      out.sample(name,
                 fmt::format("worker=\"{}\",host=\"{}\",model=\"{}\",weights=\"{}\"", worker.peer,
                             escaped(worker.host), escaped(worker.model), weights_name(worker.weights)),
                 value(worker));
  };
  each("draft_worker_usable", "gauge", "1: takes part; 0: was late or silent, and is left alone for a while.",
       [](const WorkerOverview& w) { return w.state == WorkerOverview::State::kDrafting ? 1 : 0; });
  each("draft_worker_sequences", "gauge", "Sequences that it drafts for.",
       [](const WorkerOverview& w) { return w.sequences; });
  each("draft_worker_draft_tokens_total", "counter", "Tokens of its drafts that were verified.",
       [](const WorkerOverview& w) { return w.drafted; });
  each("draft_worker_tested_tokens_total", "counter", "Those that the target looked at.",
       [](const WorkerOverview& w) { return w.tested; });
  each("draft_worker_accepted_tokens_total", "counter", "Those that were accepted.",
       [](const WorkerOverview& w) { return w.accepted; });
  each("draft_worker_token_seconds", "gauge", "How long a token of its drafts is waited for; 0: not known.",
       [](const WorkerOverview& w) { return w.seconds_per_token; });
}

// By weights of the draft model, with those of workers that have left: versions can be compared.
void write_drafters(const Totals& totals, Writer& out) {
  for (const auto& counter : kDrafterCounters) {
    out.begin(counter.metric, "counter", counter.help);
    for (const auto& [kind, drafter] : totals.drafters)
      out.sample(counter.metric,
                 fmt::format("model=\"{}\",weights=\"{}\"", escaped(drafter.name), weights_name(kind)),
                 value_of(counter, drafter));
  }
}

// Only for several groups; a single group would repeat the other metrics.
void write_groups(const EngineNumbers& numbers, Writer& out) {
  const auto& now = numbers.overview.groups;
  if (now.size() < 2) return;
  const auto each = [&](std::string_view name, std::string_view help, auto value) {
    out.begin(name, "gauge", help);
    for (size_t i = 0; i < now.size(); ++i) out.sample(name, fmt::format("group=\"{}\"", i), value(now[i]));
  };
  out.begin("target_group_here", "gauge", "1: the target group takes part; 0: it is not there.");
  for (size_t i = 0; i < now.size(); ++i)
    out.sample("target_group_here",
               fmt::format("group=\"{}\",host=\"{}\",role=\"{}\"", i, escaped(now[i].host), now[i].role()),
               now[i].here ? 1 : 0);
  each("target_group_requests_running", "Requests that the group runs.",
       [](const GroupOverview& group) { return group.running; });
  each("target_group_kv_cache_usage_perc", "Share of the group's cache that is in use; 1 is all.",
       [](const GroupOverview& group) {
         return group.kv_room > 0 ? static_cast<double>(group.kv_tokens) / static_cast<double>(group.kv_room)
                                  : 0.0;
       });
  std::vector<GroupTotals> totals = numbers.totals.groups;
  totals.resize(now.size());
  for (const auto& counter : kGroupCounters) {
    out.begin(counter.metric, "counter", counter.help);
    for (size_t i = 0; i < totals.size(); ++i) {
      const std::string label = fmt::format("group=\"{}\"", i);
      if (counter.unit == Unit::kNanoseconds)
        out.sample(counter.metric, label, seconds(value_of(counter, totals[i])));
      else
        out.sample(counter.metric, label, value_of(counter, totals[i]));
    }
  }
}

void write_responses(const ResponseCounts& responses, Writer& out) {
  out.begin("http_responses_total", "counter", "Answers by status; 499: the client left first.");
  for (const auto& [status, count] : responses.all())
    out.sample("http_responses_total", fmt::format("status=\"{}\"", status), count);
  out.counter("access_log_lines_dropped_total", "Lines of the access log that its file did not take in time.",
              responses.log_lines_dropped.load());
}

// Under the names that dashboards expect from every program, without our labels.
std::string process_metrics() {
  const ProcessNumbers p = process_numbers();
  std::string text;
  const auto add = [&text](std::string_view name, std::string_view type, std::string_view help, auto value) {
    text += fmt::format("# HELP process_{0} {1}\n# TYPE process_{0} {2}\nprocess_{0} {3}\n", name, help, type,
                        value);
  };
  add("cpu_seconds_total", "counter", "Time on processors.", p.cpu_seconds);
  add("resident_memory_bytes", "gauge", "Memory that is in use.", p.resident_bytes);
  add("virtual_memory_bytes", "gauge", "Memory that is mapped.", p.virtual_bytes);
  add("open_fds", "gauge", "Open file descriptors.", p.open_descriptors);
  add("max_fds", "gauge", "File descriptors that may be open.", p.most_descriptors);
  add("threads", "gauge", "Threads.", p.threads);
  add("start_time_seconds", "gauge", "When it was started, in seconds since 1970.", p.started_at);
  return text;
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
  out.gauge("draft_workers_wanted",
            "Draft workers that would pay at the load of the last seconds; 0 while drafts do not pay.",
            numbers.draft_workers_wanted);
  out.gauge("prefix_cache_tokens", "Room in the target's cache that kept texts take, in tokens.",
            numbers.overview.prefix_tokens);
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

void write_background(const BackgroundCounts& counts, Writer& out) {
  out.gauge("background_responses_open", "Background responses that are queued or in progress.",
            counts.open.load());
  out.gauge("background_responses_kept", "Finished background responses that can be fetched.",
            counts.kept.load());
  out.counter("background_requests_resumed_total",
              "Requests of --journal that run again because an earlier server did not finish them.",
              counts.run_again.load());
  out.counter("journal_errors_total", "Writes of --journal that failed.", counts.journal_errors.load());
}

}  // namespace

// Prometheus reserves colons for recording rules, but vLLM's names have them.
std::string metrics_text(const EngineNumbers& numbers, const MetricsContext& context) {
  std::string text = common_metrics(numbers, Writer("outrider_", context.model));
  Writer own("outrider_", context.model);
  write_requests(numbers, own);
  write_rounds(numbers.totals.rounds, own);
  write_events(numbers, own);
  write_wire(numbers, own);
  write_pace(numbers, context, own);
  write_workers(numbers.overview, own);
  if (!numbers.totals.drafters.empty()) write_drafters(numbers.totals, own);
  write_groups(numbers, own);
  if (context.responses) write_responses(*context.responses, own);
  if (context.background) write_background(*context.background, own);
  if (context.spans) {
    own.counter("otlp_spans_total", "Spans that the OpenTelemetry collector took.",
                context.spans->sent.load());
    own.counter("otlp_requests_dropped_total",
                "Requests whose spans were dropped, because the collector did not take them in time.",
                context.spans->dropped.load());
  }
  text += own.take();
  if (context.vllm_names) text += common_metrics(numbers, Writer("vllm:", context.model));
  return text + process_metrics();
}

}  // namespace outrider
