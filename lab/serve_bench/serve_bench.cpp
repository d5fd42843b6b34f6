#include "lab/serve_bench/serve_bench.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "base/statistics.h"
#include "lab/report/svg_file.h"
#include "lab/report/terminal.h"
#include "lab/serve_bench/figures.h"
#include "lab/serve_bench/pareto.h"
#include "requests/output.h"

namespace outrider {
namespace {

using nlohmann::json;
using report::Tone;

// One server with one set of further fields.
struct Arm {
  std::string name;
  HttpAddress server;
  std::string model;
  json fields = json::object();
};

struct Named {
  std::string name, value;
};

// NAME=VALUE, where a name has none of ":/{".
Named named(const std::string& text, const std::string& otherwise) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || text.find_first_of(":/{") < equals) return {otherwise, text};
  return {text.substr(0, equals), text.substr(equals + 1)};
}

Result<std::string> first_model(const HttpAddress& server) {
  ASSIGN_OR_RETURN(const std::string body, http_get(server, "/v1/models"));
  const json models = json::parse(body, nullptr, false);
  const auto id = models.is_object() ? models.value(json::json_pointer("/data/0/id"), json()) : json();
  if (!id.is_string()) return unavailable("/v1/models names no model; write --model-name");
  return id.get<std::string>();
}

Result<std::vector<Arm>> arms_of(const ServeBenchOptions& o) {
  std::vector<Named> variants;
  for (const std::string& text : o.variants) variants.push_back(named(text, "variant"));
  if (variants.empty()) variants.push_back({"", "{}"});
  std::vector<Arm> arms;
  for (const std::string& text : o.servers) {
    const Named server = named(text, text);
    ASSIGN_OR_RETURN(HttpAddress address, HttpAddress::parse(server.value));
    address.api_key = o.api_key;
    std::string model = o.model;
    if (model.empty()) {
      auto found = first_model(address);
      if (!found.ok()) return found.status().in("--server " + text);
      model = std::move(found).value();
    }
    for (const Named& variant : variants) {
      json fields = json::parse(variant.value, nullptr, false);
      if (!fields.is_object())
        return invalid_argument(
            fmt::format("--variant {}: write NAME={{\"field\": value, ...}}", variant.name));
      const std::string name = variant.name.empty()    ? server.name
                               : o.servers.size() == 1 ? variant.name
                                                       : server.name + " " + variant.name;
      arms.push_back({name, address, model, std::move(fields)});
    }
  }
  return arms;
}

Result<std::vector<PlannedRequest>> plan_of(const ServeBenchOptions& o, const Arm& arm, double rate, int turn,
                                            size_t count) {
  WorkloadOptions workload = o.workload;
  workload.seed += static_cast<uint64_t>(turn) * 7919;  // other arrivals and texts; the same for every arm
  ASSIGN_OR_RETURN(const auto arrivals, arrivals_of(workload, count));
  std::vector<PlannedRequest> plan;
  for (size_t i = 0; i < arrivals.size(); ++i) {
    json body{{"model", arm.model},
              {"prompt", prompt_of(workload, i, arrivals[i].prompt_tokens)},
              {"max_tokens", arrivals[i].output_tokens},
              {"temperature", o.temperature},
              {"seed", workload.seed + i},
              {"ignore_eos", true},
              {"stream", true},
              {"stream_options", {{"include_usage", true}}}};
    body.update(arm.fields);
    plan.push_back({.at_s = arrivals[i].at_s / rate, .body = json_text(body)});
  }
  return plan;
}

// Outcomes of all arms at one rate: [arm][turn].
struct RateRun {
  double rate = 0;
  std::vector<std::vector<std::vector<RequestOutcome>>> outcomes;
  std::vector<LoadFigures> figures;  // by arm
  std::vector<Ratio> whole_time;     // of each arm's mean time of a request over the first arm's, by turn
};

double mean_whole(const std::vector<RequestOutcome>& turn) {
  std::vector<double> times;
  for (const RequestOutcome& r : turn)
    if (r.ok()) times.push_back(r.whole_s);
  return Percentiles::of(std::move(times)).mean;
}

