#include "model/cuda/model.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "model/cuda/layer_parts.h"
#include "model/cuda/token_runner.h"
#include "model/weights.h"
#include "model_files/weight_map.h"

namespace outrider::cuda {
namespace {

std::unique_ptr<Stream> make_stream(const ModelOptions& options) {
  const bool overlaps = options.overlap_kernels && options.shard.tp_size == 1;
  return std::make_unique<Stream>(overlaps ? KernelOrder::kOverlapping : KernelOrder::kInTurn);
}

int64_t most_expert_work(const DeviceWeights& weights) {
  int64_t most = 0;
  for (const DeviceLayer& layer : weights.layers) most = std::max(most, expert_work_size(layer));
  return most;
}

}  // namespace

CudaModel::CudaModel(const MemoryPlan& plan, const ModelOptions& options, Collectives& collectives,
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
              {config_.vocab_size, options.stand_in}, config_.delta_net.has_value()),
      group_(connect_devices(collectives)),
      rope_(rope_tables(config_, LayerRope::kMain, max_positions_, *stream_)),
      local_rope_(rope_tables(config_, LayerRope::kLocal, max_positions_, *stream_)),
      act_(std::make_unique<Activations>(plan, options, max_positions_)),
      expert_work_(most_expert_work(weights_)),
      states_(config_.delta_net ? std::make_unique<DeviceStates>(plan, *stream_) : nullptr) {
  CHECK(options_.exit_layer >= 0 && options_.exit_layer <= config_.num_layers, "exit layer {} of {}",
        options_.exit_layer, config_.num_layers);
  prepare_matmul(device_.shared_bytes);
  prepare_attention(device_.shared_bytes);
  if (states_) prepare_delta_nets();
  // All ranks must queue the same group operations, whichever ranks keep hidden states.
  const char own = std::count(options_.aux_layers.begin(), options_.aux_layers.end(), config_.num_layers) > 0;
  std::vector<char> all(static_cast<size_t>(collectives.size()));
  collectives.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  any_last_aux_layer_ = std::count(all.begin(), all.end(), char{1}) > 0;
  if (!group_->is_capturable()) return;
  // Capture must not allocate while a peer's kernel waits for this rank.
  if (is_split()) collectives.barrier();
  warm_up();
  capture_graphs();
  if (is_split()) collectives.barrier();  // graphs allocate memory when they are instantiated
}

float* CudaModel::logits() const { return act_->logits.data(); }

CudaModel::~CudaModel() {
  try {
    group_->wait(*stream_);          // which ends, also where a peer is gone for whom a kernel waits
  } catch (const std::exception&) {  // what is wrong was or will be said by who uses the device
  }
  group_->end_pass();
}

Result<std::unique_ptr<Model>> CudaModel::load(const std::filesystem::path& directory,
                                               const ModelOptions& options, Collectives& collectives) {
  ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(directory));
  if (const Status known = check_heads(config); !known.ok())
    return Status(known.code(), directory.string() + ": " + known.message());
  ASSIGN_OR_RETURN(TensorFiles files, TensorFiles::open(directory));
  const ShardPlan shard(config, options.shard);
  ASSIGN_OR_RETURN(const WeightMap map, map_weights(files, config, shard));
  ASSIGN_OR_RETURN(const WeightPlan weight_plan, plan_weights(map, config, shard, options.weight_format));
  const MemoryPlan plan(config, options, weight_plan);
  use_device(options.device.index);
  RETURN_IF_ERROR(plan.check(options));
  auto stream = make_stream(options);
  auto storage = std::make_unique<DeviceKvStorage>(plan.kv, plan.latent_dim(), plan.kv_blocks,
                                                   options.device.index, *stream);
  DeviceWeights weights =
      upload_weights(map, config, plan.shard, weight_plan.types, *stream, options.progress);
  RETURN_IF_ERROR(files.check_unchanged());
  collectives.meet();  // ranks do not load equally fast, and operations have a deadline
  return std::unique_ptr<Model>(
      new CudaModel(plan, options, collectives, std::move(stream), std::move(weights), std::move(storage)));
}

