// /metrics, read back by a parser that knows the format's rules.
#include "serve/monitor/metrics_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "tests/support/source_dir.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;

struct Sample {
  std::map<std::string, std::string> labels;
  double value = 0;
};

// Samples by metric. `types` has the types from the TYPE lines in front of the samples.
struct Exposition {
  std::map<std::string, std::string> types;
  std::map<std::string, std::vector<Sample>> samples;

  double value(const std::string& name, const std::map<std::string, std::string>& labels = {}) const {
    const auto at = samples.find(name);
    if (at == samples.end()) return -1;
    for (const Sample& sample : at->second) {
      bool fits = true;
      for (const auto& [label, wanted] : labels)
        fits &= sample.labels.contains(label) && sample.labels.at(label) == wanted;
      if (fits) return sample.value;
    }
    return -1;
  }
};

std::map<std::string, std::string> parse_labels(std::string text) {
  static const std::regex kLabel(R"re(([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$))re");
  std::map<std::string, std::string> labels;
  for (std::smatch match; std::regex_search(text, match, kLabel, std::regex_constants::match_continuous);
       text = match.suffix())
    EXPECT_TRUE(labels.emplace(match[1], match[2]).second) << "twice: " << match[1];
  EXPECT_EQ(text, "") << "no label";
  return labels;
}

Exposition parse(const std::string& text) {
  static const std::regex kHelp("# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)");
  static const std::regex kType("# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram)");
  static const std::regex kSample(R"(([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([0-9.e+-]+))");
  Exposition exposition;
  EXPECT_TRUE(text.ends_with('\n'));
  std::istringstream in(text);
  std::string helped, typed;
  std::set<std::pair<std::string, std::map<std::string, std::string>>> seen;
  for (std::string line; std::getline(in, line);) {
    std::smatch match;
    if (std::regex_match(line, match, kHelp)) {
      helped = match[1];
    } else if (std::regex_match(line, match, kType)) {
      typed = match[1];
      EXPECT_EQ(helped, typed) << line;
      EXPECT_TRUE(exposition.types.emplace(typed, match[2]).second) << "again: " << line;
    } else if (std::regex_match(line, match, kSample)) {
      const std::string name = match[1], type = exposition.types[typed];
      EXPECT_TRUE(type == "histogram"
                      ? name == typed + "_bucket" || name == typed + "_sum" || name == typed + "_count"
                      : name == typed)
          << line << " is not of " << typed;
      EXPECT_EQ(type == "counter", name.ends_with("_total")) << line;
      const auto labels = parse_labels(match[2]);
      EXPECT_TRUE(seen.emplace(name, labels).second) << "twice: " << line;
      exposition.samples[name].push_back({labels, std::stod(match[3])});
    } else {
      ADD_FAILURE() << "not of the format: " << line;
    }
  }
  return exposition;
}

EngineNumbers some_numbers() {
  EngineNumbers numbers{.running = 3, .waiting = 2, .refused = 11, .draft_workers = 4};
  Totals& totals = numbers.totals;
  totals.finished = {5, 7, 1, 2};
  totals.prompt_tokens = 1000;
  totals.rounds.add_round(0, 0, 1, true);
  totals.rounds.add_round(4, 4, 5, false);
  totals.rounds.add_round(4, 1, 2, false);
  totals.rounds.add_round(2, 0, 1, false);
  totals.drafts_dropped[static_cast<size_t>(DropReason::kStaleRound)] = 6;
  totals.workers_joined = 9;
  totals.workers_lost = 3;
  totals.forward_ns = 1'500'000'000;
  for (const int ms : {2, 30, 700}) totals.ttft.add(milliseconds(ms));
  for (const int ms : {0, 0, 0, 9, 40}) totals.gaps.add(milliseconds(ms));
  totals.e2e.add(milliseconds(3000));
  numbers.wire.sent_bytes[0] = 100;
  numbers.wire.sent_bytes[1] = 11;
  numbers.wire.malformed_frames = 8;
  return numbers;
}

