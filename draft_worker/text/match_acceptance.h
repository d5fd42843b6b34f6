// How often drafted tokens were right, by the source of the match, its length, and the token's distance from
// it. Counts tested tokens only: the right ones and the first wrong one. Old counts decay.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace outrider {

class MatchAcceptance {
 public:
  enum Source : uint8_t { kOwnText, kOtherTexts };

  // The chance that a token is right if those before it in the draft are. Position 0 follows the match.
  double rate(Source source, int32_t match_length, int32_t position) const {
    const Cell& cell = cells_[index(source, match_length, position)];
    return (cell.right + 1.0) / (cell.tested + 2.0);
  }
  void add(Source source, int32_t match_length, int32_t position, bool right) {
    Cell& cell = cells_[index(source, match_length, position)];
    cell.tested += 1;
    cell.right += right ? 1 : 0;
    if (cell.tested < kFadeAfter) return;
    cell.tested /= 2;
    cell.right /= 2;
  }

 private:
  struct Cell {
    double tested = 0, right = 0;
  };
  static constexpr double kFadeAfter = 1024;
  static constexpr size_t kLengths = 9, kPositions = 16;

  static size_t bucket(int32_t match_length) {
    const size_t length = match_length < 1 ? 1 : static_cast<size_t>(match_length);
    return length <= 6 ? length - 1 : length <= 10 ? 6 : length <= 20 ? 7 : 8;
  }
  static size_t index(Source source, int32_t match_length, int32_t position) {
    const auto place =
        static_cast<size_t>(position) < kPositions ? static_cast<size_t>(position) : kPositions - 1;
    return (static_cast<size_t>(source) * kLengths + bucket(match_length)) * kPositions + place;
  }
  std::array<Cell, 2 * kLengths * kPositions> cells_{};
};

}  // namespace outrider
