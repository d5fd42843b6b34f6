// A forward pass reads only the experts of a mixture that some row chose, and its bits equal those of reading
// all experts. Runs on the emulation, which counts the bytes that kernels fetch.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "model/cuda/model.h"
#include "model/cuda/weights.h"
#include "tests/emulation/copies.h"
#include "tests/kernels/cuda_test_support.h"
#include "tests/kernels/random_codes.h"
#include "tests/model/model_suite.h"
#include "tests/model/tree_suite.h"
#include "tests/support/whole_tests.h"

namespace outrider::cuda {
namespace {

constexpr int64_t kHidden = 80;
constexpr int32_t kExperts = 6;

LeafEnds ends(std::vector<int64_t> columns) { return leaves_from_ends(columns); }

std::vector<int64_t> leaf_ends(const ExpertColumns& columns) {
  std::vector<int64_t> all;
  for (int32_t leaf = 0; leaf < columns.each.count; ++leaf) all.push_back(columns.begin(leaf + 1));
  return all;
}

// A mixture, and rows that choose two of its experts.
struct Mixture {
  Mixture(const ExpertColumns& expert_columns, DeviceMatrix first, DeviceMatrix last)
      : columns(expert_columns),
        gate_up(std::move(first)),
        down(std::move(last)),
        tiles((gate_up.view().n + kTileRows - 1) / kTileRows),
        steps(down.view().slices.steps()) {}
  // Of noise.
  Mixture(WeightType weights, const ExpertColumns& of, StreamView stream)
      : Mixture(of, {weights, 2 * of.size(), even_slices(kHidden, step_columns(weights))},
                {weights, kHidden, slices_from_ends(leaf_ends(of), step_columns(weights))}) {
    fill_noise(stream, gate_up.view(), 1, 0.5f);
    fill_noise(stream, down.view(), 2, 0.5f);
  }

  WeightType type() const { return gate_up.view().type; }

