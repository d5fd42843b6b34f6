#include "lab/study/compare.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/json_text.h"
#include "lab/study/summary.h"
#include "requests/output.h"
#include "requests/provenance.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

// Facts that may explain a difference; the date is left out, since it always differs.
constexpr const char* kTold[] = {"version", "commit", "host",        "system", "processor",
                                 "cores",   "isa",    "environment", "seeds",  "load"};

std::vector<double> positive_numbers(const Json& from, const char* key) {
  std::vector<double> out;
  if (const auto found = from.find(key); found != from.end() && found->is_array())
    for (const Json& value : *found)
      if (value.is_number() && value.get<double>() > 0) out.push_back(value.get<double>());
  return out;
}

void add_positive(const Json& run, const char* key, std::vector<double>& to) {
  if (const auto value = run.find(key); value != run.end() && value->is_number() && value->get<double>() > 0)
    to.push_back(value->get<double>());
}

ResultCell study_cell(const Json& cell) {
  ResultCell out{.id = cell.value("cell", ""), .name = {}, .rates = {}, .plain_rates = {}, .speedups = {}};
  const Json values = cell.value("values", Json::object());
  for (const auto& [key, value] : values.items())
    out.name += fmt::format("{}{} {}", out.name.empty() ? "" : ", ", key,
                            value.is_string() ? value.get<std::string>() : json_text(value));
  if (out.name.empty()) out.name = "the only cell";
  for (const Json& run : cell.value("runs", Json::array())) {
    if (run.value("status", "") != "ok") continue;
    add_positive(run, "tokens_per_second", out.rates);
    add_positive(run, "plain_tokens_per_second", out.plain_rates);
    add_positive(run, "speedup", out.speedups);
  }
  return out;
}

// Turn by turn over plain decoding.
ResultCell bench_cell(const std::string& name, const Json& run, const std::vector<double>& plain) {
  ResultCell out{.id = {},
                 .name = name,
                 .rates = positive_numbers(run, "tokens_per_s_by_turn"),
                 .plain_rates = plain,
                 .speedups = {}};
  for (size_t i = 0; i < std::min(plain.size(), out.rates.size()); ++i)
    out.speedups.push_back(out.rates[i] / plain[i]);
  return out;
}

std::vector<ResultCell> bench_cells(const Json& report) {
  const std::vector<double> plain = positive_numbers(report["decode"], "tokens_per_s_by_turn");
  std::vector<ResultCell> cells{
      {.id = {}, .name = "plain", .rates = plain, .plain_rates = {}, .speedups = {}}};
  for (const Json& run : report["runs"])
    cells.push_back(bench_cell(fmt::format("gamma {}", run.value("gamma", 0)), run, plain));
  if (report.contains("by_policy"))
    cells.push_back(bench_cell(report.value("policy", "policy"), report["by_policy"], plain));
  return cells;
}

