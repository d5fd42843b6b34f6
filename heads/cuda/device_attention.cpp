#include "heads/cuda/device_attention.h"

#include <algorithm>

#include "heads/cuda/head_rows.h"

namespace outrider::cuda {

DeviceAttentionPlan::DeviceAttentionPlan(const HeadAttentionPlan& plan, WeightType activation_type,
                                         const DeviceInfo& device)
    : config(plan.config),
      latent(plan.latent),
      causal_layers(plan.causal_layers),
      activation(activation_type),
      kv{.layers = config.num_layers,
         .kv_heads = config.num_kv_heads,
         .head_dim = config.head_dim,
         .type = plan.bf16 ? KvType::kBFloat16 : KvType::kFloat32},
      kv_blocks(plan.kv_blocks),
      max_rows(plan.max_rows),
      max_positions(plan.max_positions),
      tile(attention_tile(config.heads_per_kv_head(),
                          {.type = kv.type,
                           .kv_heads = static_cast<int32_t>(config.num_kv_heads),
                           .head_dim = static_cast<int32_t>(config.head_dim),
                           .latent_dim = static_cast<int32_t>(latent_dim())},
                          device.shared_bytes)),
      turn_rows(attention_turn_rows(config.num_heads, value_dim(), max_positions)),
      multiprocessors(device.multiprocessors) {
  config.attention_gate = false;  // the head multiplies by it, behind attention
}

int64_t DeviceAttentionPlan::working_bytes() const {
  const int64_t tables = max_rows * (4 + kv_blocks_for(max_positions));
  const int64_t turned = max_positions * config.head_dim;
  const int64_t floats =
      tables + turned + attention_workspace(turn_rows, config.num_heads, value_dim(), max_positions);
  if (!config.latent) return 4 * floats;
  const LatentConfig& c = *config.latent;
  const int64_t of_row = attention_inputs(config, ShardPlan(config, {})).front().n +
                         config.num_heads * (config.head_dim + (c.q_rank > 0 ? c.query_dim() : 0));
  return 4 * (floats + max_rows * of_row) +
         max_rows * element_bytes(activation) * (c.q_rank + config.num_heads * (value_dim() + c.value_dim));
}

Status DeviceAttentionPlan::check() const {
  RETURN_IF_ERROR(check_heads(config));
  if (config.head_dim % 2 != 0)
    return unsupported(
        fmt::format("a head whose queries have {} dimensions: the CUDA kernels take even numbers; run with "
                    "--device cpu",
                    config.head_dim));
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    if (config.layer(layer).window > 0 && !is_causal(causal_layers, layer))
      return unsupported(
          fmt::format("a head whose layer {} has a window and looks ahead: the CUDA kernels take windows of "
                      "layers whose rows see no later ones; run with --device cpu",
                      layer));
  if (kv.type == KvType::kFloat32 || tile.rows > 0) return {};
  if (config.latent)
    return unsupported(
        fmt::format("a head with latent attention, {} query heads over kv_lora_rank {} and qk_rope_head_dim "
                    "{} in bf16: a block of this device has too little shared memory; run with --device cpu",
                    config.num_heads, config.latent->kv_rank, config.latent->rope_dim));
  return unsupported(
      fmt::format("a head with {} query heads of {} dimensions to a KV head in bf16: a block of this device "
                  "has too little shared memory; run with --device cpu",
                  config.heads_per_kv_head(), config.head_dim));
}

DeviceAttention::DeviceAttention(const DeviceAttentionPlan& plan, int device, StreamView stream,
                                 std::function<Products()> products)
    : DeviceAttention(
          plan, device, stream, std::move(products),
          std::make_unique<DeviceKvStorage>(plan.kv, plan.latent_dim(), plan.kv_blocks, device, stream)) {}

DeviceAttention::DeviceAttention(const DeviceAttentionPlan& plan, int device, StreamView stream,
                                 std::function<Products()> products,
                                 std::unique_ptr<DeviceKvStorage>&& storage)
    : DeviceAttention(plan, device, stream, std::move(products), *storage, std::move(storage)) {}

DeviceAttention::DeviceAttention(const DeviceAttentionPlan& plan, int device, StreamView stream,
                                 std::function<Products()> products, const DeviceKvStorage& storage,
                                 std::unique_ptr<DeviceKvStorage>&& owned)
    : HeadAttention(std::move(owned), plan.kv_blocks),
      plan_(plan),
      device_(device),
      stream_(stream),
      products_(std::move(products)),
      storage_(storage),
      rope_(rope_tables(plan.config, LayerRope::kMain, plan.max_positions, stream)),
      table_stride_(kv_blocks_for(plan.max_positions)),
      memory_(plan.max_rows * (4 + table_stride_)),
      workspace_(
          attention_workspace(plan.turn_rows, plan.config.num_heads, plan.value_dim(), plan.max_positions)),
      whole_(plan.config, {}) {
  for (Staging& staging : staging_) staging.memory = PinnedBuffer<int32_t>(memory_.size());
  const ModelConfig& c = plan_.config;
  if (!c.latent) return;
  latents_ = DeviceBuffer<float>(plan.max_rows * attention_inputs(c, whole_).front().n);
  latent_heads_ = LatentActivations(*c.latent, c.num_heads, c.head_dim, plan.activation, plan.max_rows);
  attended_ = DeviceBuffer<std::byte>(plan.max_rows * c.num_heads * plan.value_dim() *
                                      element_bytes(plan.activation));
}

void DeviceAttention::begin(std::span<const Row> rows, int64_t first_that_attends) {
  CHECK(static_cast<int64_t>(rows.size()) <= plan_.max_rows, "{} rows of {}", rows.size(), plan_.max_rows);
  use_device(device_);
  Staging& staging = staging_[next_staging_];
  next_staging_ = (next_staging_ + 1) % staging_.size();
  staging.sent.synchronize();  // its last copy has been read
  int32_t *positions = staging.memory.data(), *sees = positions + plan_.max_rows,
          *row_table = sees + plan_.max_rows, *tile_rows = row_table + plan_.max_rows,
          *table = tile_rows + plan_.max_rows;
  int32_t tables = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i].sequence != rows[i - 1].sequence) {
      std::copy_n(kv_.block_table(rows[i].sequence), kv_blocks_for(kv_.length(rows[i].sequence)), table);
      table += table_stride_;
      ++tables;
    }
    positions[i] = static_cast<int32_t>(rows[i].position);
    sees[i] = static_cast<int32_t>(rows[i].sees);
    row_table[i] = tables - 1;
  }
  group_rows(rows, first_that_attends, tile_rows);
  first_that_attends_ = first_that_attends;
  copy(memory_.data(), staging.memory.data(), table - staging.memory.data(), stream_);
  staging.sent.record(stream_);
}

