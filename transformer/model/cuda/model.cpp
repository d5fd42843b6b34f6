#include "transformer/model/cuda/model.h"
#include "transformer/files/weight_map.h"

#include <algorithm>
#include <cmath>

#include "transformer/model/cuda/token_runner.h"
#include "transformer/model/weights.h"

namespace outrider::cuda {
namespace {

double gigabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

std::unique_ptr<Stream> make_stream(const ModelOptions& options) {
  const bool overlaps = options.overlap_kernels && options.shard.tp_size == 1;
  return std::make_unique<Stream>(overlaps ? KernelOrder::kOverlapping : KernelOrder::kInTurn);
}

}  // namespace

struct CudaModel::Plan {
  Plan(const ModelConfig& model_config, const ModelOptions& o, const DeviceWeightTypes& weight_types)
      : config(model_config),
        types(weight_types),
        shard(config, o.shard),
        kv_blocks(kv_blocks_for(o.kv_tokens > 0 ? o.kv_tokens : planned_positions(config, o))),
        kv{.layers = config.num_layers,
           .kv_heads = shard.kv_heads.size(),
           .head_dim = config.head_dim,
           .type = o.kv == ModelOptions::Kv::kBFloat16 ||
                           (o.kv == ModelOptions::Kv::kAuto && activation() == WeightType::kBFloat16)
                       ? KvType::kBFloat16
                       : KvType::kFloat32,
           .state_size = static_cast<int64_t>(o.taps.size()) * config.hidden_size} {}

  WeightType activation() const { return types.activation(); }
  // Of the widest MLP, a mixture being one.
  int64_t columns() const {
    int64_t most = 0;
    for (int64_t i = 0; i < config.num_layers; ++i)
      most = std::max(most, mlp_columns(config, shard, config.layer(i).has_experts).count);
    return most;
  }
  int64_t weight_bytes() const { return device_weight_bytes(config, shard, types); }
  int64_t kv_bytes() const { return DeviceKvStorage::bytes_for(kv, kv_blocks); }
  AttentionTiles tiles(int64_t shared_bytes, int64_t max_positions) const {
    const int32_t rows = attention_tile_rows(config.heads_per_kv_head(), config.head_dim, shared_bytes);
    return {.rows = rows,
            .turn_rows = attention_turn_rows(shard.query_heads.size(), config.head_dim, max_positions)};
  }
  int64_t attention_floats(int64_t max_positions) const {
    const int64_t heads = shard.query_heads.size();
    return attention_workspace(attention_turn_rows(heads, config.head_dim, max_positions), heads,
                               config.head_dim, max_positions);
  }
  int64_t activation_bytes(const ModelOptions& options) const;
  int64_t draw_bytes(const ModelOptions& options) const {
    if (options.run_sequences == 0) return 0;
    return DeviceDraws::bytes_for(
        run_limits(options.run_sequences, config.vocab_size, kv_blocks * kBlockTokens));
  }
  // An error if the device cannot take it; says what goes where.
  Status check(const ModelOptions& options) const;

  ModelConfig config;
  DeviceWeightTypes types;
  ShardPlan shard;
  int64_t kv_blocks;
  KvShape kv;
};

struct CudaModel::Activations {
  Activations(const Plan& p, const ModelOptions& o, int64_t max_positions)
      : q_size(p.shard.query_heads.size() * p.config.head_dim),
        qkv_size(q_size + 2 * p.shard.kv_heads.size() * p.config.head_dim),
        columns(p.columns()),
        vocab(p.shard.vocab.size()),
        residual(o.max_rows * p.config.hidden_size),
        normed(o.max_rows * p.config.hidden_size * element_bytes(p.activation())),
        qkv(o.max_rows * qkv_size),
        squares(p.config.qk_norm == QkNorm::kWhole ? 2 * o.max_rows : 0),
        attended(o.max_rows * q_size * element_bytes(p.activation())),
        workspace(p.attention_floats(max_positions)),
        gate_up(o.max_rows * 2 * columns),
        activated(o.max_rows * columns * element_bytes(p.activation())),
        expert_weights(p.config.experts ? o.max_rows * (p.config.experts->count + 1) : 0),
        partial(o.max_rows * p.config.hidden_size),
        split_parts(p.activation() == WeightType::kBFloat16 ? kSplitFloats : 0),
        split_arrived(p.activation() == WeightType::kBFloat16 ? kSplitTiles : 0),
        last_hidden(o.max_logit_rows * p.config.hidden_size * element_bytes(p.activation())),
        logits(o.max_logit_rows * vocab),
        host_logits(o.max_logit_rows * vocab) {}