TEST(MetricsText, TellsWhatWasCounted) {
  const Exposition metrics = parse(metrics_text(some_numbers(), {.model = "demo"}));
  const auto value = [&](const std::string& name, const std::map<std::string, std::string>& labels = {}) {
    return metrics.value("outrider_" + name, labels);
  };
  EXPECT_EQ(value("num_requests_running"), 3);
  EXPECT_EQ(value("num_requests_waiting"), 2);
  EXPECT_EQ(value("draft_workers"), 4);
  EXPECT_EQ(value("requests_refused_total"), 11);
  EXPECT_EQ(value("prompt_tokens_total"), 1000);
  EXPECT_EQ(value("generation_tokens_total"), 9);
  EXPECT_EQ(value("request_success_total", {{"finished_reason", "stop"}}), 5);
  EXPECT_EQ(value("request_success_total", {{"finished_reason", "abort"}}), 2);
  EXPECT_EQ(value("requests_finished_total", {{"reason", "error"}}), 1);
  EXPECT_EQ(value("spec_decode_num_drafts_total"), 3);
  EXPECT_EQ(value("spec_decode_num_draft_tokens_total"), 10);
  EXPECT_EQ(value("spec_decode_num_accepted_tokens_total"), 5);
  EXPECT_EQ(value("drafts_discarded_total", {{"reason", "stale_round"}}), 6);
  EXPECT_EQ(value("drafts_discarded_total", {{"reason", "bad_q"}}), 0);
  EXPECT_EQ(value("draft_worker_events_total", {{"event", "joined"}}), 9);
  EXPECT_EQ(value("draft_worker_events_total", {{"event", "lost"}}), 3);
  EXPECT_EQ(value("target_seconds_total", {{"part", "forward"}}), 1.5);
  EXPECT_EQ(value("sent_bytes_total"), 111);
  EXPECT_EQ(value("malformed_frames_total"), 8);
  EXPECT_EQ(value("rounds_total", {{"draft_tokens", "4"}}), 2);
  EXPECT_EQ(value("rollbacks_total"), 2);
  for (const auto& [name, samples] : metrics.samples)
    for (const Sample& sample : samples) {
      if (name.starts_with("process_")) continue;
      EXPECT_EQ(sample.labels.at("model_name"), "demo") << name;
    }
}

TEST(MetricsText, SumsOverLabelsAgree) {
  const Exposition metrics = parse(metrics_text(some_numbers(), {.model = "demo"}));
  const auto sum = [&](const std::string& name) {
    double total = 0;
    for (const Sample& sample : metrics.samples.at("outrider_" + name)) total += sample.value;
    return total;
  };
  EXPECT_EQ(sum("spec_decode_num_accepted_tokens_per_pos_total"),
            metrics.value("outrider_spec_decode_num_accepted_tokens_total"));
  EXPECT_EQ(sum("rounds_total"), 4);
  EXPECT_EQ(sum("requests_finished_total"), 15);
  // Accepted at a position is never more than tested there, nor than accepted before it.
  double before = 1e9;
  for (const Sample& sample : metrics.samples.at("outrider_spec_decode_num_accepted_tokens_per_pos_total")) {
    EXPECT_LE(sample.value, metrics.value("outrider_spec_decode_num_tested_tokens_per_pos_total",
                                          {{"position", sample.labels.at("position")}}));
    EXPECT_LE(sample.value, before);
    before = sample.value;
  }
}