void DeviceAttention::advance(int64_t rows) {
  use_device(device_);
  advance_rows(stream_, memory_.data(), memory_.data() + plan_.max_rows, rows);
}

// Neighbours of one sequence go over keys and values together; none of such a tile is of another turn.
void DeviceAttention::group_rows(std::span<const Row> rows, int64_t first, int32_t* tile_rows) const {
  std::fill_n(tile_rows, rows.size(), 0);
  const int64_t most = plan_.kv.type == KvType::kBFloat16 ? plan_.tile.rows : 1;
  const auto count = static_cast<int64_t>(rows.size());
  for (int64_t row = first, end = first; row < count; row = end) {
    const int64_t left = plan_.turn_rows - (row - first) % plan_.turn_rows;
    const auto at = [&](int64_t i) -> const Row& { return rows[static_cast<size_t>(i)]; };
    for (end = row + 1; end < count && end - row < std::min(most, left); ++end)
      if (at(end).sequence != at(row).sequence || at(end).sees < at(end - 1).sees) break;
    tile_rows[row] = static_cast<int32_t>(end - row);
  }
}

DeviceBatch DeviceAttention::batch(const int32_t* positions, int64_t first) const {
  const int32_t* const row_table = memory_.data() + 2 * plan_.max_rows;
  return {.positions = positions + first,
          .row_table = row_table + first,
          .tables = row_table + 2 * plan_.max_rows,
          .tile_rows = row_table + plan_.max_rows + first,
          .table_stride = table_stride_};
}

