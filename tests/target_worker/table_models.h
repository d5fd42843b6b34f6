// Models as tables and the distributions of their output, for proofs by enumeration.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <vector>

namespace outrider {

using Path = std::vector<int>;
using Row = std::vector<double>;
using Law = std::map<Path, double>;

// Next-token distributions of target and draft after every context.
struct TableModel {
  int vocab_size = 0;
  std::map<Path, Row> p, q;
};

// Completes everything emitted to `length` tokens with the target's own distributions.
inline void extend(const TableModel& model, const Path& path, double mass, size_t length, Law& out) {
  if (mass == 0) return;
  if (path.size() == length) {
    out[path] += mass;
    return;
  }
  Path next = path;
  next.push_back(0);
  for (int v = 0; v < model.vocab_size; ++v) {
    next.back() = v;
    extend(model, next, mass * model.p.at(path)[static_cast<size_t>(v)], length, out);
  }
}

// The largest difference between the masses of one path.
inline double distance(const Law& a, const Law& b) {
  const auto in = [](const Law& law, const Path& path) { return law.count(path) ? law.at(path) : 0.0; };
  double worst = 0;
  for (const Law* law : {&a, &b})
    for (const auto& [path, mass] : *law) worst = std::max(worst, std::abs(in(a, path) - in(b, path)));
  return worst;
}

enum class Shape { kDense, kZeros, kOneHotQ, kSameQ, kSparseQ };

// Small integers over their sum, each 0 with the chance `zero`.
inline Row random_row(std::mt19937_64& rng, int vocab_size, double zero, bool one_hot) {
  Row row(static_cast<size_t>(vocab_size), 0);
  double sum = 0;
  while (sum == 0) {
    for (double& w : row)
      w = std::uniform_real_distribution<>()(rng) < zero ? 0 : static_cast<double>(1 + rng() % 20);
    sum = std::accumulate(row.begin(), row.end(), 0.0);
  }
  if (one_hot) {
    std::fill(row.begin(), row.end(), 0);
    row[rng() % row.size()] = sum = 1;
  }
  for (double& w : row) w /= sum;
  return row;
}

// Rows of all contexts of at most `depth` tokens that begin with `context`.
inline void fill_model(std::mt19937_64& rng, Shape shape, size_t depth, const Path& context,
                       TableModel& model) {
  const double zero = shape == Shape::kZeros ? 0.3 : 0;
  model.p[context] = random_row(rng, model.vocab_size, zero, false);
  model.q[context] = shape == Shape::kSameQ
                         ? model.p[context]
                         : random_row(rng, model.vocab_size, shape == Shape::kSparseQ ? 0.6 : zero,
                                      shape == Shape::kOneHotQ);
  if (context.size() == depth) return;
  for (int v = 0; v < model.vocab_size; ++v) {
    Path next = context;
    next.push_back(v);
    fill_model(rng, shape, depth, next, model);
  }
}

}  // namespace outrider
