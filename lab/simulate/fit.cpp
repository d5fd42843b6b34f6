#include "lab/simulate/fit.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/version.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using FitRow = std::array<double, 3>;  // 1, rows, context

double column_of(const PassSample& s, size_t column) {
  return column == 0 ? 1 : column == 1 ? s.rows : s.context;
}

// Gaussian elimination with pivots on the normal equations of the given columns, each scaled to a mean square
// of 1. Empty if two columns are linearly dependent.
std::optional<FitRow> least_squares(const std::vector<PassSample>& samples,
                                    const std::vector<size_t>& columns) {
  const size_t n = columns.size();
  FitRow scale{};
  for (size_t c = 0; c < n; ++c) {
    for (const PassSample& s : samples) scale[c] += column_of(s, columns[c]) * column_of(s, columns[c]);
    scale[c] = std::sqrt(scale[c] / static_cast<double>(samples.size()));
    if (scale[c] == 0) return std::nullopt;
  }
  std::array<std::array<double, 4>, 3> m{};
  for (const PassSample& s : samples)
    for (size_t i = 0; i < n; ++i) {
      const double x = column_of(s, columns[i]) / scale[i];
      for (size_t j = 0; j < n; ++j) m[i][j] += x * column_of(s, columns[j]) / scale[j];
      m[i][3] += x * s.seconds;
    }
  constexpr double kSingular = 1e-9;
  for (size_t i = 0; i < n; ++i) {
    size_t pivot = i;
    for (size_t r = i + 1; r < n; ++r)
      if (std::abs(m[r][i]) > std::abs(m[pivot][i])) pivot = r;
    std::swap(m[i], m[pivot]);
    if (std::abs(m[i][i]) < kSingular * static_cast<double>(samples.size())) return std::nullopt;
    for (size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = m[r][i] / m[i][i];
      for (size_t c = i; c < 4; ++c) m[r][c] -= factor * m[i][c];
    }
  }
  FitRow solution{};
  for (size_t i = 0; i < n; ++i) solution[columns[i]] = m[i][3] / m[i][i] / scale[i];
  return solution;
}

void judge(const std::vector<PassSample>& samples, PassFit& fit) {
  fit.samples = samples.size();
  for (const PassSample& s : samples) {
    const double error = std::abs(
        (fit.cost.base + fit.cost.per_row * s.rows + fit.cost.per_context * s.context) / s.seconds - 1);
    fit.mean_error += error / static_cast<double>(samples.size());
    fit.worst_error = std::max(fit.worst_error, error);
  }
}

// "target": a name, or an object that has one.
std::string name_in(const Json& report, const char* role) {
  const Json value = report.value(role, Json());
  if (value.is_string()) return value;
  const Json name = value.is_object() ? value.value("name", Json()) : Json();
  return name.is_string() ? name.get<std::string>() : fmt::format("a {}", role);
}

// Timings of a report of `outrider bench`.
void read_bench(const Json& bench, Timings& timings) {
  const double context = bench.value("context", 0.0);
  for (const Json& point : bench.at("verify_curve"))
    timings.target.push_back({point.at("rows").get<double>(), context, point.at("seconds").get<double>()});
  if (const double step = bench.value("draft_step_seconds", 0.0); step > 0)
    timings.draft.push_back({1, context, step});
  for (const Json& run : bench.value("runs", Json::array()))
    if (const double transfer = run.at("round_seconds").value("transfer", 0.0); transfer > 0)
      timings.links.push_back({0, transfer});
  timings.target_names.push_back(name_in(bench, "target"));
  timings.draft_names.push_back(name_in(bench, "draft"));
}

// Timings of a report of `outrider generate --report`: means over the run.
void read_report(const Json& report, Timings& timings) {
  const Json& metrics = report.at("metrics");
  const Json mean = metrics.at("cost_model").value("mean", Json::object());
  if (mean.contains("verify"))
    timings.target.push_back({mean.at("verify").at("rows").get<double>(),
                              mean.at("verify").at("context_tokens").get<double>(),
                              mean.at("verify").at("ms").get<double>() * 1e-3});
  if (!mean.contains("draft")) return;
  timings.draft.push_back({1, 0, mean.at("draft").at("ms_per_token").get<double>() * 1e-3});
  const Json kinds = metrics.value("wire", Json::object()).value("kinds", Json::object());
  double bytes = 0;
  if (kinds.contains("propose") && kinds.contains("draft"))
    if (const double rounds = kinds.at("draft").at("received_messages").get<double>(); rounds > 0)
      bytes = (kinds.at("propose").at("sent_bytes").get<double>() +
               kinds.at("draft").at("received_bytes").get<double>()) /
              rounds;
  timings.links.push_back({bytes, mean.at("draft").at("exchange_ms").get<double>() * 1e-3});
  timings.target_names.push_back(name_in(report, "target"));
  timings.draft_names.push_back(name_in(report, "draft"));
}

