#include "model/cpu_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numbers>

#include "model/activations.h"
#include "model/kv/kv_shape_of.h"
#include "model/rope.h"

namespace outrider {
namespace {

RopeTable rope_table(const ModelConfig& config, LayerRope rope, int64_t positions) {
  const auto turns_by_it = [&](const LayerKind& layer) { return layer.rope == rope; };
  if (rope == LayerRope::kLocal && std::none_of(config.layers.begin(), config.layers.end(), turns_by_it))
    return {};
  const RopeConfig& of = rope == LayerRope::kLocal ? config.local_rope : config.rope;
  return {rope_frequencies(of, config.head_dim), positions, static_cast<float>(of.amplitude), of.interleaved};
}

int useful_threads(const Weights& weights, const ModelOptions& options) {
  return threads_worth(weights.bytes, options.bytes_per_thread, options.threads);
}

// Ids of this rank whose logits are computed.
IndexRange output_ids(const ShardPlan& plan, const ModelOptions& options) {
  if (options.output_ids <= 0 || options.shard.tp_size > 1) return plan.vocab;
  const int64_t whole_tiles = (options.output_ids + kTileColumns - 1) / kTileColumns * kTileColumns;
  return {0, std::min(plan.vocab.end, whole_tiles)};
}

std::vector<LayerPart> parts_of(const ModelConfig& config, const ShardPlan& plan) {
  std::vector<LayerPart> parts;
  for (int64_t i = 0; i < config.num_layers; ++i) parts.emplace_back(config, plan, config.layer(i));
  return parts;
}

template <class Size>
int64_t widest(std::span<const LayerPart> parts, Size size) {
  int64_t most = 0;
  for (const LayerPart& part : parts) most = std::max(most, std::invoke(size, part));
  return most;
}

// Columns of what a layer's first product makes: queries, keys, values and the gate; or B, C and x of a short
// convolution; or the kept row and the gate of a gated delta net.
int64_t projected_columns(const ModelConfig& c, const ShardPlan& p, std::span<const LayerPart> parts) {
  int64_t columns = 0;
  for (const LayerPart& part : parts)
    columns = std::max(columns, (c.attention_gate ? 2 : 1) * part.q_size() + 2 * part.kv_size());
  return std::max({columns, 3 * p.conv_channels.size(),
                   p.delta_net ? p.delta_net->row_size() + p.delta_net->value_size() : 0});
}

// Columns of what a layer's second product reads.
int64_t mixed_columns(const ShardPlan& p, std::span<const LayerPart> parts) {
  return std::max({widest(parts, &LayerPart::q_size), p.conv_channels.size(),
                   p.delta_net ? p.delta_net->value_size() : 0});
}

bool has_mlp_beside(const ModelConfig& c) { return c.experts && c.experts->beside_mlp; }

DeltaNetShape delta_shape(const ModelConfig& c, const ShardPlan& p) {
  const DeltaNetPart& own = *p.delta_net;
  DeltaNetShape shape{.key_dim = own.key_dim,
                      .value_dim = own.value_dim,
                      .taps = c.delta_net->taps,
                      .epsilon = static_cast<float>(c.rms_norm_eps)};
  for (const int64_t key : own.keys) {
    for (int64_t value = own.values.begin; value < own.values.end; ++value)
      if (c.delta_net->key_of(value) == key) shape.values.push_back(value - own.values.begin);
    shape.ends.push_back(shape.value_heads());
  }
  return shape;
}

}  // namespace

struct CpuModel::Activations {
  Activations(const ModelConfig& c, const ShardPlan& p, std::span<const LayerPart> parts,
              const ModelOptions& o)
      : residual(o.max_rows, c.hidden_size),
        normed(o.max_rows, c.hidden_size),
        qkv(o.max_rows, projected_columns(c, p, parts)),
        attended(o.max_rows, mixed_columns(p, parts)),
        gate_up(o.max_rows, 2 * widest(parts, &LayerPart::mlp_columns)),
        partial(o.max_rows, c.hidden_size),
        inputs(c.layer_input_size > 0 ? o.max_rows : 0, c.num_layers * c.layer_input_size),
        projected_inputs(c.layer_input_size > 0 ? o.max_rows : 0, c.num_layers * c.layer_input_size),
        input_gate(c.layer_input_size > 0 ? o.max_rows : 0, c.layer_input_size),
        of_mlp(has_mlp_beside(c) ? o.max_rows : 0, c.hidden_size),
        routed(has_mlp_beside(c) ? o.max_rows : 0, c.hidden_size),
        squares(c.qk_norm == QkNorm::kWhole ? 2 * o.max_rows : 0),
        last_hidden(o.max_logit_rows, c.hidden_size),
        logits(o.max_logit_rows, output_ids(p, o).size()),
        paths(path_slots(o.max_rows)) {
    attention_rows.reserve(static_cast<size_t>(o.max_rows));
  }