  int64_t bytes() const {
    return static_cast<int64_t>(residual.bytes() + normed.bytes() + qkv.bytes() + attended.bytes() +
                                workspace.bytes() + split_parts.bytes() + gate_up.bytes() +
                                activated.bytes() + partial.bytes() + last_hidden.bytes() + logits.bytes());
  }

  int64_t q_size, qkv_size, columns, vocab;  // of this rank
  DeviceBuffer<float> residual;              // [rows, hidden]
  DeviceBuffer<std::byte> normed;            // [rows, hidden] of activation_type
  DeviceBuffer<float> qkv;                   // [rows, q + k + v]
  DeviceBuffer<float> squares;               // [rows, 2]: sums of squares of q and k
  DeviceBuffer<std::byte> attended;          // [rows, q]
  DeviceBuffer<float> workspace;
  DeviceBuffer<float> gate_up;         // [rows, gates, then ups]
  DeviceBuffer<std::byte> activated;   // [rows, columns]
  DeviceBuffer<float> expert_weights;  // [rows, experts + 1]
  DeviceBuffer<float> partial;         // [rows, hidden]: this rank's leaves, then the sum over ranks
  DeviceBuffer<float> split_parts;     // SplitRoom
  DeviceBuffer<uint32_t> split_arrived;
  DeviceBuffer<std::byte> last_hidden;  // [logit rows, hidden]
  DeviceBuffer<float> logits;           // [logit rows, vocabulary of this rank]
  PinnedBuffer<float> host_logits;
};

int64_t CudaModel::Plan::activation_bytes(const ModelOptions& o) const {
  const int64_t element = element_bytes(activation()), q = shard.query_heads.size() * config.head_dim;
  const int64_t per_row = config.hidden_size * (8 + element) + 4 * (q + 2 * kv.kv_heads * config.head_dim) +
                          q * element + columns() * (8 + element);
  return o.max_rows * per_row + o.max_logit_rows * (config.hidden_size * element + 4 * shard.vocab.size()) +
         4 * (attention_floats(planned_positions(config, o)) + kSplitFloats);
}

Status CudaModel::Plan::check(const ModelOptions& options) const {
  if (config.head_dim > 256)
    return unsupported(fmt::format("head_dim {}: the CUDA kernels take at most 256", config.head_dim));
  if (activation() == WeightType::kBFloat16 && (config.hidden_size % 2 || columns() % 2))
    return unsupported(
        fmt::format("{} weights of an odd hidden_size or intermediate_size: run with --device cpu",
                    weight_type_name(types.layers)));
  if (config.experts && config.experts->count > ExpertChoices::kMost)
    return unsupported(fmt::format("{} experts: the CUDA kernels take at most {}", config.experts->count,
                                   ExpertChoices::kMost));
  const DeviceInfo device = describe_device(options.device.index);
  if (kv.type == KvType::kBFloat16 && tiles(device.shared_bytes, 1).rows == 0)
    return unsupported(
        fmt::format("{} query heads of {} dimensions share a KV head, too many for a block of this device; "
                    "run with --device cpu",
                    config.heads_per_kv_head(), config.head_dim));
  const int64_t working = activation_bytes(options) + draw_bytes(options);
  const int64_t needed = weight_bytes() + kv_bytes() + working;
  const std::string text = fmt::format(
      "device {} ({}, {:.1f} GB free): weights {:.2f} GB, KV cache {:.2f} GB, activations {:.2f} GB",
      options.device.index, device.name, gigabytes(device.free_bytes), gigabytes(weight_bytes()),
      gigabytes(kv_bytes()), gigabytes(working));
  if (needed > device.free_bytes)
    return resource_exhausted(
        text +
        "; that does not fit: lower --max-model-len or --max-num-seqs, or raise --tensor-parallel-size");
  if (options.notice) options.notice(text);
  return {};
}

CudaModel::CudaModel(const Plan& plan, const ModelOptions& options, Collectives& collectives,
                     std::unique_ptr<Stream> stream, DeviceWeights weights,
                     std::unique_ptr<DeviceKvStorage> storage)
    : config_(plan.config),
      options_(options),
      plan_(plan.shard),
      max_positions_(planned_positions(config_, options)),
      device_(describe_device(options.device.index)),
      stream_(std::move(stream)),
      weights_(std::move(weights)),
      storage_(*storage),
      kv_(std::move(storage), plan.kv_blocks),
      tiles_(plan.tiles(device_.shared_bytes, max_positions_)),
      inputs_(options.max_rows, options.max_logit_rows, max_positions_, tiles_,
              {config_.vocab_size, options.stand_in}),
      group_(connect_devices(collectives)),
      rope_(rope_tables(config_, LayerRope::kMain, max_positions_, *stream_)),
      local_rope_(rope_tables(config_, LayerRope::kLocal, max_positions_, *stream_)),
      act_(std::make_unique<Activations>(plan, options, max_positions_)) {
  prepare_matmul(device_.shared_bytes);
  prepare_attention(device_.shared_bytes);
  // Ranks queue the same operations of the group, whichever of them keep states.
  const char own = std::count(options_.taps.begin(), options_.taps.end(), config_.num_layers) > 0;
  std::vector<char> all(static_cast<size_t>(collectives.size()));
  collectives.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  any_last_tap_ = std::count(all.begin(), all.end(), char{1}) > 0;
  if (!group_->is_capturable()) return;
  if (is_split()) collectives.barrier();  // nobody allocates any more while a peer's kernel waits for it
  warm_up();
  capture_graphs();
  if (is_split()) collectives.barrier();  // the same: graphs take memory when they are made
}

float* CudaModel::logits() const { return act_->logits.data(); }

CudaModel::~CudaModel() {
  try {
    stream_->synchronize();
  } catch (const std::exception&) {  // what is wrong was or will be said by who uses the device
  }
}

Result<std::unique_ptr<Model>> CudaModel::load(const std::filesystem::path& directory,
                                               const ModelOptions& options, Collectives& collectives) {
  ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(directory));
  if (config.latent)
    return unsupported(fmt::format("{}: the latent attention of {} runs on the CPU only; use --device cpu",
                                   directory.string(), architecture_name(config.family)));
  ASSIGN_OR_RETURN(TensorFiles files, TensorFiles::open(directory));
  ASSIGN_OR_RETURN(const WeightMap map, map_weights(files, config, ShardPlan(config, options.shard)));
  ASSIGN_OR_RETURN(const DeviceWeightTypes types, device_weight_types(map, options.weight_format));
  const Plan plan(config, options, types);
  use_device(options.device.index);
  RETURN_IF_ERROR(plan.check(options));
  auto stream = make_stream(options);
  auto storage = std::make_unique<DeviceKvStorage>(plan.kv, plan.kv_blocks, options.device.index, *stream);
  DeviceWeights weights = upload_weights(map, config, plan.shard, types, *stream, options.progress);
  RETURN_IF_ERROR(files.check_unchanged());
  return std::unique_ptr<Model>(
      new CudaModel(plan, options, collectives, std::move(stream), std::move(weights), std::move(storage)));
}