Result<RateRun> run_rate(const ServeBenchOptions& o, const std::vector<Arm>& arms, double rate) {
  RateRun run{.rate = rate, .outcomes = {}, .figures = {}, .whole_time = {}};
  run.outcomes.resize(arms.size());
  const auto count = static_cast<size_t>(std::max(1.0, std::round(rate * o.duration_s)));
  for (int turn = 0; turn < o.turns; ++turn)
    for (size_t i = 0; i < arms.size(); ++i) {
      const size_t a = (i + static_cast<size_t>(turn)) % arms.size();  // the arms take turns at being first
      ASSIGN_OR_RETURN(const auto plan, plan_of(o, arms[a], rate, turn, count));
      if (!o.quiet)
        std::fprintf(stderr, "outrider: %g requests/s, turn %d of %d: %s\n", rate, turn + 1, o.turns,
                     arms[a].name.c_str());
      run.outcomes[a].push_back(run_load(arms[a].server, plan, o.timeout_s));
    }
  for (const auto& turns : run.outcomes) {
    run.figures.push_back(figures_of(turns, {.first_s = o.slo_first_s, .per_token_s = o.slo_per_token_s}));
    std::vector<double> ratios;
    for (size_t turn = 0; turn < turns.size(); ++turn) {
      const double mine = mean_whole(turns[turn]), first = mean_whole(run.outcomes[0][turn]);
      if (mine > 0 && first > 0) ratios.push_back(mine / first);
    }
    run.whole_time.push_back(paired_ratio(ratios));
  }
  return run;
}

// ---- reports --------------------------------------------------------------------------------------------

std::string milliseconds_text(double seconds) { return fmt::format("{:.1f}", seconds * 1e3); }

report::Table table_of(const RateRun& run, const std::vector<Arm>& arms) {
  report::Table table{
      .title = fmt::format("{:g} requests/s", run.rate), .text = {}, .columns = {}, .rows = {}};
  table.columns = {{"server", "", true},    {"requests", ""},
                   {"failed", ""},          {"TTFT p50", "ms"},
                   {"p95", "ms"},           {"p99", "ms"},
                   {"per token p50", "ms"}, {"p95", "ms"},
                   {"chunk gap p99", "ms"}, {"whole p50", "ms"},
                   {"p95", "ms"},           {"p99", "ms"},
                   {"speed", "tokens/s"},   {"goodput", "requests/s"},
                   {"within SLO", "%"},     {"accepted", "%"}};
  for (size_t a = 0; a < arms.size(); ++a) {
    const LoadFigures& f = run.figures[a];
    const std::string accepted = f.draft_tokens > 0
                                     ? fmt::format("{:.1f}", 100.0 * static_cast<double>(f.accepted_tokens) /
                                                                 static_cast<double>(f.draft_tokens))
                                     : "-";
    table.rows.push_back({{arms[a].name},
                          {std::to_string(f.requests)},
                          {std::to_string(f.failed), f.failed > 0 ? Tone::kBad : Tone::kPlain},
                          {milliseconds_text(f.first_s.p50)},
                          {milliseconds_text(f.first_s.p95)},
                          {milliseconds_text(f.first_s.p99)},
                          {milliseconds_text(f.per_token_s.p50)},
                          {milliseconds_text(f.per_token_s.p95)},
                          {milliseconds_text(f.gap_s.p99)},
                          {milliseconds_text(f.whole_s.p50)},
                          {milliseconds_text(f.whole_s.p95)},
                          {milliseconds_text(f.whole_s.p99)},
                          {fmt::format("{:.1f}", f.tokens_per_second())},
                          {fmt::format("{:.2f}", f.goodput())},
                          {fmt::format("{:.1f}", 100 * f.good_share())},
                          {accepted}});
  }
  return table;
}

template <class Of>
report::Figure figure_over_rates(const std::string& title, const std::string& text, const report::Axis& y,
                                 const std::vector<RateRun>& runs, const std::vector<Arm>& arms,
                                 Of value_of) {
  report::Plot plot{.x = {.label = "arrivals", .unit = "requests/s", .names = {}},
                    .y = y,
                    .guide = {},
                    .guide_name = {},
                    .panels = {{.title = {}, .series = {}}}};
  for (size_t a = 0; a < arms.size(); ++a) {
    report::Series series{.name = arms[a].name, .points = {}};
    for (const RateRun& run : runs) series.points.push_back({run.rate, {value_of(run.figures[a])}});
    plot.panels[0].series.push_back(std::move(series));
  }
  return {.title = title, .text = text, .drawing = std::move(plot)};
}

// The points of each arm, by rate.
std::vector<std::vector<LoadPoint>> load_points(const std::vector<RateRun>& runs, size_t arms) {
  std::vector<std::vector<LoadPoint>> out(arms);
  for (size_t a = 0; a < arms; ++a) {
    for (const RateRun& run : runs) {
      const double median = run.figures[a].per_token_s.p50;
      out[a].push_back({.rate = run.rate,
                        .user = median > 0 ? 1 / median : 0,
                        .server = run.figures[a].tokens_per_second()});
    }
    mark_front(out[a]);
  }
  return out;
}

