#include "kernels/sampling/gumbel.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/philox.h"

namespace outrider {
namespace {

constexpr uint64_t kNoWord = uint64_t{1} << 32;
// Noise lies in [-3.14, 22.88]; the table has a bound for every 1/16.
constexpr double kLowest = -3.25, kHighest = 23, kStep = 1.0 / 16;

// Smallest word w with G(w) >= noise, by bisection: G rises by more than its rounding error from word to word
// except in flat stretches, which the slack of the caller covers.
uint64_t bisect_word(double noise) {
  uint64_t low = 0, high = kNoWord;
  while (low < high) {
    const uint64_t middle = (low + high) / 2;
    if (gumbel_of_word(static_cast<uint32_t>(middle)) >= noise)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

const std::vector<uint64_t>& word_bounds() {
  static const std::vector<uint64_t> bounds = [] {
    std::vector<uint64_t> table;
    for (double noise = kLowest; noise < kHighest; noise += kStep) table.push_back(bisect_word(noise));
    return table;
  }();
  return bounds;
}

class Search {
 public:
  Search(std::span<const float> scaled, Chunks chunks, Seed seed, Position position)
      : scaled_(scaled), chunks_(chunks), seed_(seed), position_(position) {}

  void visit(int64_t chunk, float chunk_max) {
    if (chunk_max == kMinusInfinity) return;
    const uint64_t threshold =
        best_.packed == 0 ? 0 : least_word_for_noise(noise_needed(best_.value(), chunk_max));
    if (threshold == kNoWord) return;
    if (!fill_noise_words(seed_, position_, chunks_.first() + chunk, static_cast<uint32_t>(threshold),
                          words_))
      return;
    evaluate(chunks_.local(chunk), static_cast<uint32_t>(threshold));
  }
  RankedToken best() const { return best_; }

 private:
  void evaluate(IndexRange local, uint32_t threshold) {
    for (int64_t i = local.begin; i < local.end; ++i) {
      const int64_t token = chunks_.range.begin + i;
      const float logit = scaled_[static_cast<size_t>(i)];
      const uint32_t word = words_.of(token);
      if (word < threshold || logit == kMinusInfinity) continue;
      if (best_.packed != 0 && word < least_word_for_noise(noise_needed(best_.value(), logit))) continue;
      best_ = std::max(best_, RankedToken::of(gumbel_score(logit, word), token));
    }
  }

  std::span<const float> scaled_;
  Chunks chunks_;
  Seed seed_;
  Position position_;
  NoiseWords words_;
  RankedToken best_;
};

}  // namespace

// The noise has |G| < 23 (half a unit: 1e-6), the sum half a unit of a score near `best` (2^-24 of its size).
double noise_needed(float best, float logit) {
  return static_cast<double>(best) - logit - (1e-5 + std::abs(static_cast<double>(best)) * 0x1p-22);
}

uint64_t least_word_for_noise(double noise) {
  if (!(noise >= kLowest)) return 0;
  if (noise >= kHighest) return kNoWord;
  return word_bounds()[static_cast<size_t>((noise - kLowest) / kStep)];
}

RankedToken gumbel_argmax(std::span<const float> scaled, Chunks chunks, std::span<const float> chunk_max,
                          Seed seed, Position position) {
  if (scaled.empty()) return {};
  Search search(scaled, chunks, seed, position);
  const auto first = std::max_element(chunk_max.begin(), chunk_max.end()) - chunk_max.begin();
  search.visit(first, chunk_max[static_cast<size_t>(first)]);
  for (int64_t i = 0; i < chunks.count(); ++i)
    if (i != first) search.visit(i, chunk_max[static_cast<size_t>(i)]);
  return search.best();
}

}  // namespace outrider
