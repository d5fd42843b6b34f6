// The kernels of a layer other than matrix products: norm, rotation and attention, for one sequence.
#include <cstdio>
#include <numeric>

#include "kernels/cuda/delta_ops.h"
#include "kernels/cuda/latent_ops.h"
#include "model/cuda/model.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/measure.h"

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

cuda::KvLayer layer_of(const ModelConfig& c) {
  return {.type = KvType::kBFloat16,
          .kv_heads = static_cast<int32_t>(c.num_kv_heads),
          .head_dim = static_cast<int32_t>(c.head_dim),
          .latent_dim = static_cast<int32_t>(c.latent ? c.latent->kv_rank : 0)};
}

// Buffers of the kernels of a layer: `rows` rows behind a context. All values are zeros.
struct LayerRoom {
  LayerRoom(const Bench& bench, const ModelConfig& c, int64_t row_count, int64_t context)
      : rows(row_count),
        positions(context + rows),
        blocks(kv_blocks_for(positions)),
        heads(static_cast<int32_t>(c.num_heads)),
        heads_per_kv(static_cast<int32_t>(c.heads_per_kv_head())),
        kv(layer_of(c)),
        tile(cuda::attention_tile(heads_per_kv, kv, bench.device.shared_bytes)),
        turn_rows(cuda::attention_turn_rows(heads, kv.value_dim(), positions)),
        keys(2 * blocks * kv.block_elements()),
        values(2 * blocks * kv.block_elements()),
        numbers(rows * std::max(2 * c.intermediate_size, c.q_size() + 2 * c.kv_size())),
        residual(rows * c.hidden_size),
        weight(c.hidden_size),
        out(rows * std::max(c.intermediate_size, c.q_size()) * 4),
        turns(positions * c.head_dim / 2),
        workspace(cuda::attention_workspace(turn_rows, heads, kv.value_dim(), positions)) {
    kv.keys = keys.data();
    kv.values = values.data();
    std::vector<int32_t> table(static_cast<size_t>(blocks)), places(static_cast<size_t>(rows)),
        tiles(static_cast<size_t>(rows));
    std::iota(table.begin(), table.end(), 0);
    std::iota(places.begin(), places.end(), static_cast<int32_t>(context));
    for (int64_t row = 0; row < rows; row += tile.rows)
      tiles[static_cast<size_t>(row)] = static_cast<int32_t>(std::min<int64_t>(tile.rows, rows - row));
    tables = to_device(table, bench.stream);
    row_positions = to_device(places, bench.stream);
    tile_rows = to_device(tiles, bench.stream);
    row_table = DeviceBuffer<int32_t>(rows);
    batch = {.positions = row_positions.data(),
             .row_table = row_table.data(),
             .tables = tables.data(),
             .tile_rows = tile_rows.data(),
             .table_stride = blocks};
  }

  // Queues attention for queries [rows, q_stride].
  void queue_attention(const Bench& bench, const float* q, int64_t q_stride) const {
    cuda::attention(bench.stream, batch, kv,
                    {.q = q,
                     .q_stride = q_stride,
                     .out = out.data(),
                     .out_type = WeightType::kBFloat16,
                     .rows = rows,
                     .heads = heads,
                     .heads_per_kv = heads_per_kv,
                     .max_positions = static_cast<int32_t>(positions),
                     .tile_rows = tile.rows,
                     .tile_heads = tile.heads,
                     .turn_rows = turn_rows,
                     .workspace = workspace.data(),
                     .multiprocessors = bench.device.multiprocessors});
  }

  int64_t rows, positions, blocks;
  int32_t heads, heads_per_kv;
  cuda::KvLayer kv;
  cuda::AttentionTile tile;
  int64_t turn_rows;
  DeviceBuffer<std::byte> keys, values;
  DeviceBuffer<float> numbers, residual, weight;
  DeviceBuffer<std::byte> out;
  DeviceBuffer<float> turns, workspace;
  DeviceBuffer<int32_t> tables, row_positions, tile_rows, row_table;
  cuda::DeviceBatch batch;
};

struct NamedKernel {
  const char* name = "";
  std::function<void()> queue;
};

