// The kernels of a pass in their order: CudaModel::queue_forward and its parts.
#include <algorithm>

#include "model/cuda/layer_parts.h"
#include "model/cuda/model.h"

namespace outrider::cuda {

void CudaModel::queue_forward(int64_t layers, int64_t rows, int64_t logit_rows) {
  queue_embedding(rows);
  for (int64_t layer = 0; layer < layers; ++layer) {
    queue_mixer(layer, rows);
    queue_mlp(layer, rows);
  }
  NormArguments last = norm_behind_mlp(layers - 1, weights_.final_norm.data());
  if (any_last_aux_layer_ && layers == config_.num_layers) {
    last.rows = rows;
    queue_sum_and_norm(last, rows);  // for the residual stream of rows without logits
    queue_hidden_states(config_.num_layers, rows);
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

// Adds `added`, if any, to the residual stream, and applies the norm in front of the next block.
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

void CudaModel::multiply(int64_t rows, const void* x, int64_t x_stride, const DeviceStack& weight, float* out,
                         int64_t out_stride, const GatedOutput& gated) {
  parts().products.multiply(rows, x, x_stride, weight, out, out_stride, {}, gated);
}

LayerParts CudaModel::parts() const {
  return {
      .config = config_,
      .plan = plan_,
      .activation = weights_.types.activation(),
      .products = {.stream = *stream_,
                   .device = device_,
                   .split = {act_->split_parts.data(), act_->split_arrived.data(), act_->split_parts.size()},
                   .gathered = reinterpret_cast<bf16*>(act_->gathered.data())}};
}

void CudaModel::queue_mixer(int64_t layer, int64_t rows) {
  NormArguments norm =
      norm_behind_mlp(layer - 1, weights_.layers[static_cast<size_t>(layer)].attention_norm.data());
  norm.rows = rows;
  queue_sum_and_norm(norm, rows);
  queue_hidden_states(layer, rows);
  switch (config_.layer(layer).mixer) {
    case Mixer::kAttention:
      return queue_attention(layer, rows);
    case Mixer::kShortConv:
      return queue_convolution(layer, rows);
    case Mixer::kDeltaNet:
      return queue_delta_net(layer, rows);
  }
}

void CudaModel::queue_delta_net(int64_t layer, int64_t rows) {
  const DeviceLayer& w = weights_.layers[static_cast<size_t>(layer)];
  const DeltaNetPart& own = *plan_.delta_net;
  const int64_t columns = own.row_size() + own.value_size();
  multiply(rows, act_->normed.data(), config_.hidden_size, w.qkv, act_->qkv.data(), columns);
  const KvLayer kept = storage_.layer(layer);
  DeltaNetArguments arguments{.projected = act_->qkv.data(),
                              .stride = columns,
                              .rows = rows,
                              .key_heads = static_cast<int32_t>(own.keys.size()),
                              .value_heads = static_cast<int32_t>(own.values.size()),
                              .key_dim = static_cast<int32_t>(own.key_dim),
                              .value_dim = static_cast<int32_t>(own.value_dim),
                              .taps = static_cast<int32_t>(config_.delta_net->taps),
                              .epsilon = static_cast<float>(config_.rms_norm_eps),
                              .conv = w.conv.data(),
                              .rate = w.delta_net.rate.data(),
                              .dt_bias = w.delta_net.dt_bias.data(),
                              .norm = w.delta_net.norm.data(),
                              .out = act_->attended.data(),
                              .type = weights_.types.activation(),
                              .multiprocessors = device_.multiprocessors};
  states_->place(layer, arguments);
  store_delta_rows(*stream_, inputs_.device(), kept, arguments);
  update_delta_states(*stream_, inputs_.device(), kept, arguments);
  gate_delta_outputs(*stream_, arguments);
  multiply(rows, act_->attended.data(), own.value_size(), w.o, act_->partial.data(), config_.hidden_size);
}

void CudaModel::queue_convolution(int64_t layer, int64_t rows) {
  const DeviceLayer& w = weights_.layers[static_cast<size_t>(layer)];
  const int64_t channels = plan_.conv_channels.size();
  multiply(rows, act_->normed.data(), config_.hidden_size, w.qkv, act_->qkv.data(), 3 * channels);
  const KvLayer kept = storage_.layer(layer);
  const ShortConvArguments arguments{.projected = act_->qkv.data(),
                                     .rows = rows,
                                     .channels = static_cast<int32_t>(channels),
                                     .taps = w.conv.data(),
                                     .count = static_cast<int32_t>(config_.conv_taps),
                                     .out = act_->attended.data(),
                                     .type = weights_.types.activation()};
  store_conv_rows(*stream_, inputs_.device(), kept, arguments);
  short_convolution(*stream_, inputs_.device(), kept, arguments);
  multiply(rows, act_->attended.data(), channels, w.o, act_->partial.data(), config_.hidden_size);
}

void CudaModel::queue_attention(int64_t layer, int64_t rows) {
  const DeviceLayer& w = weights_.layers[static_cast<size_t>(layer)];
  const KvLayer kv = storage_.layer(layer);
  const LayerKind kind = config_.layer(layer);
  const auto heads = static_cast<int32_t>(plan_.query_heads.size());
  const bool is_latent = config_.latent.has_value();
  const LatentRoom room{.latents = act_->qkv.data(), .stride = act_->qkv_size, .heads = act_->latent};
  if (is_latent)
    parts().queue_latents(w, inputs_.device(), kv, rope_, act_->normed.data(), rows, room);
  else
    queue_projections(layer, kv, rows);
  attention(*stream_, inputs_.device(), kv,
            {.q = is_latent ? act_->latent.queries.data() : act_->qkv.data(),
             .q_stride = is_latent ? act_->q_size : act_->qkv_size,
             .gate = config_.attention_gate
                         ? act_->qkv.data() + (heads + 2 * plan_.kv_heads.size()) * config_.head_dim
                         : nullptr,
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
             .tile_heads = tiles_.heads,
             .turn_rows = tiles_.turn_rows,
             .workspace = act_->workspace.data(),
             .multiprocessors = device_.multiprocessors});
  if (is_latent) parts().queue_values(w, act_->attended.data(), rows, room);
  multiply(rows, is_latent ? act_->latent.values.data() : act_->attended.data(), heads * config_.output_dim(),
           w.o, act_->partial.data(), config_.hidden_size);
}

void CudaModel::queue_projections(int64_t layer, const KvLayer& kv, int64_t rows) {
  const DeviceLayer& w = weights_.layers[static_cast<size_t>(layer)];
  multiply(rows, act_->normed.data(), config_.hidden_size, w.qkv, act_->qkv.data(), act_->qkv_size);
  if (config_.qk_norm == QkNorm::kWhole) queue_squares(w, rows);
  const LayerRope kind = config_.layer(layer).rope;
  const RopeTables& rope = kind == LayerRope::kLocal ? local_rope_ : rope_;
  rotate_and_store(*stream_, inputs_.device(), kv,
                   {.qkv = act_->qkv.data(),
                    .stride = act_->qkv_size,
                    .rows = rows,
                    .q_heads = static_cast<int32_t>(plan_.query_heads.size()),
                    .bias = w.qkv_bias.data(),
                    .q_norm = w.q_norm.data(),
                    .k_norm = w.k_norm.data(),
                    .squares = act_->squares.data(),
                    .q_size = config_.q_size(),
                    .k_size = config_.kv_size(),
                    .turned = kind == LayerRope::kNone ? 0 : rope.turned,
                    .interleaved = rope.interleaved,
                    .norms_rotated = config_.norms_rotated,
                    .cosines = rope.cosines.data(),
                    .sines = rope.sines.data(),
                    .epsilon = static_cast<float>(config_.rms_norm_eps)});
}

void CudaModel::queue_hidden_states(int64_t layer, int64_t rows) {
  const auto aux_layer = std::find(options_.aux_layers.begin(), options_.aux_layers.end(), layer);
  if (aux_layer == options_.aux_layers.end()) return;
  keep_hidden_states(*stream_, inputs_.device(), storage_.hidden_states(), rows, config_.hidden_size,
                     act_->residual.data(), (aux_layer - options_.aux_layers.begin()) * config_.hidden_size);
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
  if (w.router.size() > 0) {
    parts().queue_mixture(w, act_->normed.data(), rows,
                          {.weights = act_->expert_weights.data(),
                           .gate_up = act_->gate_up.data(),
                           .activated = act_->activated.data(),
                           .work = expert_work_.data()},
                          act_->partial.data());
    // Every rank has the whole residual stream, which the experts join next.
    if (config_.experts->biases)
      add_expert_biases(*stream_, act_->expert_weights.data(), w.expert_down_bias.data(),
                        static_cast<int32_t>(config_.experts->count), rows, config_.hidden_size,
                        static_cast<float>(config_.scales.residual), act_->residual.data());
    return;
  }
  const int64_t columns = w.gate_up.n() / 2;
  const bool is_gelu = config_.activation == Activation::kGeluTanh;
  if (w.gate_up.is_paired()) {
    multiply(rows, act_->normed.data(), config_.hidden_size, w.gate_up, nullptr, columns,
             {.kind = is_gelu ? GateKind::kGeluTanh : GateKind::kSilu,
              .bias = w.gate_up_bias.data(),
              .out = reinterpret_cast<bf16*>(act_->activated.data())});
  } else {
    multiply(rows, act_->normed.data(), config_.hidden_size, w.gate_up, act_->gate_up.data(), 2 * columns);
    const auto gate = is_gelu ? &gelu_tanh_mul : &silu_mul;
    gate(*stream_, act_->gate_up.data(), w.gate_up_bias.data(), rows, columns, weights_.types.activation(),
         act_->activated.data());
  }
  multiply(rows, act_->activated.data(), columns, w.down, act_->partial.data(), config_.hidden_size);
}

}  // namespace outrider::cuda
