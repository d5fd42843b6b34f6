#include "lab/serve_bench/figures.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

namespace outrider {

Percentiles Percentiles::of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto rank = [&](double q) {
    const auto n = static_cast<size_t>(std::ceil(q * static_cast<double>(values.size())));
    return values[std::clamp<size_t>(n, 1, values.size()) - 1];
  };
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {.count = static_cast<int64_t>(values.size()),
          .p50 = rank(0.5),
          .p95 = rank(0.95),
          .p99 = rank(0.99),
          .mean = sum / static_cast<double>(values.size())};
}

LoadFigures figures_of(std::span<const std::vector<RequestOutcome>> turns, const Objective& objective) {
  LoadFigures out;
  std::vector<double> first, gaps, per_token, whole;
  for (const auto& turn : turns) {
    double begin = std::numeric_limits<double>::infinity(), end = 0;
    for (const RequestOutcome& r : turn) {
      ++out.requests;
      begin = std::min(begin, r.sent_s);
      end = std::max(end, r.sent_s + r.whole_s);
      out.good += objective.met_by(r);
      if (!r.ok()) {
        ++out.failed;
        ++out.errors[r.error];
        continue;
      }
      out.tokens += r.tokens;
      out.prompt_tokens += r.prompt_tokens;
      out.draft_tokens += r.draft_tokens;
      out.accepted_tokens += r.accepted_tokens;
      if (!r.step_drafted.empty() && r.step_drafted.size() == r.step_accepted.size()) {
        out.per_step_drafted.push_back(r.step_drafted);
        out.per_step_accepted.push_back(r.step_accepted);
      }
      whole.push_back(r.whole_s);
      if (r.first_s > 0) first.push_back(r.first_s);
      if (r.tokens > 1) per_token.push_back(r.per_token_s());
      gaps.insert(gaps.end(), r.gaps_s.begin(), r.gaps_s.end());
    }
    if (end > begin) out.seconds += end - begin;
  }
  out.first_s = Percentiles::of(std::move(first));
  out.gap_s = Percentiles::of(std::move(gaps));
  out.per_token_s = Percentiles::of(std::move(per_token));
  out.whole_s = Percentiles::of(std::move(whole));
  return out;
}

nlohmann::json json_of(const LoadFigures& f) {
  const auto percentiles = [](const Percentiles& p) {
    return nlohmann::json{
        {"count", p.count}, {"p50", p.p50}, {"p95", p.p95}, {"p99", p.p99}, {"mean", p.mean}};
  };
  return {{"requests", f.requests},
          {"failed", f.failed},
          {"errors", f.errors},
          {"good", f.good},
          {"goodput_requests_per_second", f.goodput()},
          {"seconds", f.seconds},
          {"prompt_tokens", f.prompt_tokens},
          {"tokens", f.tokens},
          {"tokens_per_second", f.tokens_per_second()},
          {"draft_tokens", f.draft_tokens},
          {"accepted_tokens", f.accepted_tokens},
          {"per_step_drafted", f.per_step_drafted},
          {"per_step_accepted", f.per_step_accepted},
          {"first_token_s", percentiles(f.first_s)},
          {"inter_chunk_s", percentiles(f.gap_s)},
          {"per_token_s", percentiles(f.per_token_s)},
          {"whole_s", percentiles(f.whole_s)}};
}

}  // namespace outrider
