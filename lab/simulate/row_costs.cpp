#include "lab/simulate/row_costs.h"

#include <fmt/format.h>

#include <cmath>

#include "base/parse_number.h"

namespace outrider {
namespace {

Result<double> number(std::string_view text) {
  const auto value = parse_number<double>(text);
  if (!value || !std::isfinite(*value)) return invalid_argument("");
  return *value;
}

}  // namespace

Result<RowCosts> parse_row_costs(const std::vector<std::string>& texts) {
  std::vector<std::pair<double, double>> points;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    const auto rows = number(std::string_view(text).substr(0, equals));
    const auto cost = equals == text.npos ? Result<double>(invalid_argument(""))
                                          : number(std::string_view(text).substr(equals + 1));
    if (!rows.ok() || !cost.ok() || *rows <= (points.empty() ? 1 : points.back().first) || *cost < 1)
      return invalid_argument(
          fmt::format("--row-costs {}: write ROWS=COST with ROWS above 1 and increasing, and COST, in passes "
                      "of one row, at "
                      "least 1, e.g. 16=1.10 64=1.3",
                      text));
    points.emplace_back(*rows, *cost);
  }
  return RowCosts(std::move(points));
}

}  // namespace outrider