report::Figure pareto_figure(const std::vector<RateRun>& runs, const std::vector<Arm>& arms) {
  report::Plot plot{.x = {.label = "of one user", .unit = "tokens/s", .names = {}},
                    .y = {"of the server", "tokens/s", {}},
                    .guide = {},
                    .guide_name = {},
                    .panels = {{.title = {}, .series = {}}}};
  const auto points = load_points(runs, arms.size());
  for (size_t a = 0; a < arms.size(); ++a) {
    report::Series front{.name = arms[a].name, .points = {}, .thing = {}},
        behind{.name = arms[a].name + ", behind",
               .points = {},
               .kind = report::Series::Kind::kMarks,
               .thing = arms[a].name};
    for (const LoadPoint& point : points[a])
      if (point.measured()) (point.on_front ? front : behind).points.push_back({point.user, {point.server}});
    std::sort(front.points.begin(), front.points.end(),
              [](const report::Point& one, const report::Point& other) { return one.x < other.x; });
    plot.panels[0].series.push_back(std::move(front));
    if (!behind.points.empty()) plot.panels[0].series.push_back(std::move(behind));
  }
  return {
      .title = "Speed of the server against speed for a user",
      .text =
          "One point for each rate of arrivals. The line joins the points of a server that no other of its "
          "points beats in both.",
      .drawing = std::move(plot)};
}

report::Table pareto_table(const std::vector<RateRun>& runs, const std::vector<Arm>& arms) {
  report::Table table{
      .title = "Speed of the server against speed for a user",
      .text = arms.size() < 2
                  ? ""
                  : fmt::format("The last column: speed of the server over that of {} at the same "
                                "speed for a user, by straight lines along its front.",
                                arms[0].name),
      .columns = {{"server", "", true},
                  {"arrivals", "requests/s"},
                  {"a user", "tokens/s"},
                  {"the server", "tokens/s"},
                  {"on its front", "", true}},
      .rows = {}};
  if (arms.size() > 1) table.columns.push_back({"at equal speed for a user", "times"});
  const auto points = load_points(runs, arms.size());
  for (size_t a = 0; a < arms.size(); ++a)
    for (const LoadPoint& point : points[a]) {
      table.rows.push_back({{arms[a].name},
                            {fmt::format("{:g}", point.rate)},
                            {fmt::format("{:.1f}", point.user)},
                            {fmt::format("{:.1f}", point.server)},
                            {point.on_front ? "yes" : "no"}});
      if (arms.size() < 2) continue;
      if (a == 0 || !point.measured()) {
        table.rows.back().push_back({""});
        continue;
      }
      const auto first = server_at(points[0], point.user);
      table.rows.back().push_back(
          {first ? fmt::format("{:.2f}", point.server / *first) : "faster than it can"});
    }
  return table;
}

std::vector<report::Conclusion> conclusions_of(const std::vector<RateRun>& runs,
                                               const std::vector<Arm>& arms) {
  std::vector<report::Conclusion> out;
  for (size_t a = 1; a < arms.size(); ++a)
    for (const RateRun& run : runs) {
      const Ratio& time = run.whole_time[a];
      if (!time.measured()) continue;
      const bool faster = time.is_below(1), slower = time.is_above(1);
      out.push_back({fmt::format("At {:g} requests/s a request to {} takes {} times as long as one to {}{}.",
                                 run.rate, arms[a].name, describe(time), arms[0].name,
                                 faster || slower ? "" : ", which may be no difference"),
                     faster   ? Tone::kGood
                     : slower ? Tone::kBad
                              : Tone::kPlain});
    }
  int64_t failed = 0;
  for (const RateRun& run : runs)
    for (const LoadFigures& f : run.figures) failed += f.failed;
  if (failed > 0) out.push_back({fmt::format("{} requests failed.", failed), Tone::kBad});
  return out;
}

std::string workload_text(const ServeBenchOptions& o) {
  const WorkloadOptions& w = o.workload;
  const std::string lengths =
      w.trace.empty()
          ? fmt::format("arrivals of a Poisson process, {} prompt tokens, {} to generate", w.prompt_tokens,
                        w.output_tokens)
          : fmt::format("arrivals and lengths of {}, lengths times {:g}", w.trace, w.length_scale);
  const std::string shared = w.prefix_tokens > 0
                                 ? fmt::format("; the first {} words are shared by each of {} groups",
                                               w.prefix_tokens, w.prefix_groups)
                                 : "";
  return fmt::format("{}{}; seed {}", lengths, shared, w.seed);
}