Result<std::unique_ptr<CudaModel>> CudaModel::of_noise(const ModelConfig& config, const ModelOptions& options,
                                                       Collectives& collectives) {
  const Plan plan(config, options, device_weight_types(options.weight_format));
  use_device(options.device.index);
  RETURN_IF_ERROR(plan.check(options));
  auto stream = make_stream(options);
  auto storage = std::make_unique<DeviceKvStorage>(plan.kv, plan.kv_blocks, options.device.index, *stream);
  DeviceWeights weights = noise_weights(config, plan.shard, plan.types, *stream);
  return std::unique_ptr<CudaModel>(
      new CudaModel(plan, options, collectives, std::move(stream), std::move(weights), std::move(storage)));
}

// A first launch may load code, and NCCL connects at its first operation: nothing to be captured.
void CudaModel::warm_up() {
  const KvHandle sequence = kv_.create();
  const TokenId token(0);
  const BatchSlice slice{sequence, {&token, 1}, 1};
  if (const auto logits = forward_on_device({&slice, 1}); logits.ok()) group_->wait(*stream_);
  kv_.release(sequence);
}

// At start-up, so that no step pays for it.
void CudaModel::capture_graphs() {
  const int64_t last = std::min({kGraphRows, options_.max_rows, options_.max_logit_rows});
  for (int64_t rows = 1; rows <= last; ++rows)
    graphs_[rows] = std::make_unique<Graph>(*stream_, [&] { queue_forward(rows, rows); });
}

