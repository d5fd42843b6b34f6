#include "transformer/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

namespace outrider {
namespace {

// Per pair of dimensions, in fp32 and in the order of operations of the reference implementation.
std::vector<float> rope_frequencies(const ModelConfig& config) {
  std::vector<float> frequencies;
  for (int64_t i = 0; i < config.head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(config.head_dim);
    float frequency = 1.0f / std::pow(static_cast<float>(config.rope_theta), exponent);
    if (config.rope_scaling) {
      const Llama3RopeScaling& scaling = *config.rope_scaling;
      const auto original = static_cast<float>(scaling.original_max_position_embeddings);
      const auto factor = static_cast<float>(scaling.factor);
      const auto low = static_cast<float>(scaling.low_freq_factor),
                 high = static_cast<float>(scaling.high_freq_factor);
      const float wavelength = 2 * std::numbers::pi_v<float> / frequency;
      if (wavelength > original / low) {
        frequency /= factor;
      } else if (wavelength >= original / high) {
        const float smooth = (original / wavelength - low) / (high - low);
        frequency = (1 - smooth) * frequency / factor + smooth * frequency;
      }
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

struct Matrix {
  Matrix(int64_t row_count, int64_t column_count)
      : columns(column_count), stride(round_up(column_count, kRowPadding)), data(row_count * stride) {}
  TensorView<float, 2> rows(int64_t count) { return {data.data(), {count, columns}, {stride, 1}}; }
  // Columns [first, first + count) of the first `rows` rows.
  TensorView<float, 2> slice(int64_t row_count, int64_t first, int64_t count) {
    return {data.data() + first, {row_count, count}, {stride, 1}};
  }
  // The rows with their padding: contiguous.
  std::span<float> flat(int64_t count) { return {data.data(), static_cast<size_t>(count * stride)}; }

  int64_t columns, stride;
  Buffer<float> data;
};

}  // namespace

struct Model::Activations {
  Activations(const ModelConfig& c, const ShardPlan& p, const ModelOptions& o)
      : residual(o.max_rows, c.hidden_size),
        normed(o.max_rows, c.hidden_size),
        qkv(o.max_rows, (p.query_heads.size() + 2 * p.kv_heads.size()) * c.head_dim),
        attended(o.max_rows, p.query_heads.size() * c.head_dim),
        gate_up(o.max_rows, 2 * p.mlp_columns.size()),
        partial(o.max_rows, c.hidden_size),
        last_hidden(o.max_logit_rows, c.hidden_size),
        logits(o.max_logit_rows, p.vocab.size()) {
    attention_rows.reserve(static_cast<size_t>(o.max_rows));
  }

  Matrix residual;     // [rows, hidden]
  Matrix normed;       // [rows, hidden]
  Matrix qkv;          // [rows, q + k + v of this rank]
  Matrix attended;     // [rows, q of this rank]
  Matrix gate_up;      // [rows, gates, then ups of this rank]
  Matrix partial;      // [rows, hidden]: this rank's leaves, then the sum over ranks
  Matrix last_hidden;  // [logit rows, hidden]
  Matrix logits;       // [logit rows, vocabulary of this rank]
  std::vector<AttentionRow> attention_rows;
};

Model::Model(ModelConfig config, const ModelOptions& options, const ShardPlan& plan, Weights weights,
             KvShape kv_shape, int64_t kv_blocks, int64_t max_positions, std::unique_ptr<ThreadPool> pool,
             Collectives& collectives)
    : config_(std::move(config)),
      options_(options),
      plan_(plan),
      weights_(std::move(weights)),
      kv_(kv_shape, kv_blocks),
      max_positions_(max_positions),
      pool_(std::move(pool)),
      collectives_(&collectives),
      rope_(rope_frequencies(config_), max_positions),
      attention_scratch_(options.threads, config_.heads_per_kv_head(), max_positions, config_.head_dim),
      act_(std::make_unique<Activations>(config_, plan, options)) {}

Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::load(const std::filesystem::path& directory,
                                           const ModelOptions& options, Collectives& collectives) {
  CHECK(collectives.size() == options.shard.tp_size && collectives.rank() == options.shard.tp_rank,
        "collectives of rank {} of {}, shard {} of {}", collectives.rank(), collectives.size(),
        options.shard.tp_rank, options.shard.tp_size);
  ASSIGN_OR_RETURN(ModelConfig config, read_model_config(directory));
  ASSIGN_OR_RETURN(TensorFiles files, TensorFiles::open(directory));
  const ShardPlan plan(config, options.shard);
  auto loaders = std::make_unique<ThreadPool>(options.threads);
  ASSIGN_OR_RETURN(Weights weights, load_weights(files, config, plan, *loaders, options.progress));
  loaders.reset();
  const auto useful =
      static_cast<int>(std::clamp<int64_t>(weights.bytes / options.bytes_per_thread, 1, options.threads));
  auto pool = std::make_unique<ThreadPool>(useful, options.spin);

  const int64_t max_positions = options.max_positions > 0
                                    ? std::min(options.max_positions, config.max_position_embeddings)
                                    : config.max_position_embeddings;
  const bool bf16_kv =
      options.kv == ModelOptions::Kv::kBFloat16 ||
      (options.kv == ModelOptions::Kv::kAuto && weights.head.type() == WeightType::kBFloat16);
  const KvShape kv_shape{.layers = config.num_layers,
                         .kv_heads = plan.kv_heads.size(),
                         .head_dim = config.head_dim,
                         .type = bf16_kv ? KvType::kBFloat16 : KvType::kFloat32};
  const int64_t kv_tokens = options.kv_tokens > 0 ? options.kv_tokens : max_positions;
  return std::unique_ptr<Model>(new Model(std::move(config), options, plan, std::move(weights), kv_shape,
                                          (kv_tokens + kBlockTokens - 1) / kBlockTokens, max_positions,
                                          std::move(pool), collectives));
}

Result<LogitsShard> Model::forward(std::span<const BatchSlice> batch) {
  RETURN_IF_ERROR(append_kv(batch));
  int64_t rows = 0, logit_rows = 0;
  for (const BatchSlice& slice : batch) {
    rows += static_cast<int64_t>(slice.tokens.size());
    logit_rows += slice.logit_rows;
  }
  CHECK(rows <= options_.max_rows && logit_rows <= options_.max_logit_rows,
        "{} rows, {} of them with logits; planned {}, {}", rows, logit_rows, options_.max_rows,
        options_.max_logit_rows);

  embed(batch, rows);
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    attention_block(layer, batch, rows);
    mlp_block(layer, rows);
  }

  int64_t row = 0, out = 0;
  for (const BatchSlice& slice : batch) {
    row += static_cast<int64_t>(slice.tokens.size());
    for (int64_t i = row - slice.logit_rows; i < row; ++i, ++out)
      std::memcpy(act_->last_hidden.data.data() + out * act_->last_hidden.stride,
                  act_->residual.data.data() + i * act_->residual.stride,
                  static_cast<size_t>(config_.hidden_size) * sizeof(float));
  }
  const auto hidden = act_->last_hidden.rows(logit_rows);
  rms_norm(hidden, weights_.final_norm, static_cast<float>(config_.rms_norm_eps), hidden);
  matmul(*pool_, matmul_scratch_, hidden, weights_.head, act_->logits.rows(logit_rows));
  return LogitsShard{
      .logits = act_->logits.rows(logit_rows), .vocab_range = plan_.vocab, .vocab_size = config_.vocab_size};
}

Status Model::append_kv(std::span<const BatchSlice> batch) {
  act_->attention_rows.clear();
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto count = static_cast<int64_t>(batch[i].tokens.size());
    const int64_t first = kv_.length(batch[i].sequence);
    CHECK(first + count <= max_positions_, "position {} of {}", first + count, max_positions_);
    if (Status status = kv_.append(batch[i].sequence, count); !status.ok()) {
      for (size_t j = 0; j < i; ++j)
        kv_.truncate(batch[j].sequence,
                     kv_.length(batch[j].sequence) - static_cast<int64_t>(batch[j].tokens.size()));
      return status;
    }
    for (int64_t p = first; p < first + count; ++p)
      act_->attention_rows.push_back({.block_table = kv_.block_table(batch[i].sequence), .position = p});
  }
  return {};
}

// Every rank copies the rows it owns; the others contribute zero bits, so the integer sum is the row itself.
void Model::embed(std::span<const BatchSlice> batch, int64_t rows) {
  const PackedMatrix& table = weights_.embedding_rows();
  const auto flat = act_->residual.flat(rows);
  std::fill(flat.begin(), flat.end(), 0.0f);
  int64_t row = 0;
  for (const BatchSlice& slice : batch)
    for (TokenId token : slice.tokens) {
      CHECK(token.value() >= 0 && token.value() < config_.vocab_size, "token {} of {}", token.value(),
            config_.vocab_size);
      if (plan_.vocab.contains(token.value()))
        for (int64_t i = 0; i < config_.hidden_size; ++i)
          flat[static_cast<size_t>(row * act_->residual.stride + i)] =
              table.at(token.value() - plan_.vocab.begin, i);
      ++row;
    }
  if (collectives_->size() > 1)
    collectives_->all_reduce_sum(std::span(reinterpret_cast<uint64_t*>(flat.data()), flat.size() / 2));
}

void Model::attention_block(int64_t layer, std::span<const BatchSlice> batch, int64_t rows) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const auto x = act_->residual.rows(rows), normed = act_->normed.rows(rows), qkv = act_->qkv.rows(rows);
  rms_norm(x, w.attention_norm, static_cast<float>(config_.rms_norm_eps), normed);
  matmul(*pool_, matmul_scratch_, normed, w.qkv, qkv);
  add_bias(qkv, w.qkv_bias);
  prepare_heads(layer, batch);