report::Report page_of(const ServeBenchOptions& o, const std::vector<RateRun>& runs,
                       const std::vector<Arm>& arms) {
  const std::string slo = fmt::format("TTFT at most {:g} ms and at most {:g} ms per token after it",
                                      o.slo_first_s * 1e3, o.slo_per_token_s * 1e3);
  report::Section figures{.title = "Over the rate of arrivals", .text = {}, .parts = {}};
  figures.parts.push_back(figure_over_rates("Goodput", "Requests that kept the objective, a second.",
                                            {"goodput", "requests/s", {}}, runs, arms,
                                            [](const LoadFigures& f) { return f.goodput(); }));
  figures.parts.push_back(figure_over_rates("Time to the first token, p95", "", {"TTFT", "ms", {}}, runs,
                                            arms, [](const LoadFigures& f) { return f.first_s.p95 * 1e3; }));
  figures.parts.push_back(figure_over_rates("Time per token after the first, p95", "Mean of each request.",
                                            {"time", "ms", {}}, runs, arms,
                                            [](const LoadFigures& f) { return f.per_token_s.p95 * 1e3; }));
  figures.parts.push_back(figure_over_rates("Time of a whole request, median", "", {"time", "ms", {}}, runs,
                                            arms, [](const LoadFigures& f) { return f.whole_s.p50 * 1e3; }));
  figures.parts.push_back(pareto_figure(runs, arms));
  report::Section tables{.title = "Every figure",
                         .text =
                             "Pooled over turns. Requests are sent at their moment whatever became of those "
                             "before. Percentiles by nearest rank. A chunk may bring several tokens.",
                         .parts = {}};
  tables.parts.push_back(pareto_table(runs, arms));
  for (const RateRun& run : runs) tables.parts.push_back(table_of(run, arms));
  return {.title = "Servers under load",
          .subtitle = fmt::format("{} at {} rates, {} turns of {:g} s each.",
                                  arms.size() == 1 ? "One server" : "Servers in turns", runs.size(), o.turns,
                                  o.duration_s),
          .conclusions = conclusions_of(runs, arms),
          .facts = {{"workload", workload_text(o)}, {"objective", slo}},
          .sections = {std::move(figures), std::move(tables)}};
}

json json_of(const ServeBenchOptions& o, const std::vector<RateRun>& runs, const std::vector<Arm>& arms) {
  json out{{"workload", workload_text(o)},
           {"turns", o.turns},
           {"duration_s", o.duration_s},
           {"slo", {{"first_token_s", o.slo_first_s}, {"per_token_s", o.slo_per_token_s}}},
           {"rates", json::array()}};
  for (const RateRun& run : runs) {
    json rate{{"requests_per_second", run.rate}, {"arms", json::array()}};
    for (size_t a = 0; a < arms.size(); ++a) {
      json arm = json_of(run.figures[a]);
      arm["name"] = arms[a].name;
      arm["model"] = arms[a].model;
      arm["fields"] = arms[a].fields;
      arm["whole_time_over_first_arm"] = {{"value", run.whole_time[a].value},
                                          {"low", run.whole_time[a].low},
                                          {"high", run.whole_time[a].high}};
      rate["arms"].push_back(std::move(arm));
    }
    out["rates"].push_back(std::move(rate));
  }
  const auto points = load_points(runs, arms.size());
  for (size_t a = 0; a < arms.size(); ++a)
    for (const LoadPoint& point : points[a])
      out["pareto"].push_back({{"name", arms[a].name},
                               {"requests_per_second", point.rate},
                               {"tokens_per_second_per_user", point.user},
                               {"tokens_per_second", point.server},
                               {"on_front", point.on_front}});
  return out;
}

Result<int> bench(const ServeBenchOptions& o) {
  RETURN_IF_ERROR(check(o.files));
  if (o.rates.empty()) return invalid_argument("--rates: name at least one");
  ASSIGN_OR_RETURN(const auto arms, arms_of(o));
  std::vector<RateRun> runs;
  int64_t failed = 0;
  for (const double rate : o.rates) {
    ASSIGN_OR_RETURN(RateRun run, run_rate(o, arms, rate));
    std::fputs(on_screen(table_of(run, arms), report::Screen::of(stdout)).c_str(), stdout);
    std::fflush(stdout);
    for (size_t a = 0; a < arms.size(); ++a) {
      failed += run.figures[a].failed;
      for (const auto& [error, count] : run.figures[a].errors)
        tell_error(fmt::format("{}: {} requests: {}", arms[a].name, count, printable(error, 300)));
    }
    runs.push_back(std::move(run));
  }
  std::fputs(on_screen(pareto_table(runs, arms), report::Screen::of(stdout)).c_str(), stdout);
  for (const auto& conclusion : conclusions_of(runs, arms)) std::printf("%s\n", conclusion.text.c_str());
  if (!o.pareto.empty())
    RETURN_IF_ERROR(write_file(o.pareto, report::svg_file(pareto_figure(runs, arms))).in("--pareto"));
  RETURN_IF_ERROR(write(o.files, json_of(o, runs, arms), page_of(o, runs, arms)));
  return failed == 0 ? kExitOk : kExitRequestFailed;
}

}  // namespace