  ActivationRows residual;     // [rows, hidden]
  ActivationRows normed;       // [rows, hidden]
  ActivationRows qkv;          // [rows, q + k + v of this rank], or its B, C and x
  ActivationRows attended;     // [rows, q of this rank], or its channels
  ActivationRows gate_up;      // [rows, gates, then ups of this rank]
  ActivationRows partial;      // [rows, hidden]: this rank's leaves, then the sum over ranks
  ActivationRows inputs;       // [rows, layers * layer_input_size]: of the layers of the model
  ActivationRows projected_inputs;  // [rows, layers * layer_input_size]: projected from embeddings
  ActivationRows input_gate;        // [rows, layer_input_size]
  ActivationRows of_mlp;            // [rows, hidden]: of an MLP beside experts
  ActivationRows routed;            // [rows, hidden]: what chooses those experts
  Buffer<float> squares;       // [rows, 2]: sums of squares of q and k
  ActivationRows last_hidden;  // [logit rows, hidden]
  ActivationRows logits;       // [logit rows, output ids of this rank]
  std::vector<AttentionRow> attention_rows;
  Buffer<int32_t> paths;  // of the rows of trees, one behind the other
};

CpuModel::CpuModel(ModelConfig config, const ModelOptions& options, Weights weights, Collectives& collectives,
                   std::unique_ptr<CpuKvStorage> storage, int64_t kv_blocks)
    : config_(std::move(config)),
      options_(options),
      plan_(config_, options.shard),
      parts_(parts_of(config_, plan_)),
      weights_(std::move(weights)),
      storage_(*storage),
      kv_(std::move(storage), kv_blocks),
      max_positions_(planned_positions(config_, options)),
      pool_(useful_threads(weights_, options), options.spin),
      collectives_(&collectives),
      value_norm_(config_.values_normed ? static_cast<size_t>(widest(parts_, &LayerPart::head_dim)) : 0,
                  1.0f),
      rope_(rope_table(config_, LayerRope::kMain, max_positions_)),
      local_rope_(rope_table(config_, LayerRope::kLocal, max_positions_)),
      attention_scratch_(options.threads, max_positions_, widest(parts_, &LayerPart::head_dim)),
      act_(std::make_unique<Activations>(config_, plan_, parts_, options)),
      experts_(config_.experts ? std::make_unique<ExpertRows>(config_, plan_, options.max_rows, pool_.size())
                               : nullptr),
      latent_(config_.latent ? std::make_unique<LatentRows>(config_, plan_, options.max_rows) : nullptr) {
  if (!config_.delta_net) return;
  const DeltaNetShape shape = delta_shape(config_, plan_);
  delta_nets_ = std::make_unique<DeltaNets>(
      DeltaNets{.shape = shape, .states = {config_, shape}, .scratch = {pool_.size(), shape}});
}

CpuModel::~CpuModel() = default;

Result<std::unique_ptr<Model>> CpuModel::load(const std::filesystem::path& directory,
                                              const ModelOptions& options, Collectives& collectives) {
  ASSIGN_OR_RETURN(ModelConfig config, read_model_config(directory));
  ASSIGN_OR_RETURN(TensorFiles files, TensorFiles::open(directory));
  const ShardPlan plan(config, options.shard);
  auto loaders = std::make_unique<ThreadPool>(options.threads);
  ASSIGN_OR_RETURN(Weights weights,
                   load_weights(std::move(files), config, plan,
                                {options.weight_format, options.activations, options.progress}, *loaders));
  loaders.reset();
  const int64_t kv_blocks =
      kv_blocks_for(options.kv_tokens > 0 ? options.kv_tokens : planned_positions(config, options));
  const bool bf16_kv = options.kv == ModelOptions::Kv::kBFloat16 ||
                       (options.kv == ModelOptions::Kv::kAuto && !is_wide(weights.head.type()));
  const KvShape kv_shape =
      kv_shape_of(config, plan, bf16_kv ? KvType::kBFloat16 : KvType::kFloat32, options.aux_layers.size());
  auto storage = std::make_unique<CpuKvStorage>(kv_shape, kv_blocks);
  return std::unique_ptr<Model>(new CpuModel(std::move(config), options, std::move(weights), collectives,
                                             std::move(storage), kv_blocks));
}

Result<LogitsShard> CpuModel::forward(std::span<const BatchSlice> batch) {
  RETURN_IF_ERROR(make_room(batch));
  if (delta_nets_) delta_nets_->states.begin(batch, kv_, true);
  const int64_t layers = taken_up_.split(batch, kv_, storage_);
  enter(taken_up_.rest());
  run_layers(taken_up_.rest(), 0, layers);
  if (layers > 0) {
    taken_up_.join(batch, act_->residual);
    locate_rows(batch);
    if (weights_.inputs) {
      embed(batch, act_->normed);
      make_layer_inputs(batch, act_->normed.rows(count_rows(batch).rows));
    }
  }
  run_layers(batch, layers, config_.num_layers);
  if (delta_nets_) delta_nets_->states.end(kv_);
  keep_hidden_states(config_.num_layers, batch);
  return finish(batch);
}

Result<LogitsShard> CpuModel::forward_first(std::span<const BatchSlice> batch, int64_t layers,
                                            std::span<ExitedTokens* const> exited) {
  CHECK(layers >= 1 && layers <= config_.num_layers, "{} layers of {}", layers, config_.num_layers);
  RETURN_IF_ERROR(make_room(batch));
  // Later layers get no rows of these tokens, so the states of no layer take the tokens in.
  if (delta_nets_) delta_nets_->states.begin(batch, kv_, false);
  enter(batch);
  run_layers(batch, 0, layers);
  int64_t row = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    int64_t slot = place_of(batch[i], kv_).first_slot;
    for (const TokenId id : batch[i].tokens) {
      const KvSlot at = kv_.slot(batch[i].sequence, slot++);
      exited[i]->add(id, layers, act_->residual.rows(row + 1).row(row), storage_, at);
      ++row;
    }
  }
  return finish(batch);
}

