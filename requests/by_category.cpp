#include "requests/by_category.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace outrider {
namespace {

constexpr std::array<std::string_view, 8> kMtBench{"writing", "roleplay",   "reasoning", "math",
                                                   "coding",  "extraction", "stem",      "humanities"};

double mean_rate(std::span<const RequestResult> results, const std::string& category, bool all) {
  double sum = 0;
  int64_t count = 0;
  for (const RequestResult& result : results)
    if (all || league_category(result.category) == category) sum += result.tokens_per_second(), ++count;
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

CategoryResult summed(std::span<const RequestResult> results, std::span<const RequestResult> plain,
                      const std::string& category, bool all) {
  CategoryResult out{.category = all ? "overall" : category};
  int64_t passes = 0;
  for (const RequestResult& result : results) {
    if (!all && league_category(result.category) != category) continue;
    ++out.requests;
    out.tokens += result.tokens;
    passes += result.passes;
    out.acceptance += result.acceptance;
  }
  out.tokens_per_second = mean_rate(results, category, all);
  out.plain_tokens_per_second = mean_rate(plain, category, all);
  if (passes > 0) out.tokens_per_round = static_cast<double>(out.tokens) / static_cast<double>(passes);
  return out;
}

}  // namespace

std::string league_category(const std::string& category) {
  return std::find(kMtBench.begin(), kMtBench.end(), category) != kMtBench.end() ? "mt_bench" : category;
}

std::vector<CategoryResult> by_category(std::span<const RequestResult> results,
                                        std::span<const RequestResult> plain) {
  std::vector<std::string> names;
  for (const RequestResult& result : results)
    if (const std::string name = league_category(result.category);
        !name.empty() && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  std::vector<CategoryResult> out;
  for (const std::string& name : names) out.push_back(summed(results, plain, name, false));
  out.push_back(summed(results, plain, "", true));
  return out;
}

std::string category_table(std::span<const CategoryResult> categories) {
  std::string out =
      "| category | requests | tokens | tokens/s, mean over requests | speed-up | tokens per pass | "
      "acceptance (of "
      "tested) |\n|---|---|---|---|---|---|---|\n";
  for (const CategoryResult& c : categories)
    out +=
        fmt::format("| {} | {} | {} | {:.1f} | {} | {:.2f} | {:.3f} ({}) |\n", c.category, c.requests,
                    c.tokens, c.tokens_per_second, c.speedup() > 0 ? fmt::format("{:.2f}", c.speedup()) : "-",
                    c.tokens_per_round, c.acceptance.value(), c.acceptance.of);
  return out;
}

std::string league_table(const std::vector<std::string>& categories, const std::vector<CategoryRow>& rows) {
  std::string head = "| speed-up (95 % interval) |", rule = "|---|", body;
  for (const std::string& category : categories) {
    head += fmt::format(" {} |", category);
    rule += "---|";
  }
  for (const CategoryRow& row : rows) {
    body += fmt::format("| {} |", row.name);
    for (const Ratio& ratio : row.speedups)
      body += ratio.has_interval() ? fmt::format(" {} |", describe(ratio))
                                   : fmt::format(" {:.2f} |", ratio.value);
    body += "\n";
  }
  return head + "\n" + rule + "\n" + body;
}

nlohmann::json requests_json(std::span<const RequestResult> results) {
  nlohmann::json out = nlohmann::json::array();
  for (const RequestResult& result : results)
    out.push_back({{"id", result.id},
                   {"category", result.category},
                   {"tokens", result.tokens},
                   {"seconds", result.seconds},
                   {"tokens_per_s", result.tokens_per_second()},
                   {"target_passes", result.passes},
                   {"accepted_tokens", result.acceptance.count},
                   {"tested_tokens", result.acceptance.of}});
  return out;
}

nlohmann::json categories_json(std::span<const CategoryResult> categories) {
  nlohmann::json out = nlohmann::json::array();
  for (const CategoryResult& category : categories) {
    out.push_back({{"category", category.category},
                   {"requests", category.requests},
                   {"tokens", category.tokens},
                   {"tokens_per_s", category.tokens_per_second},
                   {"tokens_per_round", category.tokens_per_round},
                   {"acceptance_rate", category.acceptance.value()},
                   {"accepted_tokens", category.acceptance.count},
                   {"tested_tokens", category.acceptance.of}});
    if (category.plain_tokens_per_second > 0) {
      out.back()["plain_tokens_per_s"] = category.plain_tokens_per_second;
      out.back()["speedup"] = category.speedup();
    }
  }
  return out;
}

}  // namespace outrider
