#include "model/cuda/layer_parts.h"

#include "kernels/cuda/latent_ops.h"
#include "model_files/latent_config.h"

namespace outrider::cuda {
namespace {

// Queues the list of expert weights that these rows need. Stacked matrices are read whole, without a list.
ChosenWork queue_choice(StreamView stream, const DeviceLayer& w, const ExpertColumns& columns, int64_t rows,
                        const MixtureRoom& room) {
  if (w.gate_up.matrices().size() != 1 || w.down.matrices().size() != 1 || columns.size() == 0) return {};
  const MatrixView& gate_up = w.gate_up.matrices().front().view();
  const MatrixView& down = w.down.matrices().front().view();
  int32_t* const counts = room.work;
  int32_t* const tiles = counts + 1 + kMaxSlices;
  int32_t* const steps = tiles + (gate_up.n + kTileRows - 1) / kTileRows;
  list_chosen(stream, {.weights = room.weights,
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

}  // namespace

void Products::multiply(int64_t rows, const void* x, int64_t x_stride, const DeviceStack& weight, float* out,
                        int64_t out_stride, const ChosenWork& chosen, const GatedOutput& gated) const {
  for (const DeviceMatrix& matrix : weight.matrices()) {
    const MatrixView& m = matrix.view();
    MatmulShape shape{.rows = rows,
                      .x_stride = x_stride,
                      .out_stride = out_stride,
                      .split = split,
                      .chosen = chosen,
                      .gated = gated,
                      .multiprocessors = device.multiprocessors,
                      .shared_bytes = device.shared_bytes};
    const void* inputs = x;
    if (m.columns) {
      shape.x_stride = round_up(m.slices.k(), kAlignedInputs);
      gather_columns(stream, rows, static_cast<const bf16*>(x), x_stride, m, gathered, shape.x_stride);
      inputs = gathered;
    }
    matmul(stream, shape, inputs, m, out);
    if (out) out += m.n;  // what is gated is of one matrix
  }
}

int64_t expert_work_size(const DeviceLayer& layer) {
  if (layer.router.size() == 0) return 0;
  int64_t size = 1 + kMaxSlices + (layer.gate_up.n() + kTileRows - 1) / kTileRows;
  for (const DeviceMatrix& down : layer.down.matrices()) size += down.view().slices.steps();
  return size;
}

// Experts that some row chose are multiplied for all rows, and count as zeros where a row did not choose
// them.
void LayerParts::queue_mixture(const DeviceLayer& w, const void* normed, int64_t rows,
                               const MixtureRoom& room, float* out) const {
  const ExpertConfig& experts = *config.experts;
  const ExpertColumns columns = expert_columns(experts, plan.shard);
  const StreamView stream = products.stream;
  choose_experts(stream, {.x = normed,
                          .type = activation,
                          .rows = rows,
                          .hidden = config.hidden_size,
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
                          .added = static_cast<float>(experts.added),
                          .weights = room.weights});
  const ChosenWork chosen = queue_choice(stream, w, columns, rows, room);
  products.multiply(rows, normed, config.hidden_size, w.gate_up, room.gate_up, 2 * columns.size(),
                    {.tiles = chosen.tiles, .counts = chosen.counts});
  gate_experts(stream, room.gate_up,
               {.bias = w.gate_up_bias.data(),
                .is_clamped = config.activation == Activation::kClampedSwish,
                .factor = static_cast<float>(config.scales.gate_factor),
                .limit = static_cast<float>(config.scales.gate_limit)},
               room.weights, columns, rows, activation, room.activated);
  products.multiply(rows, room.activated, columns.size(), w.down, out, config.hidden_size,
                    {.steps = chosen.steps, .counts = chosen.counts});
}

// A head's query goes through the matrix that would make keys of latents.
void LayerParts::queue_latents(const DeviceLayer& w, const DeviceBatch& batch, const KvLayer& kv,
                               const RopeTables& rope, const void* normed, int64_t rows,
                               const LatentRoom& room) const {
  const LatentConfig& c = *config.latent;
  const LatentActivations& to = room.heads;
  const auto heads = static_cast<int32_t>(plan.query_heads.size());
  if (heads == 0) return;  // more ranks than heads: nothing is cached
  const LatentTurns turns{.pairs = rope.turned,
                          .interleaved = c.interleaved,
                          .cosines = rope.cosines.data(),
                          .sines = rope.sines.data()};
  const bool has_latent = c.q_rank > 0;
  products.multiply(rows, normed, config.hidden_size, w.qkv, room.latents, room.stride);
  store_latents(products.stream, batch, kv,
                {.latents = room.latents,
                 .stride = room.stride,
                 .kv_begin = room.stride - config.head_dim,
                 .kv_norm = w.latent.kv_norm.data(),
                 .q_rank = c.q_rank,
                 .q_norm = w.latent.q_norm.data(),
                 .q_latent = to.q_latent.data(),
                 .type = activation,
                 .rows = rows,
                 .epsilon = kLatentEpsilon,
                 .turns = turns});
  const float* q = has_latent ? to.q.data() : room.latents;
  const int64_t q_stride = has_latent ? heads * c.query_dim() : room.stride;
  if (has_latent) products.multiply(rows, to.q_latent.data(), c.q_rank, w.latent.q, to.q.data(), q_stride);
  turn_queries(products.stream, batch,
               {.q = q,
                .stride = q_stride,
                .each = static_cast<int32_t>(c.query_dim()),
                .from = static_cast<int32_t>(c.nope_dim),
                .queries = to.queries.data(),
                .to_each = static_cast<int32_t>(config.head_dim),
                .to = static_cast<int32_t>(c.kv_rank),
                .heads = heads,
                .rows = rows,
                .turns = turns});
  multiply_heads(products.stream,
                 {.x = q,
                  .x_stride = q_stride,
                  .x_each = c.query_dim(),
                  .out = to.queries.data(),
                  .out_stride = heads * config.head_dim,
                  .out_each = config.head_dim,
                  .rows = rows,
                  .heads = heads,
                  .n = c.kv_rank},
                 w.latent.key_up.view());
}

void LayerParts::queue_values(const DeviceLayer& w, const void* attended, int64_t rows,
                              const LatentRoom& room) const {
  const LatentConfig& c = *config.latent;
  const int64_t heads = plan.query_heads.size();
  multiply_heads(products.stream,
                 {.x = attended,
                  .x_stride = heads * c.kv_rank,
                  .x_each = c.kv_rank,
                  .is_x_float = false,
                  .out = room.heads.values.data(),
                  .out_stride = heads * c.value_dim,
                  .out_each = c.value_dim,
                  .rows = rows,
                  .heads = heads,
                  .n = c.value_dim},
                 w.latent.value_up.view());
}

}  // namespace outrider::cuda
