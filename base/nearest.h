// The known name that a user probably meant, for errors about unknown names.
#pragma once

#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

namespace outrider {

// Levenshtein distance.
inline size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

// Empty if no name is near, because a wrong guess misleads more than it helps. At least half of a short name
// must be right.
template <class Names>
std::string_view nearest_name(const Names& known, std::string_view name) {
  std::string_view best;
  size_t least = std::max(std::min<size_t>(2, name.size() / 2), name.size() / 3) + 1;
  for (const std::string_view candidate : known) {
    const size_t longer = std::max(name.size(), candidate.size()),
                 shorter = std::min(name.size(), candidate.size());
    if (longer - shorter >= least) continue;  // a lower bound of the distance; skips names of a megabyte
    const size_t distance = edit_distance(candidate, name);
    if (distance < least) best = candidate;
    least = std::min(least, distance);
  }
  return best;
}

}  // namespace outrider