std::string shown(const Json& value) {
  if (value.is_null()) return "unknown";
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

std::vector<std::string> differences_of(const Json& a, const Json& b) {
  if (!a.is_object() || !b.is_object()) return {"one of them does not say where it was made"};
  std::vector<std::string> out;
  for (const char* key : kTold) {
    const Json one = a.value(key, Json()), other = b.value(key, Json());
    if (one != other) out.push_back(fmt::format("{}: {} -> {}", key, shown(one), shown(other)));
  }
  return out;
}

// Each cell counts once, by the ratio of its medians; of one cell its own interval.
Ratio over_cells(const std::vector<ComparedCell>& cells, Ratio ComparedCell::*ratio) {
  std::vector<double> values;
  const ComparedCell* last = nullptr;
  for (const ComparedCell& cell : cells)
    if ((cell.*ratio).measured()) {
      values.push_back((cell.*ratio).value);
      last = &cell;
    }
  return values.size() == 1 ? last->*ratio : paired_ratio(values);
}

std::string with_interval(const Ratio& ratio) {
  return ratio.has_interval()
             ? fmt::format("{:.3f} (95 % interval {:.3f} to {:.3f})", ratio.value, ratio.low, ratio.high)
             : fmt::format("{:.3f} (one sample, no interval)", ratio.value);
}

std::vector<std::string> conclude(const Comparison& c) {
  if (!c.rate.measured()) return {"No cell has figures in both: nothing can be compared."};
  std::vector<std::string> out;
  const char* what = c.rate.is_above(1)   ? "B is faster than A"
                     : c.rate.is_below(1) ? "B is slower than A"
                                          : "B is not distinguishable from A";
  out.push_back(fmt::format("{}: {} times its tokens/s over {} cell{}.", what, with_interval(c.rate),
                            c.cells.size(), c.cells.size() == 1 ? "" : "s"));
  int faster = 0, slower = 0;
  for (const ComparedCell& cell : c.cells) faster += cell.rate.is_above(1), slower += cell.rate.is_below(1);
  out.push_back(fmt::format("By themselves {} cells are faster, {} slower and {} not distinguishable.",
                            faster, slower, static_cast<int>(c.cells.size()) - faster - slower));
  if (c.plain_rate.measured())
    out.push_back(fmt::format("Plain decoding has {} times what it had: {}.", with_interval(c.plain_rate),
                              c.plain_rate.differs_from(1)
                                  ? "the machine or the engine changed, not only speculation"
                                  : "the machine was not distinguishable"));
  if (c.speedup.measured())
    out.push_back(fmt::format("The speed-up over plain decoding has {} times what it had: {}.",
                              with_interval(c.speedup),
                              c.speedup.is_above(1)   ? "higher"
                              : c.speedup.is_below(1) ? "lower"
                                                      : "not distinguishable"));
  out.push_back(
      "A and B were measured one after the other: what the machine did in between is in no interval; turns "
      "of both in one study tell more.");
  return out;
}

}  // namespace

Result<ResultSet> read_results(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const std::string file = fs::is_directory(path, error) ? path + "/study.json" : path;
  std::ifstream stream(file, std::ios::binary);
  if (!stream)
    return not_found(fmt::format(
        "{}: cannot be read; name a directory of `outrider study`, its study.json, or the --report "
        "of `outrider bench`",
        file));
  std::ostringstream text;
  text << stream.rdbuf();
  const Json json = Json::parse(text.str(), nullptr, false);
  ResultSet set{.path = path, .provenance = {}, .cells = {}};
  if (json.is_object()) set.provenance = json.value("provenance", Json());
  try {
    if (json.is_object() && json.contains("cells")) {
      for (const Json& cell : json["cells"]) set.cells.push_back(study_cell(cell));
    } else if (json.is_object() && json.contains("decode") && json.contains("runs")) {
      set.cells = bench_cells(json);
    } else {
      return malformed(fmt::format("{}: holds no results of a study or bench", file));
    }
  } catch (const Json::exception& wrong) {
    return malformed(fmt::format("{}: not as a study or bench writes it ({})", file, wrong.what()));
  }
  return set;
}

Comparison compare_results(const ResultSet& a, const ResultSet& b) {
  Comparison out{.a = a.path,
                 .b = b.path,
                 .cells = {},
                 .only_a = {},
                 .only_b = {},
                 .rate = {},
                 .plain_rate = {},
                 .speedup = {},
                 .differences = differences_of(a.provenance, b.provenance),
                 .conclusions = {}};
  const auto matched = [&](auto key) {
    std::map<std::string, const ResultCell*> found;
    for (const ResultCell& cell : a.cells) found.emplace(key(cell), &cell);
    std::vector<std::pair<const ResultCell*, const ResultCell*>> pairs;
    for (const ResultCell& cell : b.cells)
      if (const auto at = found.find(key(cell)); at != found.end()) pairs.emplace_back(at->second, &cell);
    return pairs;
  };
  auto pairs = matched([](const ResultCell& cell) { return cell.id.empty() ? cell.name : cell.id; });
  if (pairs.empty()) {
    pairs = matched([](const ResultCell& cell) { return cell.name; });
    out.by_name = !pairs.empty();
  }
  for (const auto& [one, other] : pairs)
    out.cells.push_back({.name = other->name,
                         .rate = unpaired_ratio(other->rates, one->rates),
                         .plain_rate = unpaired_ratio(other->plain_rates, one->plain_rates),
                         .speedup = unpaired_ratio(other->speedups, one->speedups)});
  const auto lonely = [&](const std::vector<ResultCell>& cells, bool first) {
    std::vector<std::string> names;
    for (const ResultCell& cell : cells)
      if (std::none_of(pairs.begin(), pairs.end(),
                       [&](const auto& pair) { return (first ? pair.first : pair.second) == &cell; }))
        names.push_back(cell.name);
    return names;
  };
  out.only_a = lonely(a.cells, true);
  out.only_b = lonely(b.cells, false);
  out.rate = over_cells(out.cells, &ComparedCell::rate);
  out.plain_rate = over_cells(out.cells, &ComparedCell::plain_rate);
  out.speedup = over_cells(out.cells, &ComparedCell::speedup);
  out.conclusions = conclude(out);
  return out;
}