Status CpuModel::make_room(std::span<const BatchSlice> batch) {
  const auto [rows, logit_rows] = count_rows(batch);
  CHECK(rows <= options_.max_rows && logit_rows <= options_.max_logit_rows,
        "{} rows, {} of them with logits; planned {}, {}", rows, logit_rows, options_.max_rows,
        options_.max_logit_rows);
  return append_batch(kv_, batch, max_positions_);
}

void CpuModel::enter(std::span<const BatchSlice> batch) {
  locate_rows(batch);
  embed(batch, act_->residual);
  if (weights_.inputs) make_layer_inputs(batch, act_->residual.rows(count_rows(batch).rows));
}

void CpuModel::run_layers(std::span<const BatchSlice> batch, int64_t first, int64_t last) {
  const auto rows = static_cast<int64_t>(act_->attention_rows.size());
  if (rows == 0) {  // all went on from where they had exited; states take in tokens all the same
    for (int64_t layer = first; layer < last; ++layer)
      if (config_.is_delta_net(layer)) update_states(layer, batch, 0);
    return;
  }
  for (int64_t layer = first; layer < last; ++layer) {
    keep_hidden_states(layer, batch);
    mixer_block(layer, batch, rows);
    mlp_block(layer, rows);
    if (weights_.inputs) add_layer_input(layer, rows);
    if (const float scale = weights_.layers[static_cast<size_t>(layer)].scale; scale != 1)
      scale_rows(act_->residual.rows(rows), scale);
  }
}

