// Gated delta nets on a device: the order of tokens, and kernels against the host's.
#include "kernels/cuda/delta_ops.h"

#include <algorithm>

#include "kernels/cpu/delta_net.h"
#include "model/kv/cpu_kv_storage.h"
#include "tests/kernels/cuda_test_support.h"

namespace outrider::cuda {
namespace {

// A chain, and behind it a tree whose first nodes are a chain, too.
struct Text {
  Text(std::mt19937& random, int32_t first_position, int32_t chain, int32_t nodes) {
    const auto below = [&](int32_t count) {
      return static_cast<int32_t>(random() % static_cast<uint32_t>(count));
    };
    tree_begin = first_position + chain;
    for (int32_t slot = first_position; slot < tree_begin; ++slot) {
      positions.push_back(slot);
      paths.emplace_back();
    }
    for (int32_t node = 0; node < nodes; ++node) {
      // Often the node before, so that some branches go on.
      const int32_t parent = node == 0 ? -1 : below(2) == 0 ? node - 1 : below(node + 1) - 1;
      std::vector<int32_t> path =
          parent < 0 ? std::vector<int32_t>{} : paths[static_cast<size_t>(chain + parent)];
      path.push_back(tree_begin + node);
      positions.push_back(tree_begin + static_cast<int32_t>(path.size()) - 1);
      paths.push_back(path);
    }
    while (in_place < rows() && positions[static_cast<size_t>(in_place)] == first_position + in_place)
      ++in_place;
    for (int32_t row = 0; row < rows(); ++row) {
      const auto at = static_cast<size_t>(row);
      tail_at.push_back(static_cast<int32_t>(tails.size()));
      tail_begins.push_back(row < in_place ? kNoTail : tree_begin);
      if (row >= in_place) tails.insert(tails.end(), paths[at].begin(), paths[at].end());
    }
  }
  int32_t rows() const { return static_cast<int32_t>(positions.size()); }
  DeltaSequence sequence(int32_t held, int32_t hold) const {
    return {.place = 0,
            .held = held,
            .hold = hold,
            .first_row = 0,
            .rows = rows(),
            .chain_rows = in_place,
            .chain_end = positions.front() + in_place,
            .tree_begin = tree_begin};
  }

