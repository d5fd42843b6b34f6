// Shared helpers for tests of a model, for every back-end.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/support/test_models.h"
#include "tests/support/whole_tests.h"

namespace outrider::testing {

// Defined once by every program that has the suite: the device under test, and why there is none ("" if there
// is).
Device suite_device();
std::string no_suite_device();
std::vector<std::string> suite_models();  // of kGoldenModels
int suite_tree_rounds();                  // passes over random trees for each model
// The emulation takes its time: but for the entries labelled slow it runs a part of the largest grids.
inline bool is_thin_suite() { return suite_tree_rounds() == 1 && !runs_whole_grids(); }

inline std::vector<float> rows_of(const TensorView<float, 2>& logits) {
  std::vector<float> out;
  for (int64_t m = 0; m < logits.extent(0); ++m) {
    const auto row = logits.row(m);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

inline std::vector<TokenId> random_ids(int count, int64_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids;
  for (int i = 0; i < count; ++i)
    ids.emplace_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
  return ids;
}

// Logits of every position, fed in chunks of the given size.
inline std::vector<float> logits_in_chunks(Model& model, std::span<const TokenId> ids, size_t chunk) {
  const KvHandle sequence = model.kv().create();
  std::vector<float> out;
  for (size_t i = 0; i < ids.size(); i += chunk) {
    const auto part = ids.subspan(i, std::min(chunk, ids.size() - i));
    const BatchSlice slice{sequence, part, static_cast<int64_t>(part.size())};
    auto logits = model.forward({&slice, 1});
    EXPECT_TRUE(logits.ok());
    const auto values = rows_of(logits->logits);
    out.insert(out.end(), values.begin(), values.end());
  }
  model.kv().release(sequence);
  return out;
}

// Full rows, gathered from the ranks' slices.
inline std::vector<float> logits_of_group(const std::string& name, int tp_size, std::span<const TokenId> ids,
                                          size_t chunk, WeightFormat format = WeightFormat::kAuto) {
  std::vector<std::vector<float>> shards(static_cast<size_t>(tp_size));
  run_group(tp_size, [&](Collectives& group) {
    auto model = load_or_die(
        golden_model(name),
        {.device = suite_device(), .shard = {group.rank(), tp_size}, .weight_format = format}, group);
    shards[static_cast<size_t>(group.rank())] = logits_in_chunks(*model, ids, chunk);
  });
  std::vector<float> out;
  for (size_t row = 0; row < ids.size(); ++row)
    for (const auto& shard : shards) {
      const size_t width = shard.size() / ids.size();
      out.insert(out.end(), shard.begin() + static_cast<ptrdiff_t>(row * width),
                 shard.begin() + static_cast<ptrdiff_t>((row + 1) * width));
    }
  return out;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A directory written by write_quantized loads with the bits of quantising at load, on any number of ranks.
void expect_stored_equals_quantised_at_load(const std::string& name, WeightFormat format);

// Root mean square of the differences over that of `truth`.
double relative_difference(const std::vector<float>& values, const std::vector<float>& truth);

}  // namespace outrider::testing
