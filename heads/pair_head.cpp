#include "heads/pair_head.h"

#include <algorithm>
#include <cstring>

#include "transformer/model/rope.h"

namespace outrider {
namespace {

constexpr int64_t kTreeLogitRows = 32;  // of one pass, where drafts may branch

int64_t most_logit_rows(const HeadOptions& options) {
  return options.tree_nodes > 0 ? std::max(options.max_sequences, kTreeLogitRows) : options.max_sequences;
}

void copy_row(std::span<const float> from, std::span<float> to) {
  std::memcpy(to.data(), from.data(), from.size_bytes());
}

}  // namespace

PairHead::PairHead(HeadConfig config, const HeadOptions& options, HeadWeights weights,
                   std::unique_ptr<CpuKvStorage> storage, int64_t kv_blocks)
    : Head(std::move(config), options, std::move(weights.projection)),
      weights_(std::move(weights)),
      storage_(*storage),
      kv_(std::move(storage), kv_blocks),
      pool_(threads_worth(weights_.bytes, options.bytes_per_thread, options.threads)),
      rope_(rope_frequencies(config_.layer.rope, config_.layer.head_dim), options_.max_positions),
      attention_scratch_(pool_.size(), options_.max_positions, config_.layer.head_dim),
      pairs_(options.max_rows, 2 * hidden_size()),
      residual_(options.max_rows, hidden_size()),
      normed_(options.max_rows, hidden_size()),
      partial_(options.max_rows, hidden_size()),
      qkv_(options.max_rows, config_.layer.q_size() + 2 * config_.layer.kv_size()),
      attended_(options.max_rows, config_.layer.q_size()),
      gate_up_(options.max_rows, 2 * config_.layer.intermediate_size),
      last_(most_logit_rows(options), hidden_size()),
      logits_(most_logit_rows(options), weights_.head.n()) {
  attention_rows_.reserve(static_cast<size_t>(options.max_rows));
}

Result<std::unique_ptr<PairHead>> PairHead::load(const std::filesystem::path& directory,
                                                 const std::filesystem::path& target_directory,
                                                 const HeadOptions& asked) {
  ASSIGN_OR_RETURN(const ModelConfig target, read_model_config(target_directory));
  ASSIGN_OR_RETURN(HeadConfig config, read_head_config(directory, asked.kind, target));
  HeadOptions options = asked;
  if (options.max_positions == 0) options.max_positions = target.max_position_embeddings;
  if (options.kv_tokens == 0) options.kv_tokens = options.max_positions;
  options.max_rows = std::max(options.max_rows, most_logit_rows(options));  // one pair of each
  auto loaders = std::make_unique<ThreadPool>(options.threads);
  ASSIGN_OR_RETURN(HeadWeights weights, load_head_weights(directory, config, target_directory, target,
                                                          options.weight_format, *loaders));
  loaders.reset();
  const bool is_bf16 = weights.layer.qkv.type() != WeightType::kFloat32;
  const int64_t blocks = kv_blocks_for(options.kv_tokens) + options.max_sequences * options.tree_nodes;
  auto storage =
      std::make_unique<CpuKvStorage>(KvShape{.layers = 1,
                                             .kv_heads = config.layer.num_kv_heads,
                                             .head_dim = config.layer.head_dim,
                                             .type = is_bf16 ? KvType::kBFloat16 : KvType::kFloat32},
                                     blocks);
  return std::unique_ptr<PairHead>(
      new PairHead(std::move(config), options, std::move(weights), std::move(storage), blocks));
}

PairHead::Rows PairHead::forward(std::span<const PairSlice> batch) {
  const int64_t rows = append(batch);
  if (config_.kind == HeadKind::kHydra)
    read_single_states(batch, rows);
  else
    read_pairs(batch, rows);
  attend(batch, rows);
  mlp(rows);

  int64_t row = 0, out = 0;
  for (const PairSlice& slice : batch) {
    row += static_cast<int64_t>(slice.tokens.size());
    if (slice.has_logits)
      copy_row(residual_.rows(rows).row(row - 1), last_.rows(max_logit_rows()).row(out++));
  }
  const auto last = last_.rows(out), normed = normed_.rows(out);
  const bool is_normed = !weights_.output_norm.empty();
  if (is_normed) rms_norm(last, weights_.output_norm, epsilon(), normed);
  const auto logits = logits_.rows(out);
  if (out > 0 && weights_.head.n() > 0)
    matmul(pool_, matmul_scratch_, is_normed ? normed : last, weights_.head, logits);
  const bool goes_on_normed = config_.kind == HeadKind::kMtp || config_.norm_output;
  return {.logits = logits, .states = goes_on_normed ? normed : last};
}

// Returns how many rows there are.
int64_t PairHead::append(std::span<const PairSlice> batch) {
  attention_rows_.clear();
  for (const PairSlice& slice : batch) {
    const auto count = static_cast<int64_t>(slice.tokens.size());
    const int64_t first = kv_.length(slice.sequence);
    CHECK(first + count <= options_.max_positions && slice.states.extent(0) == count,
          "{} pairs and {} states behind {} of {}", count, slice.states.extent(0), first,
          options_.max_positions);
    const Status room = kv_.append(slice.sequence, count);
    CHECK(room.ok(), "head: {}", room.message());
    for (int64_t i = 0; i < count; ++i)
      attention_rows_.push_back({.block_table = kv_.block_table(slice.sequence), .position = first + i});
  }
  const auto rows = static_cast<int64_t>(attention_rows_.size());
  CHECK(rows <= options_.max_rows, "{} pairs of {}", rows, options_.max_rows);
  return rows;
}

// Without tokens.
void PairHead::read_single_states(std::span<const PairSlice> batch, int64_t rows) {
  const auto residual = residual_.rows(rows);
  int64_t row = 0;
  for (const PairSlice& slice : batch)
    for (int64_t i = 0; i < slice.states.extent(0); ++i) copy_row(slice.states.row(i), residual.row(row++));
  rms_norm(residual, weights_.attention_norm, epsilon(), normed_.rows(rows));
}

// What attention reads is left in pairs_ (EAGLE-3) or normed_, and the residual stream begins.
void PairHead::read_pairs(std::span<const PairSlice> batch, int64_t rows) {
  const int64_t hidden = hidden_size();
  const bool state_first = config_.kind == HeadKind::kMtp;
  const auto tokens = pairs_.slice(rows, state_first ? hidden : 0, hidden);
  const auto states = pairs_.slice(rows, state_first ? 0 : hidden, hidden);
  const auto residual = residual_.rows(rows);
  int64_t row = 0;
  for (const PairSlice& slice : batch)
    for (size_t i = 0; i < slice.tokens.size(); ++i, ++row) {
      weights_.tokens->read(slice.tokens[i], tokens.row(row));
      copy_row(slice.states.row(static_cast<int64_t>(i)), states.row(row));
      copy_row(slice.states.row(static_cast<int64_t>(i)), residual.row(row));
    }
  if (!weights_.token_norm.empty()) {
    rms_norm(tokens, weights_.token_norm, epsilon(), tokens);
    rms_norm(states, weights_.hidden_norm, epsilon(), states);
  }
  if (config_.kind == HeadKind::kEagle3) {
    if (config_.norm_before_residual)
      for (int64_t r = 0; r < rows; ++r) copy_row(states.row(r), residual.row(r));
    return;
  }
  matmul(pool_, matmul_scratch_, pairs_.rows(rows), weights_.fc, residual);
  add_bias(residual, weights_.fc_bias);
  if (!weights_.attention_norm.empty())
    rms_norm(residual, weights_.attention_norm, epsilon(), normed_.rows(rows));
}

void PairHead::attend(std::span<const PairSlice> batch, int64_t rows) {
  const ModelConfig& c = config_.layer;
  const LayerWeights& w = weights_.layer;
  const auto qkv = qkv_.rows(rows), attended = attended_.rows(rows), partial = partial_.rows(rows);
  const auto inputs = config_.kind == HeadKind::kEagle3 ? pairs_.rows(rows)
                      : weights_.attention_norm.empty() ? residual_.rows(rows)
                                                        : normed_.rows(rows);
  matmul(pool_, matmul_scratch_, inputs, w.qkv, qkv);
  add_bias(qkv, w.qkv_bias);
  prepare_heads(batch);
  const AttentionShape shape{.heads = c.num_heads, .heads_per_kv = c.heads_per_kv_head()};
  attention(pool_, attention_scratch_, qkv_.slice(rows, 0, c.q_size()), storage_.layer(0), shape,
            attention_rows_, attended);
  matmul(pool_, matmul_scratch_, attended, w.o, partial);
  add_bias(partial, w.o_bias);
  add_rows(residual_.rows(rows), partial);
}

// As in the target's layers: normalises (Qwen3) and rotates, then writes keys and values to the cache.
void PairHead::prepare_heads(std::span<const PairSlice> batch) {
  const ModelConfig& c = config_.layer;
  const LayerWeights& w = weights_.layer;
  const KvLayerView cache = storage_.layer(0);
  const auto size = static_cast<size_t>(c.head_dim);
  const auto heads_of = [&](float* first, int64_t count) {
    return TensorView<float, 2>(first, {count, c.head_dim});
  };
  int64_t row = 0;
  for (const PairSlice& slice : batch)
    for (size_t i = 0; i < slice.tokens.size(); ++i, ++row) {
      float* const q = qkv_.data.data() + row * qkv_.stride;
      float* const k = q + c.q_size();
      float* const v = k + c.kv_size();
      if (c.qk_norm != QkNorm::kNone) {
        rms_norm(heads_of(q, c.num_heads), w.q_norm, epsilon(), heads_of(q, c.num_heads));
        rms_norm(heads_of(k, c.num_kv_heads), w.k_norm, epsilon(), heads_of(k, c.num_kv_heads));
      }
      const int64_t position = attention_rows_[static_cast<size_t>(row)].position;
      const KvSlot at = kv_.slot(slice.sequence, position);
      for (int64_t h = 0; h < c.num_heads; ++h) rope_.rotate({q + h * c.head_dim, size}, position);
      for (int64_t h = 0; h < c.num_kv_heads; ++h) {
        rope_.rotate({k + h * c.head_dim, size}, position);
        store_kv(cache, at.block, at.slot, h, {k + h * c.head_dim, size}, {v + h * c.head_dim, size});
      }
    }
}

void PairHead::mlp(int64_t rows) {
  const LayerWeights& w = weights_.layer;
  const int64_t columns = config_.layer.intermediate_size;
  const auto residual = residual_.rows(rows), normed = normed_.rows(rows), partial = partial_.rows(rows);
  const auto gate = gate_up_.slice(rows, 0, columns), up = gate_up_.slice(rows, columns, columns);
  rms_norm(residual, w.mlp_norm, epsilon(), normed);
  matmul(pool_, matmul_scratch_, normed, w.dense().gate_up, gate_up_.rows(rows));
  add_bias(gate_up_.rows(rows), w.dense().gate_up_bias);
  silu_mul(pool_, gate, up, columns);
  matmul(pool_, matmul_scratch_, gate, w.dense().down, partial);
  add_bias(partial, w.dense().down_bias);
  add_rows(residual, partial);
}

}  // namespace outrider