  int32_t tree_begin = 0, in_place = 0;
  std::vector<int32_t> positions, tail_begins, tail_at, tails;
  std::vector<std::vector<int32_t>> paths;  // by row: slots from the top of the tree
};

// A state stands for the slots of the tokens that it took in.
TEST(DeltaWalk, EveryRowsStateHasTheTokensOfItsPath) {
  std::mt19937 random(3);
  int goes_on = 0, restarts = 0;
  for (int round = 0; round < 500; ++round) {
    const auto below = [&](int32_t count) {
      return static_cast<int32_t>(random() % static_cast<uint32_t>(count));
    };
    const int32_t first = below(6), chain = below(4), nodes = below(12) + (chain == 0 ? 1 : 0);
    const Text text(random, first, chain, nodes);
    const int32_t held = below(first + 1), hold = held + below(text.tree_begin - held + 1);
    DeltaWalk walk(text.sequence(held, hold));
    std::vector<int32_t> state, base, kept;
    for (int32_t slot = 0; slot < held; ++slot) state.push_back(slot);
    kept = state;
    const auto path_of = [&](int32_t row) { return text.paths[static_cast<size_t>(row)]; };
    std::vector<int> outputs(static_cast<size_t>(text.rows()));
    DeltaStep step;
    while (walk.next(
        step, [&](int32_t row) { return text.positions[static_cast<size_t>(row)]; },
        [&](int32_t row) {
          const auto own = path_of(row), before = path_of(row - 1);
          return own.size() == before.size() + 1 && own[before.size() - 1] == before.back();
        })) {
      if (step.saves) base = state;
      if (step.restarts) state = base;
      restarts += step.restarts;
      goes_on += step.path >= 0 && !step.restarts && step.out_row >= 0;
      ASSERT_EQ(static_cast<int32_t>(state.size()), step.position);
      state.push_back(step.path < 0
                          ? step.position
                          : path_of(step.path)[static_cast<size_t>(step.position - text.tree_begin)]);
      if (step.commits) kept = state;
      if (step.out_row < 0) continue;
      ++outputs[static_cast<size_t>(step.out_row)];
      std::vector<int32_t> expected;
      const auto path = path_of(step.out_row);
      const int32_t position = text.positions[static_cast<size_t>(step.out_row)];
      for (int32_t slot = 0; slot <= position && (path.empty() || slot < text.tree_begin); ++slot)
        expected.push_back(slot);
      expected.insert(expected.end(), path.begin(), path.end());
      ASSERT_EQ(state, expected) << "row " << step.out_row;
    }
    for (const int count : outputs) ASSERT_EQ(count, 1);
    ASSERT_EQ(static_cast<int32_t>(kept.size()), hold);
  }
  EXPECT_GT(goes_on, 100);
  EXPECT_GT(restarts, 100);
}

struct DeltaSizes {
  int32_t key_heads, value_heads, key_dim, value_dim, taps;
};

// Two passes: the first leaves a state, the second takes some of its tokens in and has a tree.
TEST_F(CudaOps, DeltaNetsEqualTheHosts) {
  constexpr int32_t kFirst = 14, kChain = 3, kNodes = 9, kHeld = 9, kHold = 15;
  prepare_delta_nets();
  ThreadPool pool(1);
  for (const DeltaSizes& size : {DeltaSizes{1, 2, 128, 128, 4}, {2, 2, 20, 40, 3}, {1, 1, 250, 33, 4}})
    for (const KvType type : {KvType::kFloat32, KvType::kBFloat16}) {
      std::mt19937 random(5);
      const Text text(random, kFirst, kChain, kNodes);
      const int32_t tokens = kFirst + text.rows(), values = size.value_heads * size.value_dim;
      DeltaNetShape shape{
          .key_dim = size.key_dim, .value_dim = size.value_dim, .taps = size.taps, .epsilon = 1e-6f};
      std::vector<int32_t> keys;
      for (int32_t value = 0; value < size.value_heads; ++value) {
        shape.values.push_back(value);
        keys.push_back(value * size.key_heads / size.value_heads);
        if (value + 1 == size.value_heads || (value + 1) * size.key_heads / size.value_heads != keys.back())
          shape.ends.push_back(value + 1);
      }
      const auto kept = static_cast<int32_t>(shape.row_size()), columns = kept + values;
      // By slot; the second pass has the rows from kFirst on.
      const auto projected = random_floats(int64_t{tokens} * columns, 1),
                 conv = random_floats(size.taps * shape.channels(), 2),
                 rates = random_floats(size.value_heads, 3), bias = random_floats(size.value_heads, 4),
                 norm = random_floats(size.value_dim, 5);
      std::vector<float> rate;
      for (const float each : rates) rate.push_back(-std::exp(each));
      const std::vector<int32_t> table{1, 0};

      const CpuKvStorage host({.layers = 1, .type = type, .row_layers = {true}, .row_size = kept}, 2);
      std::vector<AttentionRow> rows;
      std::vector<float> gates, expected(static_cast<size_t>(text.rows() * values));
      for (int32_t slot = 0; slot < tokens; ++slot) {
        const float* const row = projected.data() + int64_t{slot} * columns;
        store_row(host.layer(0), table[static_cast<size_t>(slot / kBlockTokens)], slot % kBlockTokens,
                  {row, static_cast<size_t>(kept)});
        if (slot < kFirst) continue;
        const auto at = static_cast<size_t>(slot - kFirst);
        gates.insert(gates.end(), row + kept, row + columns);
        rows.push_back({.block_table = table.data(),
                        .position = text.positions[at],
                        .tail_begin = text.tree_begin,
                        .tail_slots = text.paths[at].empty() ? nullptr : text.paths[at].data()});
      }
      std::vector<float> state(static_cast<size_t>(shape.state_size()));
      DeltaNetScratch scratch(1, shape);
      const DeltaNetSequence whole{.block_table = table.data(), .state = state.data(), .rows = text.rows()};
      gated_delta_net(pool, scratch, shape, {.taps = conv, .rate = rate, .dt_bias = bias, .norm = norm},
                      host.layer(0), {&whole, 1}, rows,
                      TensorView<const float, 2>(gates.data(), {text.rows(), values}),
                      TensorView<float, 2>(expected.data(), {text.rows(), values}));

      KvLayer layer{.type = type, .kv_heads = 1, .head_dim = kept, .latent_dim = kept};
      const DeviceBuffer<std::byte> memory(2 * layer.block_elements() * 4);
      layer.keys = memory.data();
      const int64_t floats = delta_state_floats(size.value_heads, size.key_dim, size.value_dim);
      const DeviceBuffer<float> states(floats), out(int64_t{std::max(kFirst, text.rows())} * values);
      const auto device_conv = to_device(conv, *stream), device_rate = to_device(rate, *stream),
                 device_bias = to_device(bias, *stream), device_norm = to_device(norm, *stream);
      const auto device_keys = to_device(keys, *stream), device_table = to_device(table, *stream);
      const auto pass = [&](int32_t first, const Text& of, int32_t held, int32_t hold) {
        const auto mine =
            to_device(std::vector<float>(projected.begin() + int64_t{first} * columns,
                                         projected.begin() + int64_t{first + of.rows()} * columns),
                      *stream);
        const auto positions = to_device(of.positions, *stream), begins = to_device(of.tail_begins, *stream),
                   at = to_device(of.tail_at, *stream), tails = to_device(of.tails, *stream),
                   row_table = to_device(std::vector<int32_t>(static_cast<size_t>(of.rows()), 0), *stream);
        const auto sequences = to_device(std::vector<DeltaSequence>{of.sequence(held, hold), {}}, *stream);
        const DeviceBatch batch{.positions = positions.data(),
                                .row_table = row_table.data(),
                                .tables = device_table.data(),
                                .tail_begins = begins.data(),
                                .tail_at = at.data(),
                                .tails = tails.data(),
                                .table_stride = 2,
                                .sequences = sequences.data()};
        const DeltaNetArguments arguments{.projected = mine.data(),
                                          .stride = columns,
                                          .rows = of.rows(),
                                          .key_heads = size.key_heads,
                                          .value_heads = size.value_heads,
                                          .key_dim = size.key_dim,
                                          .value_dim = size.value_dim,
                                          .taps = size.taps,
                                          .epsilon = 1e-6f,
                                          .keys = device_keys.data(),
                                          .conv = device_conv.data(),
                                          .rate = device_rate.data(),
                                          .dt_bias = device_bias.data(),
                                          .norm = device_norm.data(),
                                          .states = states.data(),
                                          .state_stride = floats,
                                          .out = out.data()};
        store_delta_rows(*stream, batch, layer, arguments);
        update_delta_states(*stream, batch, layer, arguments);
        gate_delta_outputs(*stream, arguments);
        stream->synchronize();
      };
      pass(0, Text(random, 0, kFirst, 0), 0, kHeld);
      pass(kFirst, text, kHeld, kHold);
      const auto got = to_host(out, *stream);
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(got[i], expected[i], 2e-4f * (1 + std::abs(expected[i])))
            << i << " of keys of " << size.key_dim;
    }
}

}  // namespace
}  // namespace outrider::cuda
