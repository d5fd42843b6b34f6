#include "lab/bench/results.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/version.h"
#include "requests/report.h"

namespace outrider {
namespace {

using nlohmann::json;

json spread_json(const Spread& s) { return {{"median", s.median}, {"low", s.low}, {"high", s.high}}; }

// [low, high] at 95 %; null where there is none.
json interval_json(const Ratio& r) { return r.has_interval() ? json::array({r.low, r.high}) : json(); }

json requests_by_turn(const std::vector<std::vector<RequestResult>>& turns) {
  json out = json::array();
  for (const auto& turn : turns) out.push_back(requests_json(turn));
  return out;
}

json ratio_json(const Ratio& r) {
  return {{"value", r.value}, {"interval", interval_json(r)}, {"turns", r.samples}};
}

json round_json(const RoundSeconds& r) {
  return {{"draft", r.draft},
          {"transfer", r.transfer},
          {"verify_forward", r.forward},
          {"verification", r.verification},
          {"commit", r.commit},
          {"idle", r.idle},
          {"wall", r.wall}};
}

// Without what only one length has.
json policy_json(const GammaResult& r) {
  return {{"tokens_per_s", r.tokens_per_second.median},
          {"tokens_per_s_spread", spread_json(r.tokens_per_second)},
          {"speedup", r.speedup.median},
          {"speedup_spread", spread_json(r.speedup)},
          {"speedup_interval", interval_json(r.of_plain)},
          {"of_best", ratio_json(r.of_best)},
          {"tokens_per_s_by_turn", r.rates},
          {"acceptance_rate", r.acceptance_rate},
          {"accepted_tokens", r.accepted},
          {"tested_tokens", r.tested},
          {"drafted_tokens", r.drafted},
          {"by_request", requests_by_turn(r.requests)},
          {"tokens_per_round", r.tokens_per_round},
          {"identical_output", r.identical_output},
          {"round_seconds", round_json(r.round)},
          {"overhead_seconds_median", r.overhead_median}};
}

json run_json(const GammaResult& r) {
  json run = policy_json(r);
  run["gamma"] = r.gamma;
  run["predicted_speedup"] = r.predicted_speedup;
  return run;
}

std::string machine_lines(const BenchResults& r) {
  const MachineResult& m = r.machine;
  const auto context = r.context > 0 ? fmt::format(" after {} tokens of context", r.context) : std::string();
  const std::string title = fmt::format(
      "{} with {}: {} prompts, {} tokens each{}, temperature {:g}, {} turns, {} threads, {}\n", r.target,
      r.draft, r.prompts, r.tokens, context, r.temperature, r.repetitions, m.threads, m.isa);
  if (!m.is_host())
    return title + fmt::format(
                       "plain decoding        {:.1f} tokens/s, {:.1f} GB/s of weights and KV\n"
                       "start to first token  {:.2f} s\n"
                       "on the device         weights ({:.1f} MB) plus KV ({:.1f} MB)\n",
                       r.plain.tokens_per_second.median,
                       r.decode_bytes_per_token * r.plain.tokens_per_second.median * 1e-9, r.startup_seconds,
                       static_cast<double>(r.weight_bytes) * 1e-6, static_cast<double>(r.kv_bytes) * 1e-6);
  return title +
         fmt::format(
             "read bandwidth        {:.1f} GB/s ({:.1f} to {:.1f} over the run)\n"
             "plain decoding        {:.1f} tokens/s, {:.0f} % of the read bandwidth ({:.0f} % in the forward "
             "pass)\n"
             "start to first token  {:.2f} s\n"
             "peak memory           {:.1f} MB = {:.2f} of weights ({:.1f} MB) plus KV ({:.1f} MB)\n",
             m.bandwidth.median * 1e-9, m.bandwidth.low * 1e-9, m.bandwidth.high * 1e-9,
             r.plain.tokens_per_second.median, 100 * r.decode_bandwidth_share,
             100 * r.forward_bandwidth_share, r.startup_seconds,
             static_cast<double>(r.peak_memory_bytes) * 1e-6,
             static_cast<double>(r.peak_memory_bytes) / static_cast<double>(r.weight_bytes + r.kv_bytes),
             static_cast<double>(r.weight_bytes) * 1e-6, static_cast<double>(r.kv_bytes) * 1e-6);
}

std::string curve_lines(const BenchResults& r) {
  std::string out = "\n| rows M | t(M), ms | t(M)/t(1) |\n|---|---|---|\n";
  for (const CurveResult& point : r.curve)
    out += fmt::format("| {} | {:.3f} | {:.2f} |\n", point.rows, point.seconds * 1e3, point.ratio);
  if (r.draft_step_seconds > 0)
    out += fmt::format("| draft step | {:.3f} | {:.3f} |\n", r.draft_step_seconds * 1e3,
                       r.draft_step_seconds / r.curve.front().seconds);
  return out;
}

std::string run_lines(const BenchResults& r) {
  std::string out =
      "\n| gamma | acceptance (of tested) | tokens per pass | tokens/s (lowest to highest) | speed-up (95 % "
      "interval) | predicted | identical output |\n|---|---|---|---|---|---|---|\n";
  out += fmt::format("| plain | | 1.00 | {:.1f} ({:.1f} to {:.1f}) | 1.00 | | |\n",
                     r.plain.tokens_per_second.median, r.plain.tokens_per_second.low,
                     r.plain.tokens_per_second.high);
  const auto line = [&](const std::string& name, const GammaResult& g, const std::string& predicted) {
    out += fmt::format(
        "| {} | {:.3f} ({}) | {:.2f} | {:.1f} ({:.1f} to {:.1f}) | {} | {} | {} |\n", name, g.acceptance_rate,
        g.tested, g.tokens_per_round, g.tokens_per_second.median, g.tokens_per_second.low,
        g.tokens_per_second.high,
        g.of_plain.has_interval() ? describe(g.of_plain) : fmt::format("{:.2f}", g.speedup.median), predicted,
        g.identical_output ? "yes" : "NO");
  };
  for (const GammaResult& g : r.runs)
    line(std::to_string(g.gamma), g, fmt::format("{:.2f}", g.predicted_speedup));
  line(r.policy, r.by_policy, "");
  return out;
}

std::string round_lines(const BenchResults& r) {
  std::string out =
      "\n"
      "| ms per round | draft | transfer | verify forward | verification | commit | idle | wall | transfer + "
      "idle, median |\n"
      "|---|---|---|---|---|---|---|---|---|\n";
  const auto line = [&](const std::string& name, const GammaResult& g) {
    const RoundSeconds& s = g.round;
    out +=
        fmt::format("| {} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} |\n", name,
                    shown_ms(s.draft), shown_ms(s.transfer), shown_ms(s.forward), shown_ms(s.verification),
                    shown_ms(s.commit), shown_ms(s.idle), shown_ms(s.wall), shown_ms(g.overhead_median));
  };
  line("plain", r.plain);
  for (const GammaResult& g : r.runs) line(fmt::format("gamma {}", g.gamma), g);
  line(r.policy, r.by_policy);
  return out;
}

}  // namespace

const GammaResult& BenchResults::best() const {
  return *std::max_element(runs.begin(), runs.end(), [](const GammaResult& a, const GammaResult& b) {
    return a.speedup.median < b.speedup.median;
  });
}

double predicted_speedup(double acceptance, int gamma, double round_seconds, double plain_seconds) {
  return round_seconds > 0 ? expected_tokens(acceptance, gamma) * plain_seconds / round_seconds : 0;
}

std::string bench_tables(const BenchResults& results) {
  std::string found;
  for (const std::string& sentence : results.conclusions) found += sentence + "\n";
  for (const std::string& warning : results.warnings) found += "Warning: " + warning + "\n";
  if (!found.empty()) found += "\n";
  if (!results.league.empty()) found += league_table(results.categories, results.league) + "\n";
  return found + machine_lines(results) + curve_lines(results) + run_lines(results) + round_lines(results);
}

json bench_json(const BenchResults& r) {
  json curve = json::array(), runs = json::array();
  for (const CurveResult& point : r.curve)
    curve.push_back({{"rows", point.rows}, {"seconds", point.seconds}, {"ratio", point.ratio}});
  for (const GammaResult& run : r.runs) runs.push_back(run_json(run));
  json out{
      {"version", kVersion},
      {"provenance", r.provenance},
      {"conclusions", r.conclusions},
      {"warnings", r.warnings},
      {"target", r.target},
      {"draft", r.draft},
      {"prompts", r.prompts},
      {"tokens", r.tokens},
      {"repetitions", r.repetitions},
      {"context", r.context},
      {"temperature", r.temperature},
      {"machine",
       {{"threads", r.machine.threads}, {"isa", r.machine.isa}, {"load", cpu_load_json(r.machine.load)}}},
      {"decode",
       {{"tokens_per_s", r.plain.tokens_per_second.median},
        {"tokens_per_s_spread", spread_json(r.plain.tokens_per_second)},
        {"tokens_per_s_by_turn", r.plain.rates},
        {"bytes_per_token", r.decode_bytes_per_token},
        {"round_seconds", round_json(r.plain.round)},
        {"overhead_seconds_median", r.plain.overhead_median}}},
      {"verify_curve", curve},
      {"draft_step_seconds", r.draft_step_seconds},
      {"runs", runs},
      {"policy", r.policy},
      {"by_policy", policy_json(r.by_policy)},
      {"best_gamma", r.best().gamma},
      {"round_seconds", round_json(r.best().round)},
      {"startup_seconds", r.startup_seconds},
      {"weight_bytes", r.weight_bytes},
      {"kv_bytes", r.kv_bytes}};
  for (const CategoryRow& row : r.league)
    for (size_t c = 0; c < row.speedups.size(); ++c)
      out["by_category"][row.name][r.categories[c]] = ratio_json(row.speedups[c]);
  if (!r.machine.is_host()) return out;
  out["machine"].update({{"read_bandwidth_bytes_per_s", r.machine.bandwidth.median},
                         {"read_bandwidth_spread", spread_json(r.machine.bandwidth)},
                         {"read_bandwidth_before", r.machine.bandwidth_before},
                         {"read_bandwidth_after", r.machine.bandwidth_after}});
  out["decode"].update({{"bandwidth_share", r.decode_bandwidth_share},
                        {"forward_bandwidth_share", r.forward_bandwidth_share}});
  out["peak_memory_bytes"] = r.peak_memory_bytes;
  return out;
}

// The JSON, flattened: one figure per line.
std::string bench_csv(const BenchResults& results) {
  std::string out = "figure,value\n";
  const json flat = bench_json(results).flatten();
  for (const auto& [path, value] : flat.items()) {
    std::string name = path.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    out += fmt::format("{},{}\n", name, json_text(value));
  }
  return out;
}

}  // namespace outrider
