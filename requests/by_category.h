// Results by request and by category, and the league table over categories as in Spec-Bench (Xia et al.
// 2024): the mean over requests of tokens/s, over that of plain decoding.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/statistics.h"

namespace outrider {

// One request, run once.
struct RequestResult {
  nlohmann::json id;     // null without one
  std::string category;  // empty without one
  double seconds = 0;    // from submission to end
  int64_t tokens = 0, passes = 0;
  Share acceptance;  // of tested tokens

  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

// The name for the league table: Spec-Bench counts the eight categories of MT-bench as one.
std::string league_category(const std::string& category);

struct CategoryResult {
  std::string category;  // the last one: "overall"
  int64_t requests = 0, tokens = 0;
  double tokens_per_second = 0;        // mean over requests
  double plain_tokens_per_second = 0;  // 0 without a comparison
  double tokens_per_round = 0;          // pooled, plain passes included
  Share acceptance;

  double speedup() const {
    return plain_tokens_per_second > 0 ? tokens_per_second / plain_tokens_per_second : 0;
  }
};

// In the order in which categories first appear. `plain`: the same requests without a drafter, or empty.
// Requests without a category are in "overall" only.
std::vector<CategoryResult> by_category(std::span<const RequestResult> results,
                                        std::span<const RequestResult> plain);

// A row for each category, for people.
std::string category_table(std::span<const CategoryResult> categories);

// A row for each way of drafting, a column for each category: speed-ups.
struct CategoryRow {
  std::string name;
  std::vector<Ratio> speedups;  // by category, the last overall
};
std::string league_table(const std::vector<std::string>& categories, const std::vector<CategoryRow>& rows);

nlohmann::json requests_json(std::span<const RequestResult> results);
nlohmann::json categories_json(std::span<const CategoryResult> categories);

}  // namespace outrider
