// The kernels of a layer that are no products: norm, rotation, attention and the gate, for one sequence.
#include <cstdio>
#include <numeric>

#include "tests/gpu/bench.h"
#include "tests/gpu/measure.h"
#include "transformer/model/cuda/model.h"
#include "transformer/ops/cuda/cuda_ops.h"

namespace outrider::gpu {
namespace {

using cuda::DeviceBuffer;

template <class T>
DeviceBuffer<T> to_device(const std::vector<T>& values, cuda::StreamView stream) {
  DeviceBuffer<T> buffer(static_cast<int64_t>(values.size()));
  cuda::copy(buffer.data(), values.data(), buffer.size(), stream);
  stream.synchronize();
  return buffer;
}

// What the kernels of a layer read and write: `rows` rows behind a context. All of it is zeros.
struct LayerRoom {
  LayerRoom(const ModelConfig& c, int64_t row_count, int64_t context, cuda::StreamView stream)
      : rows(row_count),
        positions(context + rows),
        blocks(kv_blocks_for(positions)),
        kv{.type = KvType::kBFloat16,
           .kv_heads = static_cast<int32_t>(c.num_kv_heads),
           .head_dim = static_cast<int32_t>(c.head_dim)},
        keys(2 * blocks * kv.block_elements()),
        values(2 * blocks * kv.block_elements()),
        numbers(rows * std::max(2 * c.intermediate_size, c.q_size() + 2 * c.kv_size())),
        residual(rows * c.hidden_size),
        weight(c.hidden_size),
        out(rows * std::max(c.intermediate_size, c.q_size()) * 4),
        turns(positions * c.head_dim / 2) {
    kv.keys = keys.data();
    kv.values = values.data();
    std::vector<int32_t> table(static_cast<size_t>(blocks)), places(static_cast<size_t>(rows)),
        tiles(static_cast<size_t>(rows));
    std::iota(table.begin(), table.end(), 0);
    std::iota(places.begin(), places.end(), static_cast<int32_t>(context));
    tiles[0] = static_cast<int32_t>(rows);
    tables = to_device(table, stream);
    row_positions = to_device(places, stream);
    tile_rows = to_device(tiles, stream);
    row_table = DeviceBuffer<int32_t>(rows);
    batch = {.positions = row_positions.data(),
             .row_table = row_table.data(),
             .tables = tables.data(),
             .tile_rows = tile_rows.data(),
             .table_stride = blocks};
  }

  int64_t rows, positions, blocks;
  cuda::KvLayer kv;
  DeviceBuffer<std::byte> keys, values;
  DeviceBuffer<float> numbers, residual, weight;
  DeviceBuffer<std::byte> out;
  DeviceBuffer<float> turns;
  DeviceBuffer<int32_t> tables, row_positions, tile_rows, row_table;
  cuda::DeviceBatch batch;
};

}  // namespace

void measure_small_kernels(Bench& bench, const std::string& name, const ModelConfig& c) {
  if (bench.time_is_up("kernels " + name)) return;
  const int64_t context = bench.settings.tiny ? 20 : 2048;
  cuda::prepare_attention(bench.device.shared_bytes);
  for (const int64_t rows : {1, 8}) {
    const LayerRoom room(c, rows, context, bench.stream);
    const auto heads = static_cast<int32_t>(c.num_heads);
    const int64_t qkv = c.q_size() + 2 * c.kv_size();
    const int64_t turn_rows = cuda::attention_turn_rows(heads, c.head_dim, room.positions);
    const cuda::AttentionTile tile =
        cuda::attention_tile(c.heads_per_kv_head(), room.kv, bench.device.shared_bytes);
    const DeviceBuffer<float> workspace(
        cuda::attention_workspace(turn_rows, heads, c.head_dim, room.positions));
    const auto norm = [&] {
      cuda::add_and_norm(bench.stream, {.residual = room.residual.data(),
                                        .added = room.numbers.data(),
                                        .weight = room.weight.data(),
                                        .out = room.out.data(),
                                        .type = WeightType::kBFloat16,
                                        .rows = rows,
                                        .hidden = c.hidden_size,
                                        .epsilon = 1e-5f});
    };
    const auto rope = [&] {
      cuda::rotate_and_store(bench.stream, room.batch, room.kv,
                             {.qkv = room.numbers.data(),
                              .rows = rows,
                              .q_heads = heads,
                              .q_size = c.q_size(),
                              .k_size = c.kv_size(),
                              .turned = static_cast<int32_t>(c.head_dim / 2),
                              .cosines = room.turns.data(),
                              .sines = room.turns.data()});
    };
    const auto attention = [&] {
      cuda::attention(bench.stream, room.batch, room.kv,
                      {.q = room.numbers.data(),
                       .q_stride = qkv,
                       .out = room.out.data(),
                       .out_type = WeightType::kBFloat16,
                       .rows = rows,
                       .heads = heads,
                       .heads_per_kv = static_cast<int32_t>(c.heads_per_kv_head()),
                       .max_positions = static_cast<int32_t>(room.positions),
                       .tile_rows = tile.rows,
                       .tile_heads = tile.heads,
                       .turn_rows = turn_rows,
                       .workspace = workspace.data(),
                       .multiprocessors = bench.device.multiprocessors});
    };
    const auto silu = [&] {
      cuda::silu_mul(bench.stream, room.numbers.data(), nullptr, rows, c.intermediate_size,
                     WeightType::kBFloat16, room.out.data());
    };
    const auto step = expected_step(bench.rates, c, types_of(WeightFormat::kBFloat16), rows, context);
    std::printf("%-28s", fmt::format("{} kernels, {} rows", name, rows).c_str());
    for (const auto& [kernel, queue] : std::initializer_list<std::pair<const char*, std::function<void()>>>{
             {"norm", norm}, {"rope", rope}, {"attention", attention}, {"silu", silu}}) {
      constexpr int kCalls = 50;
      const int calls = bench.settings.tiny ? 2 : kCalls;
      const cuda::Graph graph(bench.stream, [&] {
        for (int i = 0; i < calls; ++i) queue();
      });
      const double seconds =
          measure(bench.stream, bench.settings.tiny ? 2 : 15, 1, [&](int) { graph.launch(bench.stream); })
              .median_s /
          calls;
      const auto expected =
          std::find_if(step.begin(), step.end(), [&](const ExpectedKernel& e) { return e.name == kernel; });
      nlohmann::json line{
          {"model", name}, {"kernel", kernel}, {"rows", rows}, {"context", context}, {"us", seconds * 1e6}};
      const std::string off = bench.compare(line, seconds, expected->seconds);
      bench.report["kernels"].push_back(line);
      std::printf("  %s %.2f us%s", kernel, seconds * 1e6, off.c_str());
    }
    std::printf("\n");
  }
}

}  // namespace outrider::gpu