LogitsShard CpuModel::finish(std::span<const BatchSlice> batch) {
  const int64_t logit_rows = count_rows(batch).logit_rows;
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
  if (std::any_of(batch.begin(), batch.end(), [](const BatchSlice& slice) { return !slice.hidden_only; }))
    compute_logits(logit_rows);
  const IndexRange ids = output_ids(plan_, options_);
  return LogitsShard{.logits = act_->logits.rows(logit_rows),
                     .vocab_range = ids,
                     .vocab_size = ids == plan_.vocab ? config_.vocab_size : ids.end,
                     .hidden = hidden};
}

void CpuModel::compute_logits(int64_t rows) {
  const auto logits = act_->logits.rows(rows);
  matmul_first(pool_, matmul_scratch_, act_->last_hidden.rows(rows), weights_.head, logits);
  const ModelScales& scales = config_.scales;
  if (scales.logit_divisor != 1) scale_rows(logits, static_cast<float>(1 / scales.logit_divisor));
  if (scales.logit_cap > 0) cap_rows(pool_, logits, static_cast<float>(scales.logit_cap));
}

void CpuModel::locate_rows(std::span<const BatchSlice> batch) {
  act_->attention_rows.clear();
  int32_t* path = act_->paths.data();
  for (const BatchSlice& slice : batch) {
    const SlicePlace place = place_of(slice, kv_);
    for (int64_t slot = place.first_slot, end = kv_.length(slice.sequence); slot < end; ++slot) {
      act_->attention_rows.push_back({.block_table = kv_.block_table(slice.sequence),
                                      .position = place.position(slot),
                                      .tail_begin = place.tree_begin,
                                      .tail_slots = place.is_tree() ? path : nullptr});
      if (place.is_tree()) path = place.write_path(slot, path);
    }
  }
}

// Every rank copies the rows it owns; the others contribute zero bits, so the integer sum is the row itself.
template <class CopyRow>
void CpuModel::read_table(const CopyRow& copy_row, std::span<const BatchSlice> batch, int64_t columns,
                          ActivationRows& to) {
  const EmbeddedIds ids{config_.vocab_size, options_.stand_in};
  const auto flat = to.flat(count_rows(batch).rows);
  std::fill(flat.begin(), flat.end(), 0.0f);
  int64_t row = 0;
  for (const BatchSlice& slice : batch)
    for (TokenId id : slice.tokens) {
      const TokenId token = ids.readable(id);
      if (plan_.vocab.contains(token.value()))
        copy_row(token.value() - plan_.vocab.begin,
                 flat.subspan(static_cast<size_t>(row * to.stride), static_cast<size_t>(columns)));
      ++row;
    }
  if (collectives_->size() > 1)
    collectives_->all_reduce_sum(std::span(reinterpret_cast<uint64_t*>(flat.data()), flat.size() / 2));
}

void CpuModel::embed(std::span<const BatchSlice> batch, ActivationRows& to) {
  const PackedMatrix& table = weights_.embedding_rows();
  read_table([&](int64_t row, std::span<float> numbers) { table.copy_row(row, numbers); }, batch,
             config_.hidden_size, to);
  if (config_.scales.embedding != 1)
    scale_rows(to.rows(count_rows(batch).rows), static_cast<float>(config_.scales.embedding));
}

// (norm(projection(embedding) / sqrt(hidden)) + row of the table * sqrt(size)) / sqrt(2)
void CpuModel::make_layer_inputs(std::span<const BatchSlice> batch, TensorView<const float, 2> embedded) {
  const InputTable& w = *weights_.inputs;
  const int64_t rows = embedded.extent(0), size = config_.layer_input_size;
  const auto inputs = act_->inputs.rows(rows), projected = act_->projected_inputs.rows(rows);
  read_table([&](int64_t row, std::span<float> numbers) { w.table.copy_row(row, numbers); }, batch,
             inputs.extent(1), act_->inputs);
  scale_rows(inputs, static_cast<float>(config_.scales.layer_inputs));
  matmul(pool_, matmul_scratch_, embedded, w.projection, projected);
  scale_rows(projected, static_cast<float>(1 / std::sqrt(static_cast<double>(config_.hidden_size))));
  for (int64_t m = 0; m < rows; ++m) {
    const TensorView<float, 2> of_layers(projected.row(m).data(), {config_.num_layers, size});
    rms_norm(of_layers, w.norm, static_cast<float>(config_.rms_norm_eps), of_layers);
  }
  add_rows(inputs, projected);
  scale_rows(inputs, std::numbers::sqrt2_v<float> / 2);
}