TEST(MetricsText, HistogramsAreCumulative) {
  const Exposition metrics = parse(metrics_text(some_numbers(), {.model = "demo"}));
  for (const auto& [name, count, sum] : {std::tuple{"time_to_first_token_seconds", 3, 0.732},
                                         {"inter_token_latency_seconds", 5, 0.049},
                                         {"e2e_request_latency_seconds", 1, 3.0}}) {
    const std::string full = std::string("outrider_") + name;
    EXPECT_EQ(metrics.types.at(full), "histogram");
    EXPECT_EQ(metrics.value(full + "_count"), count);
    EXPECT_NEAR(metrics.value(full + "_sum"), sum, 1e-9);
    double last = 0, last_bound = 0;
    const auto& buckets = metrics.samples.at(full + "_bucket");
    for (const Sample& bucket : buckets) {
      EXPECT_GE(bucket.value, last);
      last = bucket.value;
      const std::string le = bucket.labels.at("le");
      const double bound = le == "+Inf" ? HUGE_VAL : std::stod(le);
      EXPECT_GT(bound, last_bound);
      last_bound = bound;
    }
    EXPECT_EQ(buckets.back().labels.at("le"), "+Inf");
    EXPECT_EQ(last, count);
  }
  EXPECT_EQ(metrics.value("outrider_time_to_first_token_seconds_bucket", {{"le", "0.01"}}), 1);
  EXPECT_EQ(metrics.value("outrider_time_to_first_token_seconds_bucket", {{"le", "0.1"}}), 2);
  EXPECT_EQ(metrics.value("outrider_inter_token_latency_seconds_bucket", {{"le", "0.0005"}}), 3);
}

// `vllm bench serve` reads lines that start with these names and end with _total before the labels.
TEST(MetricsText, AlsoSpeaksVllm) {
  EXPECT_EQ(metrics_text(some_numbers(), {.model = "demo"}).find("vllm"), std::string::npos);
  const Exposition metrics = parse(metrics_text(some_numbers(), {.model = "demo", .vllm_names = true}));
  for (const auto& [name, wanted] : {std::pair{"num_drafts", 3},
                                     {"num_draft_tokens", 10},
                                     {"num_accepted_tokens", 5},
                                     {"num_accepted_tokens_per_pos", 2}})
    EXPECT_EQ(metrics.value(std::string("vllm:spec_decode_") + name + "_total"), wanted) << name;
  EXPECT_EQ(metrics.value("vllm:num_requests_running"), 3);
  EXPECT_EQ(metrics.value("vllm:generation_tokens_total"), 9);
  for (const auto& [name, samples] : metrics.samples) {
    if (!name.starts_with("vllm:")) continue;
    const auto& ours = metrics.samples.at("outrider_" + name.substr(5));
    ASSERT_EQ(samples.size(), ours.size()) << name;
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_EQ(samples[i].value, ours[i].value) << name;
  }
}

TEST(MetricsText, AnyModelNameIsALabel) {
  const std::string text = metrics_text({}, {.model = "a \"b\"\\c\nd", .vllm_names = true});
  const Exposition metrics = parse(text);
  EXPECT_EQ(metrics.samples.at("outrider_num_requests_running")[0].labels.at("model_name"),
            R"(a \"b\"\\c\nd)");
}

EngineNumbers busy_numbers() {
  EngineNumbers numbers = some_numbers();
  numbers.totals.queued.add(milliseconds(20));
  numbers.totals.prompt_lengths.add(100);
  numbers.totals.generation_lengths.add(1);
  numbers.overview = {
      .kv_tokens = 30, .kv_room = 120, .gammas = {1, 0, 2}, .mean_gamma = 4.0 / 3, .workers = {}};
  numbers.overview.workers.push_back({.peer = 7,
                                      .host = "10.0.0.7",
                                      .model = "draft",
                                      .weights = 0xabc,
                                      .state = WorkerOverview::State::kLeftAlone,
                                      .sequences = 3,
                                      .room = 8,
                                      .drafts = 2,
                                      .drafted = 9,
                                      .tested = 6,
                                      .accepted = 5,
                                      .seconds_per_token = 0.5});
  numbers.totals.drafters[0xabc] = {.name = "draft", .drafted = 9, .accepted = 5};
  numbers.totals.drafters[0xabd] = {.name = "draft", .drafted = 8, .accepted = 7};
  numbers.pace = {
      .acceptance = 0.75, .tokens_per_target_pass = 6, .predicted_speedup = 1.5, .measured_speedup = 1.25};
  return numbers;
}