  const auto q = act_->qkv.slice(rows, 0, plan_.query_heads.size() * config_.head_dim);
  const AttentionShape shape{.heads = plan_.query_heads.size(),
                             .first_head = plan_.query_heads.begin,
                             .first_kv_head = plan_.kv_heads.begin,
                             .heads_per_kv = config_.heads_per_kv_head()};
  const auto attended = act_->attended.rows(rows), partial = act_->partial.rows(rows);
  attention(*pool_, attention_scratch_, q, kv_.layer(layer), shape, act_->attention_rows, attended);
  matmul(*pool_, matmul_scratch_, attended, w.o, partial);
  sum_over_ranks(partial);
  add_bias(partial, w.o_bias);
  add_rows(x, partial);
}

// Normalises (Qwen3) and rotates q and k in place, then writes k and v to the cache.
void Model::prepare_heads(int64_t layer, std::span<const BatchSlice> batch) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int64_t d = config_.head_dim, q_heads = plan_.query_heads.size(), kv_heads = plan_.kv_heads.size();
  const auto epsilon = static_cast<float>(config_.rms_norm_eps);
  const auto heads_of = [&](float* first, int64_t count) { return TensorView<float, 2>(first, {count, d}); };
  int64_t row = 0;
  for (const BatchSlice& slice : batch) {
    const auto count = static_cast<int64_t>(slice.tokens.size());
    const int64_t first = kv_.length(slice.sequence) - count;
    for (int64_t i = 0; i < count; ++i, ++row) {
      float* q = act_->qkv.data.data() + row * act_->qkv.stride;
      float* k = q + q_heads * d;
      float* v = k + kv_heads * d;
      if (config_.qk_norm) {
        rms_norm(heads_of(q, q_heads), w.q_norm, epsilon, heads_of(q, q_heads));
        rms_norm(heads_of(k, kv_heads), w.k_norm, epsilon, heads_of(k, kv_heads));
      }
      const auto size = static_cast<size_t>(d);
      for (int64_t h = 0; h < q_heads; ++h) rope_.rotate({q + h * d, size}, first + i);
      for (int64_t h = 0; h < kv_heads; ++h) {
        rope_.rotate({k + h * d, size}, first + i);
        kv_.store(layer, slice.sequence, first + i, h, {k + h * d, size}, {v + h * d, size});
      }
    }
  }
}

void Model::mlp_block(int64_t layer, int64_t rows) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const auto x = act_->residual.rows(rows), normed = act_->normed.rows(rows),
             partial = act_->partial.rows(rows);
  const int64_t columns = plan_.mlp_columns.size();
  const auto gate = act_->gate_up.slice(rows, 0, columns), up = act_->gate_up.slice(rows, columns, columns);
  rms_norm(x, w.mlp_norm, static_cast<float>(config_.rms_norm_eps), normed);
  matmul(*pool_, matmul_scratch_, normed, w.gate_up, act_->gate_up.rows(rows));
  add_bias(act_->gate_up.rows(rows), w.gate_up_bias);
  silu_mul(gate, up, columns);
  matmul(*pool_, matmul_scratch_, gate, w.down, partial);
  sum_over_ranks(partial);
  add_bias(partial, w.down_bias);
  add_rows(x, partial);
}

// The tree over ranks continues the tree over this rank's leaves.
void Model::sum_over_ranks(TensorView<float, 2> partial) {
  if (collectives_->size() > 1) collectives_->all_reduce_sum(act_->partial.flat(partial.extent(0)));
}

}  // namespace outrider
