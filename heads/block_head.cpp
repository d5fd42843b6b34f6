#include "heads/block_head.h"

#include <algorithm>

#include "transformer/model/rope.h"

namespace outrider {
namespace {

constexpr int64_t kRowsOfBlocks = 64;  // of one pass, unless one block has more

// Rows [first, first + count).
TensorView<float, 2> rows_from(ActivationRows& rows, int64_t first, int64_t count) {
  return {rows.data.data() + first * rows.stride, {count, rows.columns}, {rows.stride, 1}};
}

}  // namespace

BlockHead::BlockHead(HeadConfig config, const HeadOptions& options, BlockWeights weights,
                     std::unique_ptr<CpuKvStorage> storage, int64_t kv_blocks, int64_t max_blocks)
    : Head(std::move(config), options, std::move(weights.projection)),
      weights_(std::move(weights)),
      storage_(*storage),
      kv_(std::move(storage), kv_blocks),
      max_blocks_(max_blocks),
      pool_(threads_worth(weights_.bytes, options.bytes_per_thread, options.threads)),
      rope_(rope_frequencies(config_.layer.rope, config_.layer.head_dim),
            options_.max_positions + block_rows() + 1),
      attention_scratch_(pool_.size(), options_.max_positions + block_rows() + 1, config_.layer.head_dim),
      inputs_(options.max_rows, hidden_size()),
      kv_rows_(options.max_rows, 2 * config_.layer.kv_size()),
      residual_(max_blocks * block_rows(), hidden_size()),
      q_(max_blocks * block_rows(), config_.layer.q_size()),
      attended_(max_blocks * block_rows(), config_.layer.q_size()),
      partial_(max_blocks * block_rows(), hidden_size()),
      gate_up_(max_blocks * block_rows(), 2 * config_.layer.intermediate_size),
      last_(max_blocks * block_tokens(), hidden_size()),
      logits_(max_blocks * block_tokens(), weights_.head.n()),
      transition_(2, std::max(config_.markov_rank, config_.markov_rank > 0 ? weights_.head.n() : 0)) {
  places_.reserve(static_cast<size_t>(options.max_rows));
  attention_rows_.reserve(static_cast<size_t>(max_blocks * block_rows()));
}

Result<std::unique_ptr<BlockHead>> BlockHead::load(const std::filesystem::path& directory,
                                                   const std::filesystem::path& target_directory,
                                                   const HeadOptions& asked) {
  ASSIGN_OR_RETURN(const ModelConfig target, read_model_config(target_directory));
  ASSIGN_OR_RETURN(HeadConfig config, read_head_config(directory, asked.kind, target));
  HeadOptions options = asked;
  if (options.max_positions == 0) options.max_positions = target.max_position_embeddings;
  if (options.kv_tokens == 0) options.kv_tokens = options.max_positions;
  const int64_t max_blocks = std::clamp<int64_t>(kRowsOfBlocks / config.block_size, 1, options.max_sequences);
  options.max_rows = std::max(options.max_rows, max_blocks * config.block_size);
  ThreadPool loaders(options.threads);
  ASSIGN_OR_RETURN(BlockWeights weights, load_block_weights(directory, config, target_directory, target,
                                                            options.weight_format, loaders));
  const bool is_bf16 = weights.layers.front().q.type() != WeightType::kFloat32;
  const int64_t kv_blocks =
      kv_blocks_for(options.kv_tokens) + options.max_sequences * (kv_blocks_for(config.block_size) + 1);
  auto storage =
      std::make_unique<CpuKvStorage>(KvShape{.layers = config.layer.num_layers,
                                             .kv_heads = config.layer.num_kv_heads,
                                             .head_dim = config.layer.head_dim,
                                             .type = is_bf16 ? KvType::kBFloat16 : KvType::kFloat32},
                                     kv_blocks);
  return std::unique_ptr<BlockHead>(new BlockHead(std::move(config), options, std::move(weights),
                                                  std::move(storage), kv_blocks, max_blocks));
}

TensorView<float, 2> BlockHead::forward(std::span<const BlockSlice> batch) {
  const Rows rows = append(batch);
  read(batch, rows);
  for (int64_t layer = 0; layer < config_.layer.num_layers; ++layer) {
    attend(layer, rows);
    mlp(weights_.layers[static_cast<size_t>(layer)], rows);
  }
  for (const BlockSlice& slice : batch)
    if (slice.last) kv_.truncate(slice.sequence, kv_.length(slice.sequence) - block_rows());
  return logits(batch);
}

BlockHead::Rows BlockHead::append(std::span<const BlockSlice> batch) {
  Rows rows;
  places_.clear();
  attention_rows_.clear();
  const auto places_of = [&](KvHandle sequence, int64_t first, int64_t count) {
    for (int64_t p = first; p < first + count; ++p) places_.push_back({kv_.slot(sequence, p), p});
  };
  for (const BlockSlice& slice : batch) {
    const int64_t first = kv_.length(slice.sequence), count = slice.states.extent(0);
    CHECK(first + count <= options_.max_positions, "{} states behind {} of {}", count, first,
          options_.max_positions);
    const Status room = kv_.append(slice.sequence, count + (slice.last ? block_rows() : 0));
    CHECK(room.ok(), "head: {}", room.message());
    places_of(slice.sequence, first, count);
    rows.states += count;
  }
  for (const BlockSlice& slice : batch) {
    if (!slice.last) continue;
    const int64_t end = kv_.length(slice.sequence), first = end - block_rows();
    places_of(slice.sequence, first, block_rows());
    for (int64_t p = first; p < end; ++p)
      attention_rows_.push_back(
          {.block_table = kv_.block_table(slice.sequence), .position = config_.is_causal ? p : end - 1});
    rows.blocks += block_rows();
  }
  CHECK(rows.states + rows.blocks <= options_.max_rows && rows.blocks <= max_blocks_ * block_rows(),
        "{} states and {} rows of blocks", rows.states, rows.blocks);
  return rows;
}

// States as every layer reads them, and where the residual stream of the blocks begins.
void BlockHead::read(std::span<const BlockSlice> batch, Rows rows) {
  const auto inputs = inputs_.rows(rows.states);
  const auto residual = residual_.rows(rows.blocks);
  int64_t state = 0, row = 0;
  for (const BlockSlice& slice : batch) {
    for (int64_t i = 0; i < slice.states.extent(0); ++i)
      std::copy_n(slice.states.row(i).begin(), hidden_size(), inputs.row(state++).begin());
    if (!slice.last) continue;
    weights_.tokens->read(*slice.last, residual.row(row++));
    for (int64_t i = 1; i < block_rows(); ++i) weights_.tokens->read(config_.mask_token, residual.row(row++));
  }
}

// Keys are normalised (Qwen3) and rotated as in the target's layers.
void BlockHead::store_keys(int64_t layer, Rows rows) {
  const ModelConfig& c = config_.layer;
  const BlockLayer& w = weights_.layers[static_cast<size_t>(layer)];
  const KvLayerView cache = storage_.layer(layer);
  const int64_t count = rows.states + rows.blocks;
  const auto kv = kv_rows_.rows(count);
  matmul(pool_, matmul_scratch_, inputs_.rows(count), w.kv, kv);
  add_bias(kv, w.kv_bias);
  const auto size = static_cast<size_t>(c.head_dim);
  for (int64_t row = 0; row < count; ++row) {
    const Place& at = places_[static_cast<size_t>(row)];
    float* const k = kv.row(row).data();
    const TensorView<float, 2> heads(k, {c.num_kv_heads, c.head_dim});
    if (!w.k_norm.empty()) rms_norm(heads, w.k_norm, epsilon(), heads);
    for (int64_t h = 0; h < c.num_kv_heads; ++h) {
      const std::span<float> key(k + h * c.head_dim, size);
      rope_.rotate(key, at.position);
      store_kv(cache, at.slot.block, at.slot.slot, h, key, {k + c.kv_size() + h * c.head_dim, size});
    }
  }
}

void BlockHead::attend(int64_t layer, Rows rows) {
  const ModelConfig& c = config_.layer;
  const BlockLayer& w = weights_.layers[static_cast<size_t>(layer)];
  const auto residual = residual_.rows(rows.blocks), q = q_.rows(rows.blocks);
  const auto attended = attended_.rows(rows.blocks), partial = partial_.rows(rows.blocks);
  const auto normed = rows_from(inputs_, rows.states, rows.blocks);
  rms_norm(residual, w.attention_norm, epsilon(), normed);
  store_keys(layer, rows);
  if (rows.blocks == 0) return;
  matmul(pool_, matmul_scratch_, normed, w.q, q);
  add_bias(q, w.q_bias);
  for (int64_t row = 0; row < rows.blocks; ++row) {
    const TensorView<float, 2> heads(q.row(row).data(), {c.num_heads, c.head_dim});
    if (!w.q_norm.empty()) rms_norm(heads, w.q_norm, epsilon(), heads);
    for (int64_t h = 0; h < c.num_heads; ++h)
      rope_.rotate(heads.row(h), places_[static_cast<size_t>(rows.states + row)].position);
  }
  const AttentionShape shape{.heads = c.num_heads, .heads_per_kv = c.heads_per_kv_head()};
  attention(pool_, attention_scratch_, q, storage_.layer(layer), shape, attention_rows_, attended);
  matmul(pool_, matmul_scratch_, attended, w.o, partial);
  add_bias(partial, w.o_bias);
  add_rows(residual, partial);
}

void BlockHead::mlp(const BlockLayer& layer, Rows all) {
  const int64_t rows = all.blocks, columns = config_.layer.intermediate_size;
  if (rows == 0) return;
  const auto residual = residual_.rows(rows), partial = partial_.rows(rows);
  const auto gate = gate_up_.slice(rows, 0, columns), up = gate_up_.slice(rows, columns, columns);
  const auto normed = rows_from(inputs_, all.states, rows);  // the next layer reads the states in front, too
  rms_norm(residual, layer.mlp_norm, epsilon(), normed);
  matmul(pool_, matmul_scratch_, normed, layer.mlp.gate_up, gate_up_.rows(rows));
  add_bias(gate_up_.rows(rows), layer.mlp.gate_up_bias);
  silu_mul(pool_, gate, up, columns);
  matmul(pool_, matmul_scratch_, gate, layer.mlp.down, partial);
  add_bias(partial, layer.mlp.down_bias);
  add_rows(residual, partial);
}

TensorView<float, 2> BlockHead::logits(std::span<const BlockSlice> batch) {
  const auto last = last_.rows(last_.data.size() / last_.stride);
  const int64_t first = config_.from_anchor ? 0 : 1;
  int64_t block = 0, out = 0;
  for (const BlockSlice& slice : batch) {
    if (!slice.last) continue;
    for (int64_t i = 0; i < slice.tokens; ++i)
      std::copy_n(residual_.data.data() + (block * block_rows() + first + i) * residual_.stride,
                  hidden_size(), last.row(out++).begin());
    ++block;
  }
  const auto rows = last_.rows(out), logits = logits_.rows(out);
  if (out == 0) return logits;
  rms_norm(rows, weights_.output_norm, epsilon(), rows);
  matmul(pool_, matmul_scratch_, rows, weights_.head, logits);
  return logits;
}

std::span<const float> BlockHead::behind(TokenId before, std::span<const float> logits) {
  if (!weights_.markov_of) return logits;
  const auto from = transition_.slice(1, 0, config_.markov_rank);
  const auto to = rows_from(transition_, 1, 1).row(0).first(logits.size());
  weights_.markov_of->read(before, from.row(0));
  matmul(pool_, matmul_scratch_, from, weights_.markov_to,
         TensorView<float, 2>(to.data(), {1, static_cast<int64_t>(to.size())}, {transition_.stride, 1}));
  for (size_t i = 0; i < to.size(); ++i) to[i] += logits[i];
  return to;
}

}  // namespace outrider