void CpuModel::add_layer_input(int64_t layer, int64_t rows) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int64_t size = config_.layer_input_size;
  const auto x = act_->residual.rows(rows), gate = act_->input_gate.rows(rows),
             made = act_->partial.rows(rows);
  matmul(pool_, matmul_scratch_, x, w.input->gate, gate);
  gelu_tanh_mul(pool_, gate, act_->inputs.slice(rows, layer * size, size), size);
  matmul(pool_, matmul_scratch_, gate, w.input->out, made);
  rms_norm(made, w.input->norm, static_cast<float>(config_.rms_norm_eps), made);
  add_rows(x, made);
}

// Keeps the states of all rows, in the slots of their keys and values.
void CpuModel::keep_hidden_states(int64_t layer, std::span<const BatchSlice> batch) {
  const auto aux_layer = std::find(options_.aux_layers.begin(), options_.aux_layers.end(), layer);
  if (aux_layer == options_.aux_layers.end()) return;
  const auto first = (aux_layer - options_.aux_layers.begin()) * config_.hidden_size;
  const auto x = act_->residual.rows(static_cast<int64_t>(act_->attention_rows.size()));
  int64_t row = 0;
  for (const BatchSlice& slice : batch) {
    const int64_t end = kv_.length(slice.sequence);
    for (int64_t slot = end - static_cast<int64_t>(slice.tokens.size()); slot < end; ++slot, ++row)
      storage_.store_hidden_state(kv_.slot(slice.sequence, slot), first, x.row(row));
  }
}

void CpuModel::read_hidden_states(KvHandle sequence, int64_t index, std::span<float> to) const {
  storage_.read_hidden_state(kv_.slot(sequence, index), to);
}

void CpuModel::mixer_block(int64_t layer, std::span<const BatchSlice> batch, int64_t rows) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const auto x = act_->residual.rows(rows), normed = act_->normed.rows(rows);
  const bool is_normed = !w.attention_norm.empty();
  if (is_normed) rms_norm(x, w.attention_norm, static_cast<float>(config_.rms_norm_eps), normed);
  const auto in = is_normed ? normed : x;
  switch (config_.layer(layer).mixer) {
    case Mixer::kAttention:
      attend(layer, batch, in);
      break;
    case Mixer::kShortConv:
      convolve(layer, batch, in);
      break;
    case Mixer::kDeltaNet:
      run_delta_net(layer, batch, in);
      break;
  }
  finish_block(act_->partial.rows(rows), w.o_bias, w.attention_out_norm);
}

// The cache keeps B * x of every token. All rows of the pass are there before one is read.
void CpuModel::convolve(int64_t layer, std::span<const BatchSlice> batch, TensorView<const float, 2> in) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int64_t rows = in.extent(0), channels = plan_.conv_channels.size();
  matmul(pool_, matmul_scratch_, in, w.qkv, act_->qkv.slice(rows, 0, 3 * channels));
  const auto b = act_->qkv.slice(rows, 0, channels), gate = act_->qkv.slice(rows, channels, channels),
             x = act_->qkv.slice(rows, 2 * channels, channels),
             convolved = act_->attended.slice(rows, 0, channels);
  const KvLayerView kept = storage_.layer(layer);
  int64_t row = 0;
  for (const BatchSlice& slice : batch) {
    const int64_t end = kv_.length(slice.sequence);
    for (int64_t slot = end - static_cast<int64_t>(slice.tokens.size()); slot < end; ++slot, ++row) {
      const std::span<float> product = x.row(row);
      for (size_t c = 0; c < product.size(); ++c) product[c] *= b.row(row)[c];
      const KvSlot at = kv_.slot(slice.sequence, slot);
      store_row(kept, at.block, at.slot, product);
    }
  }
  short_convolution(pool_, gate, kept, w.conv, act_->attention_rows, convolved);
  matmul(pool_, matmul_scratch_, convolved, w.o, act_->partial.rows(rows));
}