std::string comparison_text(const Comparison& c) {
  std::string out;
  for (const std::string& sentence : c.conclusions) out += sentence + "\n";
  out += fmt::format("\nA: {}\nB: {}\n", c.a, c.b);
  if (c.differences.empty()) out += "Both were made by the same program on the same machine.\n";
  for (const std::string& difference : c.differences) out += "  differs in " + difference + "\n";
  if (c.by_name) out += "  arguments differ in more than is swept: cells are matched by their swept values\n";
  for (const std::string& name : c.only_a) out += "  only in A: " + name + "\n";
  for (const std::string& name : c.only_b) out += "  only in B: " + name + "\n";
  if (c.cells.empty()) return out;
  out +=
      "\n| cell | tokens/s, B over A (95 % interval, each by itself) | speed-up, B over A | "
      "|\n|---|---|---|---|\n";
  for (const ComparedCell& cell : c.cells)
    out += fmt::format("| {} | {} | {} | {} |\n", cell.name, describe(cell.rate),
                       cell.speedup.measured() ? describe(cell.speedup) : "", speed_verdict(cell.rate));
  return out;
}

Json comparison_json(const Comparison& c) {
  const auto ratio = [](const Ratio& r) {
    return Json{{"value", r.value},
                {"interval", r.has_interval() ? Json::array({r.low, r.high}) : Json()},
                {"samples", r.samples}};
  };
  Json cells = Json::array();
  for (const ComparedCell& cell : c.cells)
    cells.push_back({{"cell", cell.name},
                     {"tokens_per_s", ratio(cell.rate)},
                     {"plain_tokens_per_s", ratio(cell.plain_rate)},
                     {"speedup", ratio(cell.speedup)},
                     {"verdict", speed_verdict(cell.rate)}});
  return {{"provenance", provenance({{"intervals", BootstrapOptions().seed}})},
          {"a", c.a},
          {"b", c.b},
          {"conclusions", c.conclusions},
          {"differences", c.differences},
          {"matched_by_name", c.by_name},
          {"only_a", c.only_a},
          {"only_b", c.only_b},
          {"tokens_per_s", ratio(c.rate)},
          {"plain_tokens_per_s", ratio(c.plain_rate)},
          {"speedup", ratio(c.speedup)},
          {"cells", std::move(cells)}};
}

void add_compare_options(CLI::App& app, CompareOptions& o) {
  app.add_option("a", o.a, "Results: a directory of a study, its study.json, or the --report of a bench")
      ->required();
  app.add_option("b", o.b, "Results to compare with them, told as a ratio over the first")->required();
  app.add_option("--report", o.report, "Write the comparison here, as JSON");
  app.footer("Example:\n  outrider study compare before.study after.study");
}

Status run_compare(const CompareOptions& options) {
  ASSIGN_OR_RETURN(const ResultSet a, read_results(options.a));
  ASSIGN_OR_RETURN(const ResultSet b, read_results(options.b));
  const Comparison comparison = compare_results(a, b);
  std::fputs(comparison_text(comparison).c_str(), stdout);
  if (options.report.empty()) return {};
  return write_file(options.report, json_text(comparison_json(comparison), 1) + "\n").in("--report");
}

}  // namespace outrider