void DeviceAttention::prepare(int64_t layer, const Heads& heads) {
  const FloatRows& x = heads.numbers;
  CHECK(x.stride(0) == x.extent(1), "rows of {} numbers, {} apart", x.extent(1), x.stride(0));
  KvLayer cache = storage_.layer(layer);
  cache.kv_heads = static_cast<int32_t>(heads.keys);
  const auto data = [](const HeadVector* v) { return v ? v->data.get() : nullptr; };
  use_device(device_);
  rotate_and_store(stream_, batch(memory_.data(), heads.first_row), cache,
                   {.qkv = x.data(),
                    .rows = x.extent(0),
                    .q_heads = static_cast<int32_t>(heads.queries),
                    .bias = data(heads.bias),
                    .q_norm = data(heads.q_norm),
                    .k_norm = data(heads.k_norm),
                    .turned = rope_.turned,
                    .cosines = rope_.cosines.data(),
                    .sines = rope_.sines.data(),
                    .epsilon = static_cast<float>(plan_.config.rms_norm_eps)});
}

void DeviceAttention::attend(int64_t layer, FloatRows queries, Operand to) {
  CHECK(to.stride == to.columns, "rows of {} numbers, {} apart", to.columns, to.stride);
  use_device(device_);
  attend(layer, queries.data(), queries.stride(0), queries.extent(0), to.data);
}

Operand DeviceAttention::attend_latent(int64_t layer, Operand x) {
  const ModelConfig& c = plan_.config;
  CHECK(x.stride == x.columns, "rows of {} numbers, {} apart", x.columns, x.stride);
  const auto& w = *static_cast<const DeviceLayer*>(plan_.latent.packed.get());
  const LatentRoom room{
      .latents = latents_.data(), .stride = attention_inputs(c, whole_).front().n, .heads = latent_heads_};
  use_device(device_);
  const LayerParts parts{
      .config = c, .plan = whole_, .activation = plan_.activation, .products = products_()};
  const KvLayer kv = storage_.layer(layer);
  parts.queue_latents(w, batch(memory_.data(), 0), kv, rope_, x.data, x.rows, room);
  attend(layer, latent_heads_.queries.data(), c.q_size(), x.rows, attended_.data());
  parts.queue_values(w, attended_.data(), x.rows, room);
  const int64_t columns = c.num_heads * c.output_dim();
  return {.data = latent_heads_.values.data(),
          .rows = x.rows,
          .columns = columns,
          .stride = columns,
          .number_bytes = x.number_bytes};
}

// queries [rows, q_stride]; to [rows, value_dim of all heads].
void DeviceAttention::attend(int64_t layer, const float* queries, int64_t q_stride, int64_t rows, void* to) {
  const int32_t* const positions = memory_.data();
  const int32_t* const sees = positions + plan_.max_rows;
  attention(stream_, batch(is_causal(plan_.causal_layers, layer) ? positions : sees, first_that_attends_),
            storage_.layer(layer),
            {.q = queries,
             .q_stride = q_stride,
             .out = to,
             .out_type = plan_.activation,
             .rows = rows,
             .heads = static_cast<int32_t>(plan_.config.num_heads),
             .heads_per_kv = static_cast<int32_t>(plan_.config.heads_per_kv_head()),
             .scale = static_cast<float>(plan_.config.scales.attention),
             .window = static_cast<int32_t>(plan_.config.layer(layer).window),
             .max_positions = static_cast<int32_t>(plan_.max_positions),
             .tile_rows = std::max(plan_.tile.rows, 1),
             .tile_heads = std::max(plan_.tile.heads, 1),
             .turn_rows = plan_.turn_rows,
             .workspace = workspace_.data(),
             .multiprocessors = plan_.multiprocessors});
}

}  // namespace outrider::cuda