// The cache keeps [q | k | v | b | a] of every token. All rows of the pass are there before one is read.
void CpuModel::run_delta_net(int64_t layer, std::span<const BatchSlice> batch,
                             TensorView<const float, 2> in) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const DeltaNetShape& shape = delta_nets_->shape;
  const int64_t rows = in.extent(0), kept_size = shape.row_size(),
                values = shape.value_heads() * shape.value_dim;
  matmul(pool_, matmul_scratch_, in, w.qkv, act_->qkv.slice(rows, 0, kept_size + values));
  const auto made = act_->qkv.slice(rows, 0, kept_size);
  const KvLayerView kept = storage_.layer(layer);
  int64_t row = 0;
  for (const BatchSlice& slice : batch) {
    const int64_t end = kv_.length(slice.sequence);
    for (int64_t slot = end - static_cast<int64_t>(slice.tokens.size()); slot < end; ++slot, ++row) {
      const KvSlot at = kv_.slot(slice.sequence, slot);
      store_row(kept, at.block, at.slot, made.row(row));
    }
  }
  update_states(layer, batch, rows);
  matmul(pool_, matmul_scratch_, act_->attended.slice(rows, 0, values), w.o, act_->partial.rows(rows));
}

void CpuModel::update_states(int64_t layer, std::span<const BatchSlice> batch, int64_t rows) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const DeltaNetShape& shape = delta_nets_->shape;
  const int64_t values = shape.value_heads() * shape.value_dim;
  gated_delta_net(
      pool_, delta_nets_->scratch, shape,
      {.taps = w.conv, .rate = w.delta_net->rate, .dt_bias = w.delta_net->dt_bias, .norm = w.delta_net->norm},
      storage_.layer(layer), delta_nets_->states.in_layer(layer, batch, kv_), act_->attention_rows,
      act_->qkv.slice(rows, shape.row_size(), values), act_->attended.slice(rows, 0, values));
}

void CpuModel::attend(int64_t layer, std::span<const BatchSlice> batch, TensorView<const float, 2> in) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const LayerPart& part = parts_[static_cast<size_t>(layer)];
  const int64_t rows = in.extent(0);
  project(layer, in);
  prepare_heads(layer, batch);

  const auto q = act_->qkv.slice(rows, 0, part.q_size());
  const AttentionShape shape{.heads = part.query_heads,
                             .first_head = plan_.query_heads.begin,
                             .first_kv_head = part.kv_heads.begin,
                             .heads_per_kv = part.heads_per_kv,
                             .scale = static_cast<float>(config_.scales.attention),
                             .cap = static_cast<float>(config_.scales.attention_cap),
                             .window = config_.layer(layer).window,
                             .sinks = w.sinks.empty() ? nullptr : w.sinks.data()};
  const auto attended = act_->attended.slice(rows, 0, part.q_size()), partial = act_->partial.rows(rows);
  attention(pool_, attention_scratch_, q, storage_.layer(layer), shape, act_->attention_rows, attended);
  if (config_.attention_gate)
    sigmoid_mul(pool_, attended, act_->qkv.slice(rows, part.made(), attended.extent(1)));
  matmul(pool_, matmul_scratch_,
         latent_ ? latent_->expand(pool_, matmul_scratch_, *w.latent, attended) : attended, w.o, partial);
}

// Queries, keys and values of normed rows; those of latent attention turned already.
void CpuModel::project(int64_t layer, TensorView<const float, 2> x) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const LayerPart& part = parts_[static_cast<size_t>(layer)];
  const int64_t rows = x.extent(0), q = part.q_size(), kv = part.kv_size();
  const auto qkv = act_->qkv.slice(rows, 0, part.made() + (config_.attention_gate ? q : 0));
  if (latent_)
    return latent_->project(pool_, matmul_scratch_, *w.latent, x, rope_, act_->attention_rows,
                            {.queries = act_->qkv.slice(rows, 0, q),
                             .keys = act_->qkv.slice(rows, q, kv),
                             .values = act_->qkv.slice(rows, q + kv, kv)});
  matmul(pool_, matmul_scratch_, x, w.qkv, qkv);
  add_bias(qkv, w.qkv_bias);
  if (config_.qk_norm == QkNorm::kWhole) norm_projections(w, rows);
}

