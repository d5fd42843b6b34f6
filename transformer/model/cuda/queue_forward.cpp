// The kernels of a pass in their order: CudaModel::queue_forward and its parts.
#include <algorithm>

#include "transformer/files/latent_config.h"
#include "transformer/model/cuda/activations.h"
#include "transformer/model/cuda/model.h"
#include "transformer/ops/cuda/latent_ops.h"

namespace outrider::cuda {

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

void CudaModel::multiply(int64_t rows, const void* x, int64_t x_stride, const DeviceStack& weight, float* out,
                         int64_t out_stride, const ChosenWork& chosen, const GatedOutput& gated) {
  for (const DeviceMatrix& matrix : weight.matrices()) {
    const MatrixView& m = matrix.view();
    MatmulShape shape{
        .rows = rows,
        .x_stride = x_stride,
        .out_stride = out_stride,
        .split = {act_->split_parts.data(), act_->split_arrived.data(), act_->split_parts.size()},
        .chosen = chosen,
        .gated = gated,
        .multiprocessors = device_.multiprocessors,
        .shared_bytes = device_.shared_bytes};
    const void* inputs = x;
    if (m.columns) {
      shape.x_stride = round_up(m.slices.k(), kAlignedInputs);
      auto* gathered = reinterpret_cast<bf16*>(act_->gathered.data());
      gather_columns(*stream_, rows, static_cast<const bf16*>(x), x_stride, m, gathered, shape.x_stride);
      inputs = gathered;
    }
    matmul(*stream_, shape, inputs, m, out);
    out += m.n;
  }
}

void CudaModel::queue_attention(int64_t layer, int64_t rows) {
  const DeviceLayer& w = weights_.layers[static_cast<size_t>(layer)];
  NormArguments norm = norm_behind_mlp(layer - 1, w.attention_norm.data());
  norm.rows = rows;
  queue_sum_and_norm(norm, rows);
  queue_states(layer, rows);
  const KvLayer kv = storage_.layer(layer);
  const LayerKind kind = config_.layer(layer);
  const auto heads = static_cast<int32_t>(plan_.query_heads.size());
  const bool is_latent = config_.latent.has_value();
  if (is_latent)
    queue_latents(layer, kv, rows);
  else
    queue_projections(layer, kv, rows);
  attention(*stream_, inputs_.device(), kv,
            {.q = is_latent ? act_->latent.queries.data() : act_->qkv.data(),
             .q_stride = is_latent ? act_->q_size : act_->qkv_size,
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
  if (is_latent) queue_values(w, rows);
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
                    .rows = rows,
                    .q_heads = static_cast<int32_t>(plan_.query_heads.size()),
                    .bias = w.qkv_bias.data(),
                    .q_norm = w.q_norm.data(),
                    .k_norm = w.k_norm.data(),
                    .squares = act_->squares.data(),
                    .q_size = config_.q_size(),
                    .k_size = config_.kv_size(),
                    .turned = kind == LayerRope::kNone ? 0 : rope.turned,
                    .cosines = rope.cosines.data(),
                    .sines = rope.sines.data(),
                    .epsilon = static_cast<float>(config_.rms_norm_eps)});
}

// In the absorbed form (latent_attention.h): a head's query goes through the matrix that would make keys of
// latents.
void CudaModel::queue_latents(int64_t layer, const KvLayer& kv, int64_t rows) {
  const LatentConfig& c = *config_.latent;
  const DeviceLayer& w = weights_.layers[static_cast<size_t>(layer)];
  const LatentActivations& to = act_->latent;
  const auto heads = static_cast<int32_t>(plan_.query_heads.size());
  if (heads == 0) return;  // more ranks than heads: nothing is cached
  const LatentTurns turns{.pairs = rope_.turned,
                          .interleaved = c.interleaved,
                          .cosines = rope_.cosines.data(),
                          .sines = rope_.sines.data()};
  const bool has_latent = c.q_rank > 0;
  multiply(rows, act_->normed.data(), config_.hidden_size, w.qkv, act_->qkv.data(), act_->qkv_size);
  store_latents(*stream_, inputs_.device(), kv,
                {.latents = act_->qkv.data(),
                 .stride = act_->qkv_size,
                 .kv_begin = act_->qkv_size - config_.head_dim,
                 .kv_norm = w.latent.kv_norm.data(),
                 .q_rank = c.q_rank,
                 .q_norm = w.latent.q_norm.data(),
                 .q_latent = to.q_latent.data(),
                 .type = weights_.types.activation(),
                 .rows = rows,
                 .epsilon = kLatentEpsilon,
                 .turns = turns});
  const float* q = has_latent ? to.q.data() : act_->qkv.data();
  const int64_t q_stride = has_latent ? heads * c.query_dim() : act_->qkv_size;
  if (has_latent) multiply(rows, to.q_latent.data(), c.q_rank, w.latent.q, to.q.data(), q_stride);
  turn_queries(*stream_, inputs_.device(),
               {.q = q,
                .stride = q_stride,
                .each = static_cast<int32_t>(c.query_dim()),
                .from = static_cast<int32_t>(c.nope_dim),
                .queries = to.queries.data(),
                .to_each = static_cast<int32_t>(config_.head_dim),
                .to = static_cast<int32_t>(c.kv_rank),
                .heads = heads,
                .rows = rows,
                .turns = turns});
  multiply_heads(*stream_,
                 {.x = q,
                  .x_stride = q_stride,
                  .x_each = c.query_dim(),
                  .out = to.queries.data(),
                  .out_stride = act_->q_size,
                  .out_each = config_.head_dim,
                  .rows = rows,
                  .heads = heads,
                  .n = c.kv_rank},
                 w.latent.key_up.view());
}

void CudaModel::queue_values(const DeviceLayer& w, int64_t rows) {
  const LatentConfig& c = *config_.latent;
  const int64_t heads = plan_.query_heads.size();
  multiply_heads(*stream_,
                 {.x = act_->attended.data(),
                  .x_stride = heads * c.kv_rank,
                  .x_each = c.kv_rank,
                  .is_x_float = false,
                  .out = act_->latent.values.data(),
                  .out_stride = heads * c.value_dim,
                  .out_each = c.value_dim,
                  .rows = rows,
                  .heads = heads,
                  .n = c.value_dim},
                 w.latent.value_up.view());
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
  if (w.router.size() > 0) return queue_experts(w, rows);
  const int64_t columns = w.gate_up.n() / 2;
  const bool is_gelu = config_.activation == Activation::kGeluTanh;
  if (w.gate_up.is_paired()) {
    multiply(rows, act_->normed.data(), config_.hidden_size, w.gate_up, act_->gate_up.data(), columns, {},
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

// Experts that some row chose are multiplied for all rows, and count as zeros where a row did not choose
// them.
void CudaModel::queue_experts(const DeviceLayer& w, int64_t rows) {
  const ExpertConfig& experts = *config_.experts;
  const ExpertColumns columns = expert_columns(experts, plan_.shard);
  choose_experts(*stream_, {.x = act_->normed.data(),
                            .type = weights_.types.activation(),
                            .rows = rows,
                            .hidden = config_.hidden_size,
                            .router = w.router.data(),
                            .bias = w.router_bias.data(),
                            .correction = w.correction.data(),
                            .has_shared = experts.shared_intermediate_size > 0,
                            .shared_gate = w.shared_gate.data(),
                            .experts = static_cast<int32_t>(experts.count),
                            .chosen = static_cast<int32_t>(experts.chosen),
                            .is_sigmoid = experts.score == RouterScore::kSigmoid,
                            .groups = static_cast<int32_t>(experts.groups),
                            .groups_chosen = static_cast<int32_t>(experts.groups_chosen),
                            .renormalise = experts.renormalise,
                            .factor = static_cast<float>(experts.factor),
                            .weights = act_->expert_weights.data()});
  const ChosenWork chosen = queue_choice(w, columns, rows);
  multiply(rows, act_->normed.data(), config_.hidden_size, w.gate_up, act_->gate_up.data(),
           2 * columns.size(), {.tiles = chosen.tiles, .counts = chosen.counts});
  gate_experts(*stream_, act_->gate_up.data(),
               {.bias = w.gate_up_bias.data(),
                .is_clamped = config_.activation == Activation::kClampedSwish,
                .factor = static_cast<float>(config_.scales.gate_factor),
                .limit = static_cast<float>(config_.scales.gate_limit)},
               act_->expert_weights.data(), columns, rows, weights_.types.activation(),
               act_->activated.data());
  multiply(rows, act_->activated.data(), columns.size(), w.down, act_->partial.data(), config_.hidden_size,
           {.steps = chosen.steps, .counts = chosen.counts});
  // Every rank has the whole residual stream, which the experts join next.
  if (experts.biases)
    add_expert_biases(*stream_, act_->expert_weights.data(), w.expert_down_bias.data(),
                      static_cast<int32_t>(experts.count), rows, config_.hidden_size,
                      static_cast<float>(config_.scales.residual), act_->residual.data());
}

// What the rows need of the experts' matrices. Of stacks all is read.
ChosenWork CudaModel::queue_choice(const DeviceLayer& w, const ExpertColumns& columns, int64_t rows) {
  if (w.gate_up.matrices().size() != 1 || w.down.matrices().size() != 1 || columns.size() == 0) return {};
  const MatrixView& gate_up = w.gate_up.matrices().front().view();
  const MatrixView& down = w.down.matrices().front().view();
  int32_t* const counts = expert_work_.data();
  int32_t* const tiles = counts + 1 + kMaxSlices;
  int32_t* const steps = tiles + (gate_up.n + kTileRows - 1) / kTileRows;
  list_chosen(*stream_, {.weights = act_->expert_weights.data(),
                         .rows = rows,
                         .columns = columns,
                         .gate_up_rows = gate_up.n,
                         .down_slices = down.slices,
                         .down_columns = down.columns,
                         .tiles = tiles,
                         .steps = steps,
                         .counts = counts});
  return {.tiles = tiles, .steps = steps, .counts = counts};
}

}  // namespace outrider::cuda