TEST(MetricsText, TellsHowThingsStand) {
  ResponseCounts responses;
  responses.add(200);
  responses.add(429);
  const Exposition metrics = parse(metrics_text(
      busy_numbers(), {.model = "demo", .policy = "ewma", .vllm_names = true, .responses = &responses}));
  const auto value = [&](const std::string& name, const std::map<std::string, std::string>& labels = {}) {
    return metrics.value("outrider_" + name, labels);
  };
  EXPECT_EQ(value("kv_cache_usage_perc"), 0.25);
  EXPECT_EQ(metrics.value("vllm:kv_cache_usage_perc"), 0.25);
  EXPECT_EQ(value("gamma_policy_info", {{"policy", "ewma"}}), 1);
  EXPECT_EQ(value("gamma_sequences", {{"draft_tokens", "2"}}), 2);
  EXPECT_EQ(value("recent_speedup", {{"kind", "measured"}}), 1.25);
  EXPECT_EQ(value("recent_acceptance"), 0.75);
  EXPECT_EQ(value("draft_worker_usable", {{"worker", "7"}}), 0);
  EXPECT_EQ(
      value("draft_worker_accepted_tokens_total",
            {{"worker", "7"}, {"host", "10.0.0.7"}, {"model", "draft"}, {"weights", "0000000000000abc"}}),
      5);
  EXPECT_EQ(value("drafter_accepted_tokens_total", {{"model", "draft"}, {"weights", "0000000000000abc"}}), 5);
  EXPECT_EQ(value("drafter_draft_tokens_total", {{"model", "draft"}, {"weights", "0000000000000abd"}}), 8);
  EXPECT_EQ(value("http_responses_total", {{"status", "429"}}), 1);
  EXPECT_EQ(value("request_queue_time_seconds_count"), 1);
  EXPECT_EQ(value("request_prompt_tokens_bucket", {{"le", "64"}}), 0);
  EXPECT_EQ(value("request_prompt_tokens_bucket", {{"le", "128"}}), 1);
  EXPECT_EQ(value("request_prompt_tokens_sum"), 100);
  EXPECT_EQ(value("request_generation_tokens_bucket", {{"le", "1"}}), 1);
  EXPECT_GT(metrics.value("process_resident_memory_bytes"), 0);
}

// A name that is misspelt there would be an empty panel.
TEST(MetricsText, TheDashboardAsksForMetricsThatThereAre) {
  ResponseCounts responses;
  responses.add(200);
  EngineNumbers numbers = busy_numbers();
  numbers.overview.groups.resize(2);
  const std::string text =
      metrics_text(numbers, {.model = "demo", .policy = "ewma", .responses = &responses});
  std::ifstream file(source_dir() / "serve/grafana_dashboard.json");
  const auto dashboard = nlohmann::json::parse(file);
  size_t names = 0;
  for (const auto& panel : dashboard["panels"])
    for (const auto& target : panel["targets"]) {
      const std::string expression = target["expr"];
      const std::regex metric("(outrider|process)_[a-z0-9_]+");
      for (std::sregex_iterator at(expression.begin(), expression.end(), metric), end; at != end;
           ++at, ++names) {
        std::string line = at->str();
        line.insert(line.begin(), '\n');
        EXPECT_NE(text.find(line), std::string::npos) << line;
      }
    }
  EXPECT_GT(names, 40u);
  for (const char* shown : {"outrider_target_group_here", "outrider_failovers_total",
                            "outrider_prefix_cache_hits_total", "outrider_requests_refused_total"})
    EXPECT_NE(dashboard.dump().find(shown), std::string::npos) << shown;
}

TEST(MetricsText, NothingCountedIsWellFormed) {
  const Exposition metrics = parse(metrics_text({}, {.model = "demo", .vllm_names = true}));
  EXPECT_EQ(metrics.value("outrider_spec_decode_num_drafts_total"), 0);
  EXPECT_EQ(metrics.value("outrider_time_to_first_token_seconds_count"), 0);
}

}  // namespace
}  // namespace outrider