// Sums a partial output of attention or an MLP over the ranks and adds it to the residual stream.
void CpuModel::finish_block(TensorView<float, 2> partial, std::span<const float> bias,
                            std::span<const float> norm) {
  const auto x = act_->residual.rows(partial.extent(0));
  sum_over_ranks(partial);
  add_bias(partial, bias);
  if (!norm.empty()) rms_norm(partial, norm, static_cast<float>(config_.rms_norm_eps), partial);
  const auto factor = static_cast<float>(config_.scales.residual);
  if (factor == 1) return add_rows(x, partial);
  for (int64_t m = 0; m < x.extent(0); ++m) add_scaled(x.row(m), partial.row(m), factor);
}

// One norm over all query heads and one over all KV heads, whichever ranks hold them: their squares are added
// by the leaves of the query heads. A KV head that several ranks hold counts where its leaf is.
void CpuModel::norm_projections(const LayerWeights& w, int64_t rows) {
  const int64_t d = config_.head_dim, q_size = plan_.query_heads.size() * d;
  const auto squares = std::span(act_->squares.data(), static_cast<size_t>(2 * rows));
  const auto q = [&](int64_t m) { return act_->qkv.slice(rows, 0, q_size).row(m); };
  const auto k = [&](int64_t m) { return act_->qkv.slice(rows, q_size, plan_.kv_heads.size() * d).row(m); };
  for (int64_t m = 0; m < rows; ++m) {
    const auto at = static_cast<size_t>(2 * m);
    squares[at] = sum_of_squares(q(m), plan_.attention_leaf_ends);
    squares[at + 1] = sum_of_squares(k(m), plan_.kv_leaf_ends);
  }
  if (collectives_->size() > 1) collectives_->all_reduce_sum(squares);
  const auto epsilon = static_cast<float>(config_.rms_norm_eps);
  for (int64_t m = 0; m < rows; ++m) {
    const auto at = static_cast<size_t>(2 * m);
    norm_part(q(m), w.q_norm, squares[at] / static_cast<float>(config_.q_size()), epsilon);
    norm_part(k(m), w.k_norm, squares[at + 1] / static_cast<float>(config_.kv_size()), epsilon);
  }
}

// Normalises heads (Qwen3, Gemma 3) and rotates q and k in place, then writes k and v to the cache.
void CpuModel::prepare_heads(int64_t layer, std::span<const BatchSlice> batch) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const LayerPart& part = parts_[static_cast<size_t>(layer)];
  const int64_t d = part.head_dim, q_heads = part.query_heads,
                kv_heads = part.has_keys ? part.kv_heads.size() : 0;
  const auto epsilon = static_cast<float>(config_.rms_norm_eps);
  const KvLayerView keys_and_values = storage_.layer(layer);
  const LayerRope kind = config_.layer(layer).rope;
  const RopeTable& rope = kind == LayerRope::kLocal ? local_rope_ : rope_;
  const auto norm_each = [&](float* first, int64_t count, std::span<const float> weight) {
    const TensorView<float, 2> heads(first, {count, d});
    rms_norm(heads, weight, epsilon, heads);
  };
  int64_t row = 0;
  for (const BatchSlice& slice : batch) {
    const auto count = static_cast<int64_t>(slice.tokens.size());
    const int64_t first = kv_.length(slice.sequence) - count;
    for (int64_t i = 0; i < count; ++i, ++row) {
      float* q = act_->qkv.data.data() + row * act_->qkv.stride;
      float* k = q + q_heads * d;
      float* v = k + kv_heads * d;
      if (part.values_are_keys) std::copy_n(k, kv_heads * d, v);
      const auto norm_heads = [&] {
        if (config_.qk_norm != QkNorm::kHead) return;
        norm_each(q, q_heads, w.q_norm);
        if (kv_heads > 0) norm_each(k, kv_heads, w.k_norm);
      };
      if (!config_.norms_rotated) norm_heads();
      if (config_.values_normed && kv_heads > 0)
        norm_each(v, kv_heads, std::span(value_norm_).first(static_cast<size_t>(d)));
      const auto size = static_cast<size_t>(d);
      const KvSlot at = kv_.slot(slice.sequence, first + i);
      const int64_t position = act_->attention_rows[static_cast<size_t>(row)].position;
      if (kind != LayerRope::kNone && !latent_) {
        for (int64_t h = 0; h < q_heads; ++h) rope.rotate({q + h * d, size}, position);
        for (int64_t h = 0; h < kv_heads; ++h) rope.rotate({k + h * d, size}, position);
      }
      if (config_.norms_rotated) norm_heads();
      for (int64_t h = 0; h < kv_heads; ++h)
        store_kv(keys_and_values, at.block, at.slot, h, {k + h * d, size}, {v + h * d, size});
    }
  }
}

