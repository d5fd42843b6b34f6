// Plain single-threaded versions of the sampling steps over whole rows, written from the specification rather
// than from the sharded code, and a runner for ranks in threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "base/philox.h"
#include "base/sampling_params.h"
#include "base/shard.h"
#include "comm/collectives.h"
#include "kernels/sampling/row_kernels.h"

namespace outrider::reference {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

inline std::vector<uint64_t> weights(const std::vector<float>& row) {
  const float max = *std::max_element(row.begin(), row.end());
  std::vector<uint64_t> result(row.size());
  for (size_t v = 0; v < row.size(); ++v) result[v] = weight_of(row[v], max);
  return result;
}

inline uint64_t sum(const std::vector<uint64_t>& values) {
  return std::accumulate(values.begin(), values.end(), uint64_t{0});
}

// Ids in the order (logit desc, id asc), masked ones left out.
inline std::vector<size_t> order(const std::vector<float>& row) {
  std::vector<size_t> ids;
  for (size_t v = 0; v < row.size(); ++v)
    if (row[v] != kMasked) ids.push_back(v);
  std::stable_sort(ids.begin(), ids.end(), [&](size_t a, size_t b) { return row[a] > row[b]; });
  return ids;
}

inline void keep_prefix(std::vector<float>& row, const std::vector<size_t>& ids, size_t count) {
  std::vector<float> kept(row.size(), kMasked);
  for (size_t i = 0; i < std::min(count, ids.size()); ++i) kept[ids[i]] = row[ids[i]];
  row = kept;
}

inline void filter(std::vector<float>& row, const SamplingParams& params) {
  if (params.top_k > 0) keep_prefix(row, order(row), static_cast<size_t>(params.top_k));
  if (params.top_p < 1) {
    const auto ids = order(row);
    const auto w = weights(row);
    const double need = std::ceil(static_cast<double>(params.top_p) * static_cast<double>(sum(w)));
    size_t count = 0;
    uint64_t mass = 0;
    while (count < ids.size() && (count == 0 || static_cast<double>(mass) < need)) mass += w[ids[count++]];
    keep_prefix(row, ids, count);
  }
  if (params.min_p > 0) {
    const auto w = weights(row);
    for (size_t v = 0; v < row.size(); ++v)
      if (static_cast<double>(w[v]) < static_cast<double>(params.min_p) * 0x1p44) row[v] = kMasked;
  }
}

// Raw logits of the row after `prompt`, `output` -> processed logits.
inline std::vector<float> process(std::vector<float> row, const SamplingParams& params,
                                  const std::vector<TokenId>& prompt, const std::vector<TokenId>& output) {
  std::map<int32_t, int> in_output;
  std::map<int32_t, bool> seen;
  for (TokenId id : prompt) seen[id.value()] = true;
  for (TokenId id : output) seen[id.value()] = true, ++in_output[id.value()];
  for (const auto& [id, unused] : seen) {
    float& logit = row[static_cast<size_t>(id)];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  }
  for (const auto& [id, count] : in_output) {
    float& logit = row[static_cast<size_t>(id)];
    logit -= params.frequency_penalty * static_cast<float>(count);
    logit -= params.presence_penalty;
  }
  for (const auto& [id, bias] : params.logit_bias) row[static_cast<size_t>(id.value())] += bias;
  if (params.temperature < kGreedyTemperature) return row;
  const float scale = 1.0f / params.temperature;
  for (float& logit : row) logit *= scale;
  filter(row, params);
  return row;
}

inline TokenId argmax(const std::vector<float>& row) {
  return TokenId(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
}

inline TokenId gumbel_argmax(const std::vector<float>& row, Seed seed, Position position) {
  size_t best = row.size();
  float best_score = kMasked;
  for (size_t v = 0; v < row.size(); ++v) {
    if (row[v] == kMasked) continue;
    const float score =
        row[v] + static_cast<float>(draw_gumbel(seed, position, TokenId(static_cast<int32_t>(v))));
    if (best == row.size() || score > best_score) best = v, best_score = score;
  }
  return TokenId(static_cast<int32_t>(best));
}

inline TokenId inverse_cdf(const std::vector<uint64_t>& w, uint64_t bits) {
  const uint64_t target = multiply_high(bits, sum(w));
  uint64_t cumulative = 0;
  for (size_t v = 0; v < w.size(); ++v)
    if ((cumulative += w[v]) > target) return TokenId(static_cast<int32_t>(v));
  return TokenId(-1);
}

// Runs body(collectives of rank r) on every rank of a group of threads.
inline void run_ranks(int size, const std::function<void(Collectives&)>& body) {
  auto group = make_thread_collectives(size);
  std::vector<std::jthread> threads;
  for (int r = 1; r < size; ++r) threads.emplace_back([&, r] { body(*group[static_cast<size_t>(r)]); });
  body(*group[0]);
}

// Logits like a model's: a bell with a few large ones; rounded to 1/grain so that ties are common.
inline std::vector<float> random_logits(std::mt19937_64& rng, size_t vocab_size, double spread = 3,
                                        double grain = 8) {
  std::normal_distribution<double> bell(0, spread);
  std::vector<float> row(vocab_size);
  for (float& logit : row) logit = static_cast<float>(std::round(bell(rng) * grain) / grain);
  return row;
}

}  // namespace outrider::reference