// Each kernel many times in a graph, beside what is expected of it.
void time_kernels(Bench& bench, const std::string& name, int64_t rows, int64_t context,
                  const std::vector<NamedKernel>& kernels, const std::vector<ExpectedKernel>& expected) {
  std::printf("%-28s", fmt::format("{} kernels, {} rows", name, rows).c_str());
  for (const auto& [kernel, queue] : kernels) {
    constexpr int kCalls = 50;
    const int calls = bench.settings.tiny ? 2 : kCalls;
    const cuda::Graph graph(bench.stream, [&] {
      for (int i = 0; i < calls; ++i) queue();
    });
    const double seconds =
        measure(bench.stream, bench.settings.tiny ? 2 : 15, 1, [&](int) { graph.launch(bench.stream); })
            .median_s /
        calls;
    const auto own = std::find_if(expected.begin(), expected.end(),
                                  [&](const ExpectedKernel& e) { return e.name == kernel; });
    nlohmann::json line{
        {"model", name}, {"kernel", kernel}, {"rows", rows}, {"context", context}, {"us", seconds * 1e6}};
    const std::string off = bench.compare(line, seconds, own->seconds);
    bench.report["kernels"].push_back(line);
    std::printf("  %s %.2f us%s", kernel, seconds * 1e6, off.c_str());
  }
  std::printf("\n");
}

}  // namespace

void measure_small_kernels(Bench& bench, const std::string& name, const ModelConfig& c) {
  if (bench.time_is_up("kernels " + name)) return;
  const int64_t context = bench.settings.tiny ? 20 : 2048;
  cuda::prepare_attention(bench.device.shared_bytes);
  for (const int64_t rows : {1, 8}) {
    const LayerRoom room(bench, c, rows, context);
    const int64_t qkv = c.q_size() + 2 * c.kv_size();
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
                              .q_heads = room.heads,
                              .q_size = c.q_size(),
                              .k_size = c.kv_size(),
                              .turned = static_cast<int32_t>(c.head_dim / 2),
                              .cosines = room.turns.data(),
                              .sines = room.turns.data()});
    };
    const auto attention = [&] { room.queue_attention(bench, room.numbers.data(), qkv); };
    time_kernels(bench, name, rows, context, {{"norm", norm}, {"rope", rope}, {"attention", attention}},
                 expected_step(bench.rates, c, types_of(WeightFormat::kBFloat16), rows, context));
  }
}

void measure_latent_kernels(Bench& bench, const std::string& name, const ModelConfig& c) {
  if (bench.time_is_up("kernels " + name)) return;
  const int64_t context = bench.settings.tiny ? 20 : 2048;
  const LatentConfig& latent = *c.latent;
  cuda::prepare_attention(bench.device.shared_bytes);
  const auto heads = static_cast<int32_t>(c.num_heads);
  const auto head_matrix = [&](int64_t n, int64_t k) {
    const int64_t ends[] = {k};
    return cuda::DeviceMatrix(WeightType::kBFloat16, heads * cuda::head_rows(n),
                              cuda::slices_from_ends(ends));
  };
  const cuda::DeviceMatrix key_up = head_matrix(latent.kv_rank, latent.nope_dim),
                           value_up = head_matrix(latent.value_dim, latent.kv_rank);
  for (const int64_t rows : {1, 8}) {
    const LayerRoom room(bench, c, rows, context);
    const DeviceBuffer<float> queries(rows * c.q_size());
    const cuda::LatentTurns turns{.pairs = static_cast<int32_t>(latent.rope_dim / 2),
                                  .cosines = room.turns.data(),
                                  .sines = room.turns.data()};
    const auto latents = [&] {
      cuda::store_latents(bench.stream, room.batch, room.kv,
                          {.latents = room.numbers.data(),
                           .stride = latent.q_rank + c.head_dim,
                           .kv_begin = latent.q_rank,
                           .kv_norm = room.weight.data(),
                           .q_rank = latent.q_rank,
                           .q_norm = room.weight.data(),
                           .q_latent = room.out.data(),
                           .type = WeightType::kBFloat16,
                           .rows = rows,
                           .epsilon = 1e-6f,
                           .turns = turns});
    };
    const auto rope = [&] {
      cuda::turn_queries(bench.stream, room.batch,
                         {.q = room.numbers.data(),
                          .stride = heads * latent.query_dim(),
                          .each = static_cast<int32_t>(latent.query_dim()),
                          .from = static_cast<int32_t>(latent.nope_dim),
                          .queries = queries.data(),
                          .to_each = static_cast<int32_t>(c.head_dim),
                          .to = static_cast<int32_t>(latent.kv_rank),
                          .heads = heads,
                          .rows = rows,
                          .turns = turns});
    };
    const auto up_to_latents = [&] {
      cuda::multiply_heads(bench.stream,
                           {.x = room.numbers.data(),
                            .x_stride = heads * latent.query_dim(),
                            .x_each = latent.query_dim(),
                            .out = queries.data(),
                            .out_stride = c.q_size(),
                            .out_each = c.head_dim,
                            .rows = rows,
                            .heads = heads,
                            .n = latent.kv_rank},
                           key_up.view());
    };
    const auto attention = [&] { room.queue_attention(bench, queries.data(), c.q_size()); };
    const auto up_to_values = [&] {
      cuda::multiply_heads(bench.stream,
                           {.x = room.out.data(),
                            .x_stride = heads * latent.kv_rank,
                            .x_each = latent.kv_rank,
                            .is_x_float = false,
                            .out = queries.data(),
                            .out_stride = heads * latent.value_dim,
                            .out_each = latent.value_dim,
                            .rows = rows,
                            .heads = heads,
                            .n = latent.value_dim},
                           value_up.view());
    };
    time_kernels(bench, name, rows, context,
                 {{"latents", latents},
                  {"rope", rope},
                  {"key_up", up_to_latents},
                  {"attention", attention},
                  {"value_up", up_to_values}},
                 expected_latents(bench.rates, c, rows, context));
  }
}