// Whole steps of models with noise for weights, as launch/gpu_suite times them.
size_t read_steps(const Json& suite, const std::string& model, std::vector<PassSample>& samples) {
  const size_t before = samples.size();
  for (const Json& step : suite.at("timings").value("steps", Json::array()))
    if (step.at("model") == model && step.value("overlapping_kernels", true))
      samples.push_back({step.at("rows").get<double>(), step.at("context").get<double>(),
                         step.at("ms").get<double>() * 1e-3});
  return samples.size() - before;
}

std::string models_of(const Json& suite) {
  std::vector<std::string> names;
  for (const Json& step : suite.at("timings").value("steps", Json::array()))
    if (const auto name = step.at("model").get<std::string>();
        std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

Status read_suite(const Json& suite, const std::string& target, const std::string& draft, Timings& timings) {
  if (target.empty() && draft.empty()) {
    if (!suite.contains("pair") || !suite.at("pair").is_object())
      return invalid_argument(fmt::format(
          "no pair was run; choose --target and --draft of the models timed: {}", models_of(suite)));
    read_bench(suite.at("pair"), timings);
    return {};
  }
  if (!suite.contains("timings") || !suite.at("timings").is_object()) return malformed("holds no timings");
  const auto take = [&](const std::string& name, std::vector<PassSample>& samples,
                        std::vector<std::string>& names) -> Status {
    if (name.empty()) return {};
    if (read_steps(suite, name, samples) == 0)
      return invalid_argument(fmt::format("no model '{}' was timed; there are: {}", name, models_of(suite)));
    names.push_back(name);
    return {};
  };
  RETURN_IF_ERROR(take(target, timings.target, timings.target_names));
  return take(draft, timings.draft, timings.draft_names);
}

Json pass_json(const PassFit& fit) {
  return {{"base_ms", fit.cost.base * 1e3},
          {"per_row_ms", fit.cost.per_row * 1e3},
          {"per_1000_context_ms", fit.cost.per_context * 1e6},
          {"samples", fit.samples},
          {"mean_error", fit.mean_error},
          {"worst_error", fit.worst_error},
          {"context_tokens", {{"low", fit.context_low}, {"high", fit.context_high}}},
          {"left_out", fit.left_out}};
}

void add_sources(const char* what, const PassFit& fit, const std::string& files,
                 std::vector<CostSource>& sources) {
  sources.push_back({what,
                     fmt::format("{:.4g} ms, {:.3g} ms a row, {:.3g} ms per 1000 tokens of context",
                                 fit.cost.base * 1e3, fit.cost.per_row * 1e3, fit.cost.per_context * 1e6),
                     CostSource::Kind::kFitted,
                     fmt::format("{} timings of {}, off by {:.1f} % on average and {:.1f} % at most",
                                 fit.samples, files, 100 * fit.mean_error, 100 * fit.worst_error)});
  for (const std::string& left_out : fit.left_out)
    sources.push_back({what, left_out, CostSource::Kind::kAssumption, "the timings do not tell"});
}

}  // namespace

PassFit fit_pass(const std::vector<PassSample>& samples) {
  PassFit fit;
  if (samples.empty()) return fit;
  const auto [low, high] = std::minmax_element(
      samples.begin(), samples.end(), [](const auto& a, const auto& b) { return a.context < b.context; });
  fit.context_low = low->context;
  fit.context_high = high->context;
  constexpr std::array<const char*, 3> kWithout = {"passes have no cost of their own",
                                                   "a row more costs nothing", "context costs nothing"};
  const auto same_rows = [&] {
    return std::all_of(samples.begin(), samples.end(),
                       [&](const auto& s) { return s.rows == samples[0].rows; });
  };
  // The full model; then without what came out below 0, or what cannot be told from the rest.
  std::vector<size_t> columns{0, 1, 2};
  std::optional<FitRow> solution;
  while (!columns.empty()) {
    solution = least_squares(samples, columns);
    const auto has = [&](size_t c) { return std::find(columns.begin(), columns.end(), c) != columns.end(); };
    const auto below = [&](size_t c) { return has(c) && solution && (*solution)[c] < 0; };
    size_t leaves = 3;
    if (!solution)
      leaves = has(2) && (fit.context_low == fit.context_high || !has(1) || !same_rows()) ? 2
               : has(1)                                                                   ? 1
                                                                                          : 0;
    else
      for (const size_t c : {size_t{0}, size_t{1}, size_t{2}})
        if (below(c)) leaves = c;
    if (leaves == 3) break;
    std::erase(columns, leaves);
    fit.left_out.push_back(
        leaves == 2 && fit.context_low == fit.context_high
            ? fmt::format("context costs nothing beyond that of the {:g} tokens of the timings",
                          fit.context_low)
            : kWithout[leaves]);
  }
  if (!solution) return fit;
  fit.cost = {
      .base = std::max(0.0, (*solution)[0]), .per_row = (*solution)[1], .per_context = (*solution)[2]};
  judge(samples, fit);
  return fit;
}

LinkFit fit_link(const std::vector<LinkSample>& samples) {
  LinkFit fit{.samples = samples.size()};
  if (samples.empty()) return fit;
  // Messages as rows of a pass: the same model with one slope.
  std::vector<PassSample> as_passes;
  double mean = 0;
  for (const LinkSample& s : samples) {
    as_passes.push_back({s.bytes, 0, s.seconds});
    mean += s.seconds / static_cast<double>(samples.size());
  }
  const auto line = least_squares(as_passes, {0, 1});
  if (line && (*line)[1] > 0 && (*line)[0] >= 0) {
    fit.delay_s = (*line)[0] / 2;
    fit.bytes_per_second = 1 / (*line)[1];
  } else {
    fit.delay_s = mean / 2;
  }
  return fit;
}

Status read_timings(const std::string& path, const std::string& target, const std::string& draft,
                    Timings& timings) {
  std::ifstream file(path);
  if (!file) return not_found(fmt::format("{}: cannot be opened", path));
  const Json json = Json::parse(file, nullptr, false);
  if (json.is_discarded() || !json.is_object()) return malformed(fmt::format("{}: is no JSON object", path));
  timings.files.push_back(path);
  try {
    if (json.contains("verify_curve")) {
      read_bench(json, timings);
    } else if (json.contains("timings") && json.contains("steps")) {
      return read_suite(json, target, draft, timings).in(path);
    } else if (json.contains(Json::json_pointer("/metrics/cost_model"))) {
      read_report(json, timings);
    } else {
      return malformed(fmt::format(
          "{}: is neither a report of `outrider bench` or `generate` nor results.json of launch/gpu_suite",
          path));
    }
  } catch (const Json::exception&) {
    return malformed(fmt::format("{}: a figure that belongs there is missing or no number", path));
  }
  return {};
}

Result<CostFit> fit_costs(const Timings& timings) {
  const auto positive = [](std::vector<PassSample> samples) {
    std::erase_if(samples, [](const PassSample& s) { return !(s.seconds > 0) || !(s.rows > 0); });
    return samples;
  };
  CostFit fit{.target = fit_pass(positive(timings.target)),
              .draft = fit_pass(positive(timings.draft)),
              .link = fit_link(timings.links),
              .target_names = timings.target_names,
              .draft_names = timings.draft_names,
              .files = timings.files,
              .sources = {}};
  const std::string files = fmt::format("{}", fmt::join(fit.files, ", "));
  if (fit.target.samples == 0)
    return invalid_argument(
        fmt::format("{}: no pass of a target is timed; give --target or another file", files));
  if (fit.draft.samples == 0)
    return invalid_argument(
        fmt::format("{}: no pass of a draft is timed; give --draft or another file", files));
  add_sources("target pass", fit.target, files, fit.sources);
  add_sources("draft pass", fit.draft, files, fit.sources);
  if (fit.link.samples == 0)
    fit.sources.push_back({"draft links", "no delay, unlimited bandwidth", CostSource::Kind::kAssumption,
                           "no file times them; --delay-ms and --gbit of `simulate run` add some"});
  else
    fit.sources.push_back({"draft links", fmt::format("{:.4g} ms one way", fit.link.delay_s * 1e3),
                           CostSource::Kind::kFitted,
                           fmt::format("{} rounds' transfer in {}", fit.link.samples, files)});
  if (fit.link.bytes_per_second > 0)
    fit.sources.push_back({"draft links' bandwidth",
                           fmt::format("{:.4g} Gbit/s", fit.link.bytes_per_second * 8e-9),
                           CostSource::Kind::kFitted, files});
  else if (fit.link.samples > 0)
    fit.sources.push_back({"draft links' bandwidth", "unlimited", CostSource::Kind::kAssumption,
                           "messages of one size do not tell it"});
  return fit;
}

void fill_json(const CostFit& fit, Json& out) {
  out = {{"outrider_costs", 1},
         {"version", kVersion},
         {"files", fit.files},
         {"target_models", fit.target_names},
         {"draft_models", fit.draft_names},
         {"target", pass_json(fit.target)},
         {"draft", pass_json(fit.draft)},
         {"link",
          {{"delay_ms", fit.link.delay_s * 1e3},
           {"gbit", fit.link.bytes_per_second * 8e-9},
           {"samples", fit.link.samples}}},
         {"sources", Json::array()}};
  for (const CostSource& s : fit.sources)
    out["sources"].push_back(
        {{"figure", s.figure}, {"value", s.value}, {"source", name_of(s.kind)}, {"from", s.from}});
}

std::string fit_text(const CostFit& fit) {
  std::string out;
  for (const CostSource& s : fit.sources)
    out += fmt::format("{:<22} {:<66} {}: {}\n", s.figure, s.value, name_of(s.kind), s.from);
  return out;
}

}  // namespace outrider