Result<LogitsShard> CudaModel::forward(std::span<const BatchSlice> batch) {
  ASSIGN_OR_RETURN(const DeviceLogits logits, forward_on_device(batch));
  copy(logits.host_room, logits.logits.data(), logits.logits.size(), logits.stream);
  group_->wait(logits.stream);
  return LogitsShard{.logits = TensorView<float, 2>(logits.host_room, logits.logits.extents()),
                     .vocab_range = logits.vocab_range,
                     .vocab_size = logits.vocab_size};
}

Result<PlacedLogits> CudaModel::forward_in_place(std::span<const BatchSlice> batch) {
  ASSIGN_OR_RETURN(const DeviceLogits logits, forward_on_device(batch));
  return PlacedLogits(logits);
}

Result<DeviceLogits> CudaModel::forward_on_device(std::span<const BatchSlice> batch) {
  const auto [rows, logit_rows] = count_rows(batch);
  CHECK(rows <= options_.max_rows && logit_rows <= options_.max_logit_rows,
        "{} rows, {} of them with logits; planned {}, {}", rows, logit_rows, options_.max_rows,
        options_.max_logit_rows);
  use_device(options_.device.index);
  RETURN_IF_ERROR(append_batch(kv_, batch, max_positions_));
  inputs_.send(batch, kv_, *stream_);
  queue_pass(rows, logit_rows);
  return DeviceLogits{.logits = TensorView<float, 2>(act_->logits.data(), {logit_rows, act_->vocab}),
                      .vocab_range = plan_.vocab,
                      .vocab_size = config_.vocab_size,
                      .stream = *stream_,
                      .host_room = act_->host_logits.data()};
}

void CudaModel::queue_pass(int64_t rows, int64_t logit_rows) {
  const auto graph = graphs_.find(rows);
  if (graph != graphs_.end() && logit_rows == rows)
    graph->second->launch(*stream_);
  else
    queue_forward(rows, logit_rows);
}

void CudaModel::read_states(KvHandle sequence, int64_t index, std::span<float> to) const {
  storage_.read_state(kv_.slot(sequence, index), to);
}

std::unique_ptr<TokenRunner> CudaModel::make_runner(int64_t vocab_size) {
  if (options_.run_sequences == 0 || is_split()) return nullptr;
  return std::make_unique<CudaTokenRunner>(*this, vocab_size);
}

void CudaModel::queue_forward(int64_t rows, int64_t logit_rows) {
  queue_embedding(rows);
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    queue_attention(layer, rows);
    queue_mlp(layer, rows);
  }
  NormArguments last = norm_behind_mlp(config_.num_layers - 1, weights_.final_norm.data());
  if (any_last_tap_) {
    last.rows = rows;
    queue_sum_and_norm(last, rows);  // for the residual stream of rows without logits
    queue_states(config_.num_layers, rows);
    last = norm_arguments(nullptr, weights_.final_norm.data());
  }
  last.rows_from = inputs_.device().logit_rows;
  last.out = act_->last_hidden.data();
  last.rows = logit_rows;
  queue_sum_and_norm(last, rows);
  multiply(logit_rows, act_->last_hidden.data(), config_.hidden_size, weights_.head, act_->logits.data(),
           act_->vocab);
  const ModelScales& scales = config_.scales;
  if (scales.logit_divisor != 1 || scales.logit_cap > 0)
    scale_and_cap(*stream_, act_->logits.data(), logit_rows * act_->vocab,
                  static_cast<float>(1 / scales.logit_divisor), static_cast<float>(scales.logit_cap));
}

void CudaModel::queue_embedding(int64_t rows) {
  embed(*stream_, inputs_.device(), rows, weights_.embedding_rows(), plan_.vocab.begin, config_.hidden_size,
        static_cast<float>(config_.scales.embedding), act_->residual.data());
  // One rank has a token's row, the others +0.
  if (is_split())
    group_->all_reduce(Reduction::kMerge, act_->residual.data(), rows * config_.hidden_size, *stream_);
}

