// The loops over a vocabulary slice: each is elementwise or a sum of integers, so neither vector width nor
// slice edges can change a bit. Every loop is compiled for AVX-512, AVX2 and the baseline; the results are
// equal (no fused multiply-add anywhere).
//
// A slice is cut into chunks at global ids that are multiples of 64 (the first and last may be shorter): 64
// ids are the 16 Philox blocks that fill one vector.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "base/random.h"
#include "base/shard.h"
#include "kernels/sampling/token_math.h"

namespace outrider {

constexpr int64_t kChunkTokens = 64;

// The chunks of the ids [range.begin, range.end).
struct Chunks {
  IndexRange range;

  int64_t first() const { return range.begin / kChunkTokens; }
  int64_t count() const {
    return range.size() == 0 ? 0 : (range.end + kChunkTokens - 1) / kChunkTokens - first();
  }
  // Local indices (0 is range.begin) of chunk i.
  IndexRange local(int64_t i) const {
    const int64_t begin = (first() + i) * kChunkTokens;
    return {std::max(begin, range.begin) - range.begin,
            std::min(begin + kChunkTokens, range.end) - range.begin};
  }
};

// row[v] = fl32(row[v] * scale), and the maximum of every chunk (-inf: all masked). True if a NaN was seen.
bool scale_and_scan(std::span<float> row, Chunks chunks, float scale, std::span<float> chunk_max);

// Index of the first element equal to `value`, or row.size().
int64_t find_first(std::span<const float> row, float value);

// ordered_key of every element; the row holds no NaN.
void fill_keys(std::span<const float> row, std::span<uint32_t> keys);

// Masks (sets to -inf) every element below `cut`, and those equal to it with index >= tie_end.
void mask_below(std::span<float> row, float cut, int64_t tie_end);

// round(exp(l - max) * 2^44): the weights whose ratios are the probabilities of a row. -inf weighs 0, max
// 2^44.
void fill_weights(std::span<const float> row, float max, std::span<uint64_t> weights);
uint64_t sum_weights(std::span<const float> row, float max);
uint64_t weight_of(float logit, float max);

// draft_weight of every element.
void fill_draft_weights(std::span<const float> row, float max, std::span<uint32_t> weights);

// round_to_short_weight of every element; their sum.
uint64_t shorten_weights(std::span<uint32_t> weights);

// How many weights are at least `least`.
size_t count_at_least(std::span<const uint32_t> weights, uint32_t least);

// The largest weight of every run of kRunTokens; the last run may be shorter.
constexpr size_t kRunTokens = 16;
void fill_run_maxima(std::span<const uint32_t> weights, std::span<uint32_t> maxima);

// Recovery weights round(max(0, ratio * p - q) * 2^60) with p = weight / total.
void fill_residual(std::span<const uint64_t> weights, uint64_t total, double ratio, std::span<const double> q,
                   std::span<uint64_t> residual);

// Gumbel words of the 64 tokens of a chunk: word[k][j] belongs to token 64 * chunk + 4 * j + k.
struct NoiseWords {
  alignas(64) std::array<std::array<uint32_t, 16>, 4> word;
  uint32_t of(int64_t token) const {
    return word[static_cast<size_t>(token & 3)][static_cast<size_t>(token >> 2 & 15)];
  }
};
// True if any of the words is at least `threshold`.
bool fill_noise_words(Seed seed, Position position, int64_t chunk, uint32_t threshold, NoiseWords& words);

}  // namespace outrider