void add_serve_bench_options(CLI::App& app, ServeBenchOptions& o) {
  const auto add = [&app](const char* group, const char* flag, auto& to, const char* help) {
    return app.add_option(flag, to, help)->group(group)->capture_default_str();
  };
  constexpr const char *kServers = "Servers", *kLoad = "Load", *kReports = "Reports";
  add(kServers, "--server", o.servers, "URL, or NAME=URL; several are measured in turns");
  add(kServers, "--variant", o.variants,
      "NAME={\"field\": value}: added to every body; several are measured in turns, e.g. "
      "'plain={\"num_speculative_tokens\": 0}' 'drafts={}'");
  add(kServers, "--model-name", o.model, "Default: the first that a server lists");
  add(kServers, "--api-key", o.api_key, "Sent to all servers");
  add(kLoad, "--rates", o.rates, "Requests a second, e.g. 1,2,4")
      ->delimiter(',')
      ->check(number_in(0.001, 1e5));
  add(kLoad, "--duration", o.duration_s, "Seconds of arrivals in a turn")->check(number_in(0.1, 86400));
  add(kLoad, "--turns", o.turns, "Turns at each rate")->check(CLI::Range(1, 1000));
  add(kLoad, "--trace", o.workload.trace,
      "Arrivals and lengths of this file (TIMESTAMP,ContextTokens,GeneratedTokens), scaled to the rate");
  add(kLoad, "--length-scale", o.workload.length_scale, "Share of a trace's lengths")->check(number_in(1e-4, 1e4));
  add(kLoad, "--max-prompt-tokens", o.workload.max_prompt_tokens, "Longer prompts are cut; 0: none is");
  add(kLoad, "--max-output-tokens", o.workload.max_output_tokens, "The same of what is generated");
  add(kLoad, "--prompt-tokens", o.workload.prompt_tokens, "Without a trace: of every request")
      ->check(CLI::Range(1, 1 << 20));
  add(kLoad, "--output-tokens", o.workload.output_tokens, "The same of what is generated")
      ->check(CLI::Range(1, 1 << 20));
  add(kLoad, "--prefix-tokens", o.workload.prefix_tokens, "So many words of a prompt are those of its group");
  add(kLoad, "--prefix-groups", o.workload.prefix_groups, "Groups of prompts that begin alike")
      ->check(CLI::Range(1, 1 << 20));
  add(kLoad, "--temperature", o.temperature, "0: greedy")->check(number_in(0, 100));
  add(kLoad, "--seed", o.workload.seed, "Of arrivals and texts");
  add(kLoad, "--timeout", o.timeout_s, "Seconds after which a request has failed")
      ->check(number_in(0.1, 86400));
  add(kLoad, "--slo-ttft", o.slo_first_s, "Objective: seconds to the first token")
      ->check(number_in(0, 86400));
  add(kLoad, "--slo-tpot", o.slo_per_token_s, "Objective: seconds per token after it")
      ->check(number_in(0, 86400));
  add_report_options(app, o.files);
  add(kReports, "--pareto", o.pareto, "Tokens/s of the server against tokens/s of a user, as SVG");
  app.add_flag("-q,--quiet", o.quiet, "No progress on standard error")->group(kReports);
  app.footer(
      "Examples:\n"
      "  outrider serve-bench --rates 1,2,4 --prompt-tokens 128 --output-tokens 64 --html load.html\n"
      "  outrider serve-bench --trace AzureLLMInferenceTrace_conv.csv --length-scale 0.2 --max-prompt-tokens "
      "300\n"
      "      --variant 'plain={\"num_speculative_tokens\": 0}' --variant 'drafts={}'\n"
      "  outrider serve-bench --server ours=http://127.0.0.1:8000 --server other=http://127.0.0.1:8001");
}

int run_serve_bench(const ServeBenchOptions& options) { return told_exit_code(bench(options)); }

}  // namespace outrider