  ExpertColumns columns;
  DeviceMatrix gate_up, down;
  DeviceBuffer<int32_t> tiles, steps, counts{1 + kMaxSlices};
};

// A mixture with quantized weights of a published format. The columns of down are those of all experts side
// by side, partition by partition, as a model loads them.
Mixture mixture_of_codes(const QuantScheme& scheme, const ExpertColumns& columns, StreamView stream) {
  const RandomCodes gate_up(scheme, 2 * columns.size(), kHidden, false, 1);
  const CodedPiece whole{&gate_up, {0, kHidden}};
  std::vector<std::unique_ptr<RandomCodes>> experts;
  for (uint32_t e = 0; e < kExperts; ++e)
    experts.push_back(std::make_unique<RandomCodes>(scheme, kHidden, columns.each.end[columns.each.count - 1],
                                                    false, 2 + e));
  std::vector<CodedPiece> pieces;
  for (int32_t leaf = 0; leaf < columns.each.count; ++leaf)
    for (const auto& expert : experts)
      if (columns.each.begin(leaf) < columns.each.end[leaf])
        pieces.push_back({expert.get(), {columns.each.begin(leaf), columns.each.end[leaf]}});
  return {columns, loaded(plan_codes({&whole, 1}, {}).value(), {&whole, 1}, 2 * columns.size(), stream),
          loaded(plan_codes(pieces, leaf_ends(columns)).value(), pieces, kHidden, stream)};
}

// weights [rows, experts + 1]; the shared one's is 0 where there is none.
std::vector<float> random_shares(int64_t rows, bool has_shared, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> shares(static_cast<size_t>(rows * (kExperts + 1)));
  for (int64_t m = 0; m < rows; ++m) {
    float* row = shares.data() + m * (kExperts + 1);
    for (int i = 0; i < 2; ++i) row[random() % kExperts] = 0.25f + static_cast<float>(random() % 3) / 4;
    if (has_shared) row[kExperts] = 0.5f;
  }
  return shares;
}

class ChosenExpertsTest : public CudaOps {
 protected:
  struct Outcome {
    std::vector<float> out;
    uint64_t gate_up_bytes = 0, down_bytes = 0;
  };
  // The MLP of all rows.
  Outcome run(const Mixture& m, const std::vector<float>& shares, const std::vector<float>& x, bool lists,
              bool split, int64_t shared_bytes) {
    const int64_t rows = static_cast<int64_t>(x.size()) / kHidden, width = m.columns.size();
    const bool is_float = m.type() == WeightType::kFloat32;
    const auto halves = to_device(as_bf16(x), *stream);
    const auto floats = to_device(x, *stream);
    const void* const inputs = is_float ? static_cast<const void*>(floats.data()) : halves.data();
    const auto weights = to_device(shares, *stream);
    ChosenWork chosen;
    if (lists) {
      list_chosen(*stream, {.weights = weights.data(),
                            .rows = rows,
                            .columns = m.columns,
                            .gate_up_rows = m.gate_up.view().n,
                            .down_slices = m.down.view().slices,
                            .down_columns = m.down.view().columns,
                            .tiles = m.tiles.data(),
                            .steps = m.steps.data(),
                            .counts = m.counts.data()});
      chosen = {.tiles = m.tiles.data(), .steps = m.steps.data(), .counts = m.counts.data()};
    }
    DeviceBuffer<float> gate_up(rows * 2 * width), out(rows * kHidden);
    DeviceBuffer<float> activated(rows * width);                 // of either type
    fill_bytes(gate_up.data(), 0xff, gate_up.bytes(), *stream);  // what is not computed is not looked at
    fill_bytes(out.data(), 0xff, out.bytes(), *stream);
    MatmulShape shape{.rows = rows,
                      .x_stride = kHidden,
                      .out_stride = 2 * width,
                      .chosen = {.tiles = chosen.tiles, .counts = chosen.counts},
                      .shared_bytes = shared_bytes};
    if (split) shape.split = {split_parts_.data(), split_arrived_.data(), split_parts_.size()};
    Outcome outcome;
    outcome.gate_up_bytes = fetched([&] { multiply(shape, inputs, m.gate_up.view(), gate_up.data()); });
    gate_experts(*stream, gate_up.data(), {}, weights.data(), m.columns, rows, activation_type(m.type()),
                 activated.data());
    shape.x_stride = width;
    shape.out_stride = kHidden;
    shape.chosen = {.steps = chosen.steps, .counts = chosen.counts};
    outcome.down_bytes = fetched([&] { multiply(shape, activated.data(), m.down.view(), out.data()); });
    outcome.out = to_host(out, *stream);
    return outcome;
  }

 private:
  // Inputs are brought into the order of the columns first, where that is another.
  void multiply(MatmulShape shape, const void* x, const MatrixView& weight, float* out) {
    const int64_t stride = round_up(weight.slices.k(), kAlignedInputs);
    const DeviceBuffer<bf16> gathered(weight.columns ? shape.rows * stride : 0);
    if (weight.columns) {
      gather_columns(*stream, shape.rows, static_cast<const bf16*>(x), shape.x_stride, weight,
                     gathered.data(), stride);
      shape.x_stride = stride;
    }
    matmul(*stream, shape, weight.columns ? gathered.data() : x, weight, out);
    stream->synchronize();
  }
  template <class Work>
  uint64_t fetched(Work work) {
    stream->synchronize();
    const uint64_t before = emulation::copied_bytes();
    work();
    stream->synchronize();
    return emulation::copied_bytes() - before;
  }