// The parts of the previous block are summed over the ranks and join the residual stream, in one kernel where
// ranks reach each other's memory.
void CudaModel::queue_sum_and_norm(const NormArguments& arguments, int64_t rows) {
  if (!is_split() || !arguments.added) return add_and_norm(*stream_, arguments);
  const PeerView* view = arguments.added_weight ? nullptr : group_->peer_view();
  if (view) return sum_and_norm(*stream_, *view, arguments);
  group_->all_reduce(Reduction::kTreeSum, act_->partial.data(), rows * config_.hidden_size, *stream_);
  add_and_norm(*stream_, arguments);
}

// What joins the residual stream, if anything, and the norm in front of what is next.
NormArguments CudaModel::norm_arguments(const float* added, const float* weight) const {
  return {.residual = act_->residual.data(),
          .added = added,
          .factor = static_cast<float>(config_.scales.residual),
          .weight = weight,
          .out = act_->normed.data(),
          .type = weights_.types.activation(),
          .hidden = config_.hidden_size,
          .epsilon = static_cast<float>(config_.rms_norm_eps)};
}

NormArguments CudaModel::norm_behind_mlp(int64_t layer, const float* weight) const {
  if (layer < 0) return norm_arguments(nullptr, weight);
  const DeviceLayer& w = weights_.layers[static_cast<size_t>(layer)];
  NormArguments arguments = norm_arguments(act_->partial.data(), weight);
  arguments.bias = w.down_bias.data();
  arguments.added_weight = w.mlp_out_norm.data();
  return arguments;
}

void CudaModel::multiply(int64_t rows, const void* x, int64_t x_stride, const DeviceMatrix& weight,
                         float* out, int64_t out_stride) {
  matmul(*stream_,
         {.rows = rows,
          .x_stride = x_stride,
          .out_stride = out_stride,
          .split = {act_->split_parts.data(), act_->split_arrived.data()},
          .multiprocessors = device_.multiprocessors,
          .shared_bytes = device_.shared_bytes},
         x, weight.view(), out);
}

void CudaModel::queue_attention(int64_t layer, int64_t rows) {
  const DeviceLayer& w = weights_.layers[static_cast<size_t>(layer)];
  NormArguments norm = norm_behind_mlp(layer - 1, w.attention_norm.data());
  norm.rows = rows;
  queue_sum_and_norm(norm, rows);
  queue_states(layer, rows);
  multiply(rows, act_->normed.data(), config_.hidden_size, w.qkv, act_->qkv.data(), act_->qkv_size);
  if (config_.qk_norm == QkNorm::kWhole) queue_squares(w, rows);
  const KvLayer kv = storage_.layer(layer);
  const LayerKind kind = config_.layer(layer);
  const RopeTables& rope = kind.rope == LayerRope::kLocal ? local_rope_ : rope_;
  const auto heads = static_cast<int32_t>(plan_.query_heads.size());
  rotate_and_store(*stream_, inputs_.device(), kv,
                   {.qkv = act_->qkv.data(),
                    .rows = rows,
                    .q_heads = heads,
                    .bias = w.qkv_bias.data(),
                    .q_norm = w.q_norm.data(),
                    .k_norm = w.k_norm.data(),
                    .squares = act_->squares.data(),
                    .q_size = config_.q_size(),
                    .k_size = config_.kv_size(),
                    .turned = kind.rope == LayerRope::kNone ? 0 : rope.turned,
                    .cosines = rope.cosines.data(),
                    .sines = rope.sines.data(),
                    .epsilon = static_cast<float>(config_.rms_norm_eps)});
  attention(*stream_, inputs_.device(), kv,
            {.q = act_->qkv.data(),
             .q_stride = act_->qkv_size,
             .out = act_->attended.data(),
             .out_type = weights_.types.activation(),
             .rows = rows,
             .heads = heads,
             .first_head = static_cast<int32_t>(plan_.query_heads.begin),
             .first_kv_head = static_cast<int32_t>(plan_.kv_heads.begin),
             .heads_per_kv = static_cast<int32_t>(config_.heads_per_kv_head()),
             .scale = static_cast<float>(config_.scales.attention),
             .cap = static_cast<float>(config_.scales.attention_cap),
             .sinks = w.sinks.data(),
             .window = static_cast<int32_t>(kind.window),
             .max_positions = static_cast<int32_t>(max_positions_),
             .tile_rows = tiles_.rows,
             .turn_rows = tiles_.turn_rows,
             .workspace = act_->workspace.data(),
             .multiprocessors = device_.multiprocessors});
  multiply(rows, act_->attended.data(), act_->q_size, w.o, act_->partial.data(), config_.hidden_size);
}