void CpuModel::mlp_block(int64_t layer, int64_t rows) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const auto* mixture = std::get_if<ExpertMlp>(&w.mlp);
  if (mixture && mixture->beside) return beside_block(layer, *mixture, rows);
  const auto x = act_->residual.rows(rows), normed = act_->normed.rows(rows),
             partial = act_->partial.rows(rows);
  const bool is_normed = !w.mlp_norm.empty();
  if (is_normed) rms_norm(x, w.mlp_norm, static_cast<float>(config_.rms_norm_eps), normed);
  const auto in = is_normed ? normed : x;
  if (mixture) {
    experts_->forward(pool_, matmul_scratch_, *mixture, in, partial);
    return finish_block(partial, {}, w.mlp_out_norm);
  }
  run_mlp(w.dense(), layer, in);
  finish_block(partial, w.dense().down_bias, w.mlp_out_norm);
}

void CpuModel::run_mlp(const DenseMlp& mlp, int64_t layer, TensorView<const float, 2> in) {
  const int64_t rows = in.extent(0);
  const auto gate_up = act_->gate_up.slice(rows, 0, 2 * parts_[static_cast<size_t>(layer)].mlp_columns);
  gate_and_up(pool_, matmul_scratch_, mlp, GateRule(config_), in, gate_up);
  matmul(pool_, matmul_scratch_, gate_up, mlp.down, act_->partial.rows(rows));
}

// norm(norm_1(mlp(norm x)) + norm_2(experts(norm x))): each has a norm of its own. The router reads another.
void CpuModel::beside_block(int64_t layer, const ExpertMlp& mixture, int64_t rows) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const BesideMlp& beside = *mixture.beside;
  const auto epsilon = static_cast<float>(config_.rms_norm_eps);
  const auto x = act_->residual.rows(rows), normed = act_->normed.rows(rows),
             partial = act_->partial.rows(rows), of_mlp = act_->of_mlp.rows(rows),
             routed = act_->routed.rows(rows);
  rms_norm(x, w.mlp_norm, epsilon, normed);
  run_mlp(beside.mlp, layer, normed);
  sum_over_ranks(partial);
  rms_norm(partial, beside.mlp_out_norm, epsilon, of_mlp);
  rms_norm(x, beside.router_norm, epsilon, routed);
  rms_norm(x, beside.experts_norm, epsilon, normed);
  experts_->forward(pool_, matmul_scratch_, mixture, routed, normed, partial);
  sum_over_ranks(partial);
  rms_norm(partial, beside.experts_out_norm, epsilon, partial);
  add_rows(partial, of_mlp);
  rms_norm(partial, w.mlp_out_norm, epsilon, partial);
  add_rows(x, partial);
}

// The tree over ranks continues the tree over this rank's leaves.
void CpuModel::sum_over_ranks(TensorView<float, 2> partial) {
  if (collectives_->size() > 1) collectives_->all_reduce_sum(act_->partial.flat(partial.extent(0)));
}

}  // namespace outrider