  DeviceBuffer<float> split_parts_{split_floats(kSplitRows, kSplitTiles* kTileRows)};
  DeviceBuffer<uint32_t> split_arrived_{kSplitCounters};
};

// Tiles of gate_up and steps of down that read a column of an expert in `used`.
struct Needed {
  Needed(const Mixture& m, const std::vector<bool>& used)
      : tiles(static_cast<size_t>(m.tiles.size())), steps(static_cast<size_t>(m.steps.size())) {
    const MatrixView &gate_up = m.gate_up.view(), &down = m.down.view();
    for (int32_t n = 0; n < gate_up.n; ++n)
      if (used[static_cast<size_t>(m.columns.expert_of(n % m.columns.size()))])
        tiles[static_cast<size_t>(n / kTileRows)] = true;
    for (int32_t c = 0; c < down.slices.k(); ++c)
      if (used[static_cast<size_t>(m.columns.expert_of(c))])
        steps[static_cast<size_t>(down.slices.step_of(c))] = true;
  }
  std::vector<bool> tiles, steps;
};

std::pair<uint64_t, uint64_t> needed(const Mixture& m, const std::vector<bool>& used) {
  const Needed all(m, used);
  return {static_cast<uint64_t>(std::count(all.tiles.begin(), all.tiles.end(), true)),
          static_cast<uint64_t>(std::count(all.steps.begin(), all.steps.end(), true))};
}

std::vector<bool> used_experts(const std::vector<float>& shares) {
  std::vector<bool> used(kExperts + 1);
  for (size_t i = 0; i < shares.size(); ++i)
    if (shares[i] != 0) used[i % (kExperts + 1)] = true;
  return used;
}

// Elements of an fp32 matrix for which `is_lost` holds become NaN.
template <class IsLost>
void lose_elements(const DeviceMatrix& matrix, StreamView stream, IsLost is_lost) {
  const MatrixView& m = matrix.view();
  std::vector<float> elements(static_cast<size_t>(matrix.bytes()) / sizeof(float));
  auto* const memory = static_cast<float*>(m.data);
  copy(elements.data(), static_cast<const float*>(memory), static_cast<int64_t>(elements.size()), stream);
  stream.synchronize();
  for (int32_t row = 0; row < m.n; ++row)
    for (int32_t column = 0; column < m.slices.k(); ++column)
      if (is_lost(row, column))
        elements[static_cast<size_t>(element_offset(m, row, column))] =
            std::numeric_limits<float>::quiet_NaN();
  copy(memory, elements.data(), static_cast<int64_t>(elements.size()), stream);
  stream.synchronize();
}

TEST_F(ChosenExpertsTest, OnlyTheUnionIsReadAndNoBitChanges) {
  const std::vector<ExpertColumns> layouts{
      {.experts = kExperts, .each = ends({32, 32, 64, 96}), .shared = ends({0, 0, 0, 0})},
      {.experts = kExperts, .each = ends({32, 64}), .shared = ends({64, 64})},
      {.experts = kExperts,
       .each = ends({8, 16, 16, 24, 32, 40, 48, 54}),
       .shared = ends({0, 0, 0, 0, 0, 0, 0, 0})}};
  // 40 rows take several passes, as 80 do; entries labelled slow have all.
  const bool is_thin = cuda::version_text() == "emulation" && !testing::runs_whole_grids();
  const std::vector<int64_t> numbers_of_rows =
      is_thin ? std::vector<int64_t>{1, 12, 40} : std::vector<int64_t>{1, 3, 12, 40, 80};
  bool skipped = false;
  for (const WeightType type : {WeightType::kBFloat16, WeightType::kInt8, WeightType::kInt4})
    for (const ExpertColumns& columns : layouts) {
      const bool has_shared = columns.shared.end[columns.shared.count - 1] > 0;
      const Mixture m(type, columns, *stream);
      for (const int64_t rows : numbers_of_rows) {
        const auto shares = random_shares(rows, has_shared, static_cast<uint32_t>(rows));
        auto x = random_floats(rows * kHidden, 5);
        for (float& value : x) value = to_float(to_bf16(value));
        const auto [tiles, steps] = needed(m, used_experts(shares));
        const Outcome all = run(m, shares, x, false, false, 0);
        for (const bool split : {false, true})
          for (const int64_t shared_bytes : {int64_t{0}, int64_t{info.shared_bytes}}) {
            if (split && shared_bytes == 0) continue;
            const Outcome some = run(m, shares, x, true, split, shared_bytes);
            EXPECT_TRUE(testing::same_bits(all.out, some.out)) << static_cast<int>(type) << ", rows " << rows;
            if (rows > 16) continue;  // tokens in several passes fetch as often
            const auto part = [](uint64_t bytes, uint64_t some_units, int64_t units) {
              return bytes * some_units / static_cast<uint64_t>(units);
            };
            EXPECT_EQ(some.gate_up_bytes, part(all.gate_up_bytes, tiles, m.tiles.size())) << rows;
            EXPECT_EQ(some.down_bytes, part(all.down_bytes, steps, m.steps.size())) << rows;
            skipped |= some.down_bytes < all.down_bytes;
          }
      }
    }
  EXPECT_TRUE(skipped);
}

// Covers the kernels for many rows, which fetch tiles in groups and activations together with the weights.
// Weights are plain numbers, or published codes whose columns keep their order or, where groups do not fill
// units, are reordered.
TEST_F(ChosenExpertsTest, ManyRowsThatChoseTwoExpertsReadAThird) {
  const ExpertColumns columns{
      .experts = kExperts, .each = ends({32, 32, 64, 96}), .shared = ends({0, 0, 0, 0})};
  std::vector<std::pair<std::string, Mixture>> mixtures;
  for (const auto& [name, type] : {std::pair{"bf16", WeightType::kBFloat16},
                                   {"fp16", WeightType::kFloat16},
                                   {"int8", WeightType::kInt8},
                                   {"int4", WeightType::kInt4}})
    mixtures.emplace_back(name, Mixture(type, columns, *stream));
  size_t in_another_order = 0;
  for (const CodeCase& c : code_cases()) {
    if (!std::set<std::string>{"gptq 4 bit in groups of 32", "compressed 4 bit in groups of 40", "Q8_0",
                               "fp8 blocks", "MXFP4"}
             .contains(c.name))
      continue;
    mixtures.emplace_back(c.name, mixture_of_codes(c.scheme, columns, *stream));
    in_another_order += mixtures.back().second.down.view().columns != nullptr;
  }
  ASSERT_EQ(mixtures.size(), 9u);
  EXPECT_TRUE(in_another_order > 0 && in_another_order < 5) << in_another_order;
  for (const auto& [name, m] : mixtures)
    for (const int64_t rows : {17, 40, 64}) {
      std::vector<float> shares(static_cast<size_t>(rows * (kExperts + 1)));
      for (int64_t row = 0; row < rows; ++row)
        shares[static_cast<size_t>(row * (kExperts + 1) + row % 2)] = 0.75f;
      auto x = random_floats(rows * kHidden, 5);
      for (float& value : x) value = to_float(to_bf16(value));
      for (const bool split : {false, true}) {
        const Outcome all = run(m, shares, x, false, split, info.shared_bytes),
                      some = run(m, shares, x, true, split, info.shared_bytes);
        EXPECT_TRUE(testing::same_bits(all.out, some.out)) << name << ", rows " << rows;
        EXPECT_EQ(some.gate_up_bytes * 3, all.gate_up_bytes) << name << ", rows " << rows;
        if (m.down.view().columns)
          EXPECT_LT(some.down_bytes, all.down_bytes) << name << ", rows " << rows;
        else
          EXPECT_EQ(some.down_bytes * 3, all.down_bytes) << name << ", rows " << rows;
      }
    }
}

// fp32 weights are multiplied in place, without a copy first. Weights that are not needed may be NaN.
TEST_F(ChosenExpertsTest, NothingElseIsReadOfFp32) {
  const ExpertColumns columns{
      .experts = kExperts, .each = ends({32, 64, 80, 96}), .shared = ends({0, 0, 0, 0})};
  for (const int64_t rows : {1, 2, 9}) {
    const Mixture m(WeightType::kFloat32, columns, *stream);
    const auto shares = random_shares(rows, false, static_cast<uint32_t>(rows));
    const auto x = random_floats(rows * kHidden, 5);
    const auto all = run(m, shares, x, false, false, 0).out;
    const Needed needs(m, used_experts(shares));
    if (rows == 1) {
      EXPECT_GT(std::count(needs.steps.begin(), needs.steps.end(), false), 0);
    }
    lose_elements(m.gate_up, *stream,
                  [&](int32_t row, int32_t) { return !needs.tiles[static_cast<size_t>(row / kTileRows)]; });
    lose_elements(m.down, *stream, [&](int32_t, int32_t column) {
      return !needs.steps[static_cast<size_t>(m.down.view().slices.step_of(column))];
    });
    EXPECT_TRUE(testing::same_bits(all, run(m, shares, x, true, false, 0).out)) << rows << " rows";
  }
}

// A NaN share of the router is not skipped as a zero share, so the NaN reaches the output.
TEST_F(ChosenExpertsTest, NanOfARouterIsNotSkipped) {
  const Mixture m(WeightType::kBFloat16, {.experts = kExperts, .each = ends({32}), .shared = ends({0})},
                  *stream);
  std::vector<float> shares(kExperts + 1);
  shares[3] = std::numeric_limits<float>::quiet_NaN();
  const auto out = run(m, shares, random_floats(kHidden, 5), true, false, 0).out;
  for (const float value : out) EXPECT_TRUE(std::isnan(value));
}

// A whole pass of one token: everything once, and of the experts' matrices the chosen ones' part. The sizes
// let tiles and steps end where experts do.
TEST_F(ChosenExpertsTest, ATokenReadsItsOwnExperts) {
  auto single = make_single_collectives();
  const ModelConfig config{.hidden_size = 128,
                           .num_layers = 2,
                           .num_heads = 4,
                           .num_kv_heads = 2,
                           .head_dim = 16,
                           .intermediate_size = 128,
                           .vocab_size = 64,
                           .max_position_embeddings = 64,
                           .layers = std::vector<LayerKind>(2, LayerKind{.has_experts = true}),
                           .experts = ExpertConfig{.count = 8, .chosen = 2, .intermediate_size = 128}};
  ModelConfig without = config;
  without.experts->intermediate_size = 0;
  const auto bytes = [](const ModelConfig& c) {
    return static_cast<double>(plan_weights(c, ShardPlan(c, {}), WeightFormat::kBFloat16).bytes);
  };
  // A token reads one row of the embedding.
  const auto table = static_cast<double>(
      DeviceMatrix::bytes_for(WeightType::kBFloat16, config.vocab_size, even_slices(config.hidden_size)));
  const double others = bytes(without) - table, experts = bytes(config) - bytes(without);
  const double expected = others + experts * 2 / 8;
  const auto model =
      CudaModel::of_noise(config, {.device = testing::suite_device(), .kv_tokens = 64}, *single).value();
  const auto ids = testing::random_ids(3, config.vocab_size, 4);
  const KvHandle sequence = model->kv().create();
  for (const TokenId id : ids) {
    const BatchSlice slice{sequence, {&id, 1}, 1};
    const uint64_t before = emulation::copied_bytes();
    ASSERT_TRUE(model->forward({&slice, 1}).ok());
    const auto fetched = static_cast<double>(emulation::copied_bytes() - before);
    std::printf("a token fetched %.0f bytes, of weights %.0f; with all experts %.0f\n", fetched, expected,
                others + experts);
    EXPECT_GE(fetched, expected);
    EXPECT_LT(fetched, expected * 1.05);  // keys and values
  }
}

// The union of a tree's nodes, of its chains, and of other texts in the batch.
TEST_F(ChosenExpertsTest, TreesHaveTheBitsOfTheirChainsOnAnyNumberOfRanks) {
  for (const int tp_size : {1, 2})
    testing::run_group(tp_size, [&](Collectives& group) {
      auto model = testing::load_or_die(testing::golden_model("qwen3-moe"),
                                        {.device = testing::suite_device(),
                                         .shard = {group.rank(), tp_size},
                                         .max_rows = 320,
                                         .max_logit_rows = 128,
                                         .kv_tokens = 4096,
                                         .weight_format = WeightFormat::kBFloat16},
                                        group);
      testing::expect_trees_equal_chains(*model, 3, 1, {.shortest = 0, .longest = 20});
    });
}

}  // namespace
}  // namespace outrider::cuda