void CudaModel::queue_states(int64_t layer, int64_t rows) {
  const auto tap = std::find(options_.taps.begin(), options_.taps.end(), layer);
  if (tap == options_.taps.end()) return;
  keep_states(*stream_, inputs_.device(), storage_.states(), rows, config_.hidden_size, act_->residual.data(),
              (tap - options_.taps.begin()) * config_.hidden_size);
}

// One norm over all query heads and one over all KV heads, whichever ranks hold them.
void CudaModel::queue_squares(const DeviceLayer& w, int64_t rows) {
  sum_squares(*stream_, {.qkv = act_->qkv.data(),
                         .stride = act_->qkv_size,
                         .bias = w.qkv_bias.data(),
                         .q = leaves_from_ends(plan_.attention_leaf_ends),
                         .k = leaves_from_ends(plan_.kv_leaf_ends),
                         .k_begin = act_->q_size,
                         .out = act_->squares.data(),
                         .rows = rows});
  if (is_split()) group_->all_reduce(Reduction::kTreeSum, act_->squares.data(), 2 * rows, *stream_);
}

void CudaModel::queue_mlp(int64_t layer, int64_t rows) {
  const DeviceLayer& w = weights_.layers[static_cast<size_t>(layer)];
  NormArguments norm = norm_arguments(act_->partial.data(), w.mlp_norm.data());
  norm.bias = w.o_bias.data();
  norm.added_weight = w.attention_out_norm.data();
  norm.rows = rows;
  queue_sum_and_norm(norm, rows);
  const int64_t columns = w.gate_up.view().n / 2;
  multiply(rows, act_->normed.data(), config_.hidden_size, w.gate_up, act_->gate_up.data(), 2 * columns);
  if (w.router.size() > 0) {
    queue_experts(w, rows);
  } else {
    const auto gate = config_.activation == Activation::kGeluTanh ? &gelu_tanh_mul : &silu_mul;
    gate(*stream_, act_->gate_up.data(), w.gate_up_bias.data(), rows, columns, weights_.types.activation(),
         act_->activated.data());
  }
  multiply(rows, act_->activated.data(), columns, w.down, act_->partial.data(), config_.hidden_size);
}

// All experts are multiplied for all rows: which ones a row needs is known on the device only.
void CudaModel::queue_experts(const DeviceLayer& w, int64_t rows) {
  const ExpertConfig& experts = *config_.experts;
  choose_experts(*stream_, {.x = act_->normed.data(),
                            .type = weights_.types.activation(),
                            .rows = rows,
                            .hidden = config_.hidden_size,
                            .router = w.router.data(),
                            .bias = w.router_bias.data(),
                            .shared_gate = w.shared_gate.data(),
                            .experts = static_cast<int32_t>(experts.count),
                            .chosen = static_cast<int32_t>(experts.chosen),
                            .renormalise = experts.renormalise,
                            .weights = act_->expert_weights.data()});
  gate_experts(*stream_, act_->gate_up.data(),
               {.bias = w.gate_up_bias.data(),
                .is_clamped = config_.activation == Activation::kClampedSwish,
                .factor = static_cast<float>(config_.scales.gate_factor),
                .limit = static_cast<float>(config_.scales.gate_limit)},
               act_->expert_weights.data(), expert_columns(experts, plan_.shard), rows,
               weights_.types.activation(), act_->activated.data());
  // Every rank has the whole residual stream, which the experts join next.
  if (experts.biases)
    add_expert_biases(*stream_, act_->expert_weights.data(), w.expert_down_bias.data(),
                      static_cast<int32_t>(experts.count), rows, config_.hidden_size,
                      static_cast<float>(config_.scales.residual), act_->residual.data());
}

}  // namespace outrider::cuda