// A sequence whose state takes in one token of an earlier pass, and whose rows are a draft.
void measure_delta_kernels(Bench& bench, const std::string& name, const DeltaNetConfig& c) {
  if (bench.time_is_up("kernels " + name)) return;
  constexpr int32_t kContext = 20;
  cuda::prepare_delta_nets();
  std::vector<int32_t> key_of;
  for (int64_t value = 0; value < c.value_heads; ++value)
    key_of.push_back(static_cast<int32_t>(c.key_of(value)));
  const auto keys = to_device(key_of, bench.stream);
  const auto kept = static_cast<int32_t>(c.row_size());
  cuda::KvLayer layer{.type = KvType::kBFloat16, .kv_heads = 1, .head_dim = kept, .latent_dim = kept};
  const int64_t blocks = kv_blocks_for(kContext + 8),
                state_floats = cuda::delta_state_floats(c.value_heads, c.key_dim, c.value_dim);
  const DeviceBuffer<std::byte> memory(blocks * layer.block_elements() * 2);
  layer.keys = memory.data();
  const DeviceBuffer<float> states(state_floats), conv(c.taps * c.channels()), of_heads(c.value_heads),
      norm(c.value_dim);
  std::vector<int32_t> table(static_cast<size_t>(blocks));
  std::iota(table.begin(), table.end(), 0);
  const auto tables = to_device(table, bench.stream);
  for (const int64_t rows : {1, 8}) {
    std::vector<int32_t> places(static_cast<size_t>(rows));
    std::iota(places.begin(), places.end(), kContext);
    const auto positions = to_device(places, bench.stream);
    const DeviceBuffer<int32_t> row_table(rows);
    std::vector<cuda::DeltaSequence> all(static_cast<size_t>(rows));
    const auto count = static_cast<int32_t>(rows);
    all[0] = {.place = 0,
              .held = kContext - 1,
              .hold = kContext,
              .rows = count,
              .chain_rows = count,
              .chain_end = kContext + count,
              .tree_begin = kContext + count};
    const auto sequences = to_device(all, bench.stream);
    const cuda::DeviceBatch batch{.positions = positions.data(),
                                  .row_table = row_table.data(),
                                  .tables = tables.data(),
                                  .table_stride = blocks,
                                  .sequences = sequences.data()};
    const int64_t columns = c.row_size() + c.value_size();
    const DeviceBuffer<float> projected(rows * columns);
    const DeviceBuffer<std::byte> out(rows * c.value_size() * 2);
    const cuda::DeltaNetArguments arguments{.projected = projected.data(),
                                            .stride = columns,
                                            .rows = rows,
                                            .key_heads = static_cast<int32_t>(c.key_heads),
                                            .value_heads = static_cast<int32_t>(c.value_heads),
                                            .key_dim = static_cast<int32_t>(c.key_dim),
                                            .value_dim = static_cast<int32_t>(c.value_dim),
                                            .taps = static_cast<int32_t>(c.taps),
                                            .epsilon = 1e-6f,
                                            .keys = keys.data(),
                                            .conv = conv.data(),
                                            .rate = of_heads.data(),
                                            .dt_bias = of_heads.data(),
                                            .norm = norm.data(),
                                            .states = states.data(),
                                            .state_stride = state_floats,
                                            .out = out.data(),
                                            .type = WeightType::kBFloat16,
                                            .multiprocessors = bench.device.multiprocessors};
    time_kernels(bench, name, rows, kContext,
                 {{"store", [&] { cuda::store_delta_rows(bench.stream, batch, layer, arguments); }},
                  {"states", [&] { cuda::update_delta_states(bench.stream, batch, layer, arguments); }},
                  {"outputs", [&] { cuda::gate_delta_outputs(bench.stream, arguments); }}},
                 expected_delta_net(bench.rates, c, rows));
  }
}

}  // namespace outrider::gpu