Result<std::unique_ptr<CudaModel>> CudaModel::of_noise(const ModelConfig& config, const ModelOptions& options,
                                                       Collectives& collectives) {
  RETURN_IF_ERROR(check_heads(config));
  const MemoryPlan plan(config, options,
                        plan_weights(config, ShardPlan(config, options.shard), options.weight_format));
  use_device(options.device.index);
  RETURN_IF_ERROR(plan.check(options));
  auto stream = make_stream(options);
  auto storage = std::make_unique<DeviceKvStorage>(plan.kv, plan.latent_dim(), plan.kv_blocks,
                                                   options.device.index, *stream);
  DeviceWeights weights = noise_weights(config, plan.shard, plan.weights.types, *stream);
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
  std::set<int64_t> passes{config_.num_layers};
  if (options_.exit_layer > 0) passes.insert(options_.exit_layer);
  for (const int64_t layers : passes)
    for (int64_t rows = 1; rows <= last; ++rows)
      graphs_[{layers, rows}] = std::make_unique<Graph>(*stream_, [&] { queue_forward(layers, rows, rows); });
}

LogitsShard CudaModel::fetch(const DeviceLogits& logits) {
  copy(logits.host_room, logits.logits.data(), logits.logits.size(), logits.stream);
  group_->wait(logits.stream);
  return LogitsShard{.logits = TensorView<float, 2>(logits.host_room, logits.logits.extents()),
                     .vocab_range = logits.vocab_range,
                     .vocab_size = logits.vocab_size};
}

Result<LogitsShard> CudaModel::forward(std::span<const BatchSlice> batch) {
  ASSIGN_OR_RETURN(const DeviceLogits logits, forward_on_device(batch));
  return fetch(logits);
}

// Nothing is kept for the whole pass: reading the weights is what a pass of few rows takes.
Result<LogitsShard> CudaModel::forward_first(std::span<const BatchSlice> batch, int64_t layers,
                                             std::span<ExitedTokens* const>) {
  ASSIGN_OR_RETURN(const DeviceLogits logits, forward_through(layers, batch));
  return fetch(logits);
}

Result<PlacedLogits> CudaModel::forward_in_place(std::span<const BatchSlice> batch) {
  ASSIGN_OR_RETURN(const DeviceLogits logits, forward_on_device(batch));
  return PlacedLogits(logits);
}

Result<DeviceLogits> CudaModel::forward_through(int64_t layers, std::span<const BatchSlice> batch) {
  CHECK(layers >= 1 && layers <= config_.num_layers, "{} layers of {}", layers, config_.num_layers);
  const auto [rows, logit_rows] = count_rows(batch);
  CHECK(rows <= options_.max_rows && logit_rows <= options_.max_logit_rows,
        "{} rows, {} of them with logits; planned {}, {}", rows, logit_rows, options_.max_rows,
        options_.max_logit_rows);
  use_device(options_.device.index);
  RETURN_IF_ERROR(append_batch(kv_, batch, max_positions_));
  if (states_) {
    // Later layers get no rows of the tokens of a shorter pass, so the states of no layer take them in.
    states_->begin(batch, kv_, layers == config_.num_layers, *stream_);
    inputs_.send(batch, kv_, *stream_, states_->planned());
  } else {
    inputs_.send(batch, kv_, *stream_);
  }
  queue_pass(layers, rows, logit_rows);
  if (states_) states_->end(kv_);
  return DeviceLogits{.logits = TensorView<float, 2>(act_->logits.data(), {logit_rows, act_->vocab}),
                      .vocab_range = plan_.vocab,
                      .vocab_size = config_.vocab_size,
                      .stream = *stream_,
                      .host_room = act_->host_logits.data()};
}

void CudaModel::queue_pass(int64_t layers, int64_t rows, int64_t logit_rows) {
  group_->begin_pass();
  const auto graph = graphs_.find({layers, rows});
  if (graph != graphs_.end() && logit_rows == rows)
    graph->second->launch(*stream_);
  else
    queue_forward(layers, rows, logit_rows);
}

void CudaModel::read_hidden_states(KvHandle sequence, int64_t index, std::span<float> to) const {
  storage_.read_hidden_state(kv_.slot(sequence, index), to);
}

std::unique_ptr<TokenRunner> CudaModel::make_runner(int64_t vocab_size) {
  // Which tokens recurrent states take in is decided on the host, between passes.
  if (options_.run_sequences == 0 || is_split() || states_) return nullptr;
  return std::make_unique<CudaTokenRunner>(*this, vocab_size);
}

}  // namespace outrider::cuda
