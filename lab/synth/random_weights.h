// Normal draws as bf16 weights: element i of a tensor is a pure function of (seed, tensor, i), so any thread
// may write any part, and the draft's copy of a tensor is the target's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bfloat16.h"
#include "base/random.h"

namespace outrider {

// 65536 equally likely values of a normal distribution, rounded to bf16: what bf16 can tell apart, at a
// quarter of the cost of computing each draw.
class NormalTable {
 public:
  explicit NormalTable(double standard_deviation);
  bf16 operator[](uint32_t word) const { return values_[word]; }

 private:
  std::vector<bf16> values_;
};

// out[j] is element first + j. `first` is a multiple of kWeightsPerDraw.
constexpr int64_t kWeightsPerDraw = 8;
void fill_normal(const NormalTable& table, Seed seed, int32_t tensor, int64_t first, std::span<bf16> out);

}  // namespace outrider
