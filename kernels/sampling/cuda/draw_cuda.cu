// Draws of draft_sampler.h from processed rows, and the way of a drawn token into the next step.
#include "base/short_weight.h"
#include "kernels/sampling/cuda/block_ops.h"
#include "kernels/sampling/cuda/draw_batch.h"
#include "kernels/sampling/ordered_key.h"

namespace outrider::cuda {
namespace {

__device__ __forceinline__ uint16_t* q_of(const DrawBatch& b, const DrawState& state) {
  return reinterpret_cast<uint16_t*>(b.q + state.first_q + state.step * state.q_stride);
}

__device__ __forceinline__ uint64_t sum_parts(const DrawBatch& b, const uint64_t* parts, int stride = 1) {
  return sum_block(thread() < b.parts ? parts[thread() * stride] : 0);
}

__global__ void __launch_bounds__(kThreads) weigh_part(const DrawBatch b) {
  await_inputs();
  const auto r = static_cast<int32_t>(blockIdx.y);
  if (b.state[r].kept != KeptQ::kDense || has_failed(b, r)) return;
  const float* logits = logits_of(b, r);
  uint16_t* q = q_of(b, b.state[r]);
  uint64_t sum = 0;
  for_each_token(b, [&](int32_t i) {
    const uint32_t weight = round_to_short_weight(draft_weight(logits[i], b.max[r]));
    q[i] = short_weight_bits(weight);
    sum += weight;
  });
  sum = sum_block(sum);
  if (thread() == 0) b.q_parts[r * kMaxParts + static_cast<int32_t>(blockIdx.x)] = sum;
}

__global__ void __launch_bounds__(kThreads) measure_part(const DrawBatch b) {
  await_inputs();
  const auto r = static_cast<int32_t>(blockIdx.y);
  if (has_failed(b, r)) return;
  const float* logits = logits_of(b, r);
  uint64_t mass = 0, moment = 0;
  for_each_token(b, [&](int32_t i) {
    const uint64_t weight = fixed_weight(logits[i], b.max[r]);
    mass += weight;
    moment += entropy_moment(weight, logits[i], b.max[r]);
  });
  mass = sum_block(mass);
  moment = sum_block(moment);
  uint64_t* parts = b.moment_parts + 2 * (r * kMaxParts + static_cast<int32_t>(blockIdx.x));
  if (thread() == 0) {
    parts[0] = mass;
    parts[1] = moment;
  }
}

// The inverse CDF over the weights that are kept, in the order of ids.
__device__ int32_t draw_from_weights(const DrawBatch& b, int32_t r, uint64_t sum) {
  const RowInput& in = b.row[r];
  const uint16_t* q = q_of(b, b.state[r]);
  const uint64_t target = multiply_high(uniform_bits(in, Purpose::kDraft, in.round), sum);
  return find_token(b.q_parts + r * kMaxParts, b.parts, b.width, target,
                    [&](int32_t i) { return static_cast<uint64_t>(weight_of_short_bits(q[i])); });
}

// The token joins those that penalties count as drafted, with its committed counts.
__device__ void count_drafted(const DrawBatch& b, int32_t r, int32_t token) {
  const RequestInput& request = b.request[r];
  if (!request.penalised) return;
  CountedToken& to = b.all_counted[request.first_drafted + b.row[r].drafted];
  if (thread() == 0) to = {.local = token, .id = token};
  sync_block();
  for (int32_t c = thread(); c < request.counts; c += kThreads)
    if (b.counted[request.first_count + c].id == token) to = b.counted[request.first_count + c];
}

__global__ void __launch_bounds__(kThreads) draw_row(const DrawBatch b, bool measured) {
  await_inputs();
  const auto r = static_cast<int32_t>(blockIdx.x);
  Drawn drawn;
  if (!has_failed(b, r)) {
    if (measured) {
      drawn.mass = sum_parts(b, b.moment_parts + 2 * r * kMaxParts, 2);
      drawn.moment = sum_parts(b, b.moment_parts + 2 * r * kMaxParts + 1, 2);
    }
    const KeptQ kept = b.state[r].kept;
    if (kept == KeptQ::kNone) {
      drawn.id = RankedToken{b.best[r]}.id().value();
    } else if (kept == KeptQ::kDense) {
      drawn.q.sum = sum_parts(b, b.q_parts + r * kMaxParts);
      drawn.id = draw_from_weights(b, r, drawn.q.sum);
      drawn.q.drawn = weight_of_short_bits(q_of(b, b.state[r])[drawn.id]);
    } else {
      drawn.q = b.compact[r].q;
      drawn.id = b.compact[r].id;
    }
    drawn.weight = fixed_weight(logits_of(b, r)[drawn.id], b.max[r]);
    count_drafted(b, r, drawn.id);
  }
  sync_block();  // everyone has read the state
  if (thread() != 0) return;
  DrawState& state = b.state[r];
  RowInput& in = b.inputs[r];
  b.drawn[state.step * b.drawn_stride + r] = drawn;
  state.token = drawn.id < 0 ? 0 : drawn.id;
  ++state.step;
  ++in.position;
  ++in.drafted;
  in.logits_row = r;  // steps after the first have a row of logits each
}

__global__ void __launch_bounds__(kRequestThreads)
    feed_row(const DrawBatch b, int32_t* tokens, int32_t* positions) {
  await_inputs();
  const int32_t r = request_of_thread();
  if (r >= b.rows) return;
  tokens[r] = b.state[r].token;
  positions[r] = b.row[r].position - 1;
}

}  // namespace

void weigh_rows(StreamView stream, const DrawBatch& b) {
  launch(stream, parts_by_rows(b, b.rows), &weigh_part, b);
}

void measure_rows(StreamView stream, const DrawBatch& b) {
  launch(stream, parts_by_rows(b, b.rows), &measure_part, b);
}

void draw_rows(StreamView stream, const DrawBatch& b, bool measured) {
  launch(stream, one_block_each(b.rows), &draw_row, b, measured);
}

void feed_rows(StreamView stream, const DrawBatch& b, int32_t* tokens, int32_t* positions) {
  LaunchShape shape = one_thread_each(b.rows);
  shape.early = false;  // the first kernel of a recorded step, which has none in front of it to overlap with
  launch(stream, shape, &feed_row, b, tokens, positions);
}

}  // namespace outrider::cuda
