// compact_row.h on the device, and the draw from what it made; bit for bit the host's. The tokens that the
// row may list are found by the cut that filters make, on numbers that are ordered like the weights.
#include "kernels/sampling/compact_units.h"
#include "kernels/sampling/cuda/block_ops.h"
#include "kernels/sampling/cuda/draw_batch.h"
#include "kernels/sampling/ordered_key.h"

namespace outrider::cuda {
namespace {

// A finite number for every weight from 1 to 2^31, ordered like it; -0 would be equal to +0.
constexpr uint32_t kFirstKey = kMinusInfinityKey + 1, kZeroKey = 0x80000000;
__device__ __forceinline__ float rank_of_weight(uint32_t weight) {
  if (weight == 0) return kMinusInfinity;
  const uint32_t key = kFirstKey + weight;
  return value_of_key(key + (key >= kZeroKey - 1));
}
__device__ __forceinline__ uint32_t weight_of_rank(float rank) {
  const uint32_t key = ordered_key(rank);
  return key - (key >= kZeroKey) - kFirstKey;
}

__device__ __forceinline__ float* ranks_of(const DrawBatch& b, int32_t r) {
  return b.ranks + static_cast<int64_t>(r) * b.width;
}
__device__ __forceinline__ uint32_t* entries_of(const DrawBatch& b, int32_t r) {
  return b.entries + 2 * static_cast<int64_t>(r) * b.most_entries;
}

__global__ void __launch_bounds__(kThreads) rank_part(const DrawBatch b) {
  await_inputs();
  const int32_t r = b.compact_rows[blockIdx.y];
  if (has_failed(b, r)) return;
  const float* logits = logits_of(b, r);
  float* ranks = ranks_of(b, r);
  uint64_t sum = 0, zeros = 0;
  for_each_token(b, [&](int32_t i) {
    const uint32_t weight = draft_weight(logits[i], b.max[r]);
    ranks[i] = rank_of_weight(weight);
    sum += weight;
    zeros += weight == 0;
  });
  sum = sum_block(sum);
  zeros = sum_block(zeros);
  const int32_t part = r * kMaxParts + static_cast<int32_t>(blockIdx.x);
  if (thread() == 0) {
    b.q_parts[part] = sum;
    b.zeros[part] = zeros;
  }
}

__global__ void __launch_bounds__(kThreads) count_part(const DrawBatch b) {
  await_inputs();
  const int32_t r = b.compact_rows[blockIdx.y];
  if (has_failed(b, r)) return;
  const float* ranks = ranks_of(b, r);
  uint64_t count = 0;
  for_each_token(b, [&](int32_t i) { count += ranks[i] != kMinusInfinity; });
  count = sum_block(count);
  if (thread() == 0) b.part_values[r * kMaxParts + static_cast<int32_t>(blockIdx.x)] = count;
}

// The tokens that the cut left, in the order of their ids.
__global__ void __launch_bounds__(kThreads) gather_part(const DrawBatch b) {
  await_inputs();
  const int32_t r = b.compact_rows[blockIdx.y];
  if (has_failed(b, r)) return;
  const float* ranks = ranks_of(b, r);
  const bool is_before = thread() < static_cast<int>(blockIdx.x);
  const uint64_t first = sum_block(is_before ? b.part_values[r * kMaxParts + thread()] : 0);
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * kPartTokens + thread() * kTokensPerThread;
  const int32_t end = begin + kTokensPerThread < b.width ? begin + kTokensPerThread : b.width;
  uint64_t count = 0;
  for (int32_t i = begin; i < end; ++i) count += ranks[i] != kMinusInfinity;
  uint64_t at = first + sum_before(count);
  uint32_t *ids = entries_of(b, r), *weights = ids + b.most_entries;
  for (int32_t i = begin; i < end; ++i) {
    if (ranks[i] == kMinusInfinity) continue;
    ids[at] = static_cast<uint32_t>(i);
    weights[at++] = weight_of_rank(ranks[i]);
  }
}

// A thread's share of the gathered tokens: neighbours.
struct Share {
  const uint32_t *ids, *weights;
  int32_t begin, end;
};

// Bits that the row takes on the wire without tokens of less than half a unit, as the host's bits_of counts.
__device__ int64_t bits_of(const Share& share, uint32_t unit, uint64_t id_end) {
  const uint32_t least = least_listed(unit);
  uint64_t count = 0, last = 0;  // last: one more than the id
  for (int32_t i = share.begin; i < share.end; ++i) {
    if (share.weights[i] < least) continue;
    ++count;
    last = share.ids[i] + 1;
  }
  auto next = static_cast<uint32_t>(max_before(last));
  count = sum_block(count);
  last = max_block(last);
  const int k = gap_parameter(id_end > 0 ? id_end : last, count);
  int64_t bits = 0;
  for (int32_t i = share.begin; i < share.end; ++i) {
    if (share.weights[i] < least) continue;
    bits += rice_bits(share.ids[i] - next, k) + elias_gamma_bits(units_of(share.weights[i], unit));
    next = share.ids[i] + 1;
  }
  return 8 * varint_bytes(count) + static_cast<int64_t>(sum_block(static_cast<uint64_t>(bits)));
}

// This thread's share of the `count` gathered tokens.
__device__ __forceinline__ Share share_of_thread(const DrawBatch& b, int32_t r, int32_t count) {
  const uint32_t* entries = entries_of(b, r);
  const int32_t each = (count + kThreads - 1) / kThreads, begin = thread() * each;
  return {entries, entries + b.most_entries, begin, begin + each < count ? begin + each : count};
}

__device__ __forceinline__ uint64_t sum_parts(const DrawBatch& b, int32_t r, const uint64_t* parts) {
  return sum_block(thread() < b.parts ? parts[r * kMaxParts + thread()] : 0);
}

// Where ids end: the others have a weight, too, unless most tokens have none.
__device__ __forceinline__ uint32_t id_end_of(const DrawBatch& b, int32_t r) {
  const uint64_t zeros = sum_parts(b, r, b.zeros);
  return 2 * zeros < static_cast<uint64_t>(b.width) ? static_cast<uint32_t>(b.width) : 0;
}

// The host's search for the smallest unit that fits, which looks at one unit after the other. Here the looks
// that its next kLooks steps may want have a block each, so that a row takes the time of kTurns looks.
constexpr int kLooks = 4, kNodes = 1 << kLooks, kTurns = 2;
static_assert(kUnits < 1 << kLooks * kTurns);
struct UnitSearch {
  int fits = kUnits, too_fine = -1;

  __device__ __forceinline__ bool is_over() const { return fits - too_fine <= 1; }
  __device__ __forceinline__ int middle() const { return too_fine + (fits - too_fine) / 2; }
  __device__ __forceinline__ void step(bool middle_fits) { (middle_fits ? fits : too_fine) = middle(); }
  // Goes to a node of the tree of the next candidates: 1 is the root; node n is followed by 2 n + 1 where it
  // fits, else by 2 n.
  __device__ __forceinline__ void go_to(int node) {
    int depth = 0;
    while (node >> (depth + 1) > 0) ++depth;
    while (depth-- > 0 && !is_over()) step((node >> depth & 1) == 1);
  }
  // The looks of a turn are known by node.
  __device__ __forceinline__ void replay(const uint8_t* known) {
    for (int node = 1; node < kNodes && !is_over();) {
      const bool middle_fits = known[node] != 0;
      step(middle_fits);
      node = 2 * node + (middle_fits ? 1 : 0);
    }
  }
};
static_assert(kTurns * kNodes == DrawBatch::kUnitLooks);

// Grid: nodes but for the first number, rows.
__global__ void __launch_bounds__(kThreads) look_at_units(const DrawBatch b, int turn) {
  await_inputs();
  const int32_t r = b.compact_rows[blockIdx.y];
  if (has_failed(b, r)) return;
  uint8_t* looks = b.unit_looks + r * DrawBatch::kUnitLooks;
  UnitSearch search;
  for (int before = 0; before < turn; ++before) search.replay(looks + before * kNodes);
  const int node = static_cast<int>(blockIdx.x) + 1;
  search.go_to(node);
  if (search.is_over()) return;
  const auto gathered = static_cast<int32_t>(sum_parts(b, r, b.part_values));
  const int64_t bits = bits_of(share_of_thread(b, r, gathered), unit_at(search.middle()), id_end_of(b, r));
  if (thread() == 0) looks[turn * kNodes + node] = bits <= b.state[r].budget_bits;
}

__device__ uint32_t fitting_unit(const uint8_t* looks) {
  auto* known = reinterpret_cast<uint8_t*>(shared_memory<BlockMemory>()->values);
  if (thread() < DrawBatch::kUnitLooks) known[thread()] = looks[thread()];
  sync_block();
  UnitSearch search;
  for (int turn = 0; turn < kTurns; ++turn) search.replay(known + turn * kNodes);
  sync_block();
  return unit_at(search.fits);
}

// The index-th id that is not in the list: index, plus the number of listed ids before it.
__device__ uint32_t unlisted_id(const uint32_t* ids, int32_t count, uint64_t index) {
  int32_t low = 0, high = count;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (ids[middle] - static_cast<uint32_t>(middle) <= index)
      low = middle + 1;
    else
      high = middle;
  }
  return static_cast<uint32_t>(index) + static_cast<uint32_t>(low);
}

// From the listed tokens in the order of their ids, then the others. `first`, `count`: this thread's.
__device__ void draw(const DrawBatch& b, int32_t r, const uint32_t* ids, const uint32_t* weights,
                     uint64_t first, uint64_t count, const QHead& q) {
  const RowInput& in = b.row[r];
  const uint64_t target = multiply_high(uniform_bits(in, Purpose::kDraft, in.round), q.sum);
  uint64_t share = 0;
  for (uint64_t i = first; i < first + count; ++i) share += weights[i];
  const uint64_t listed = sum_block(share);
  const Found found = find_share(share, target);
  uint32_t id = 0;
  if (found.index == thread()) {
    uint64_t at = first;
    for (uint64_t rest = found.rest; weights[at] <= rest; ++at) rest -= weights[at];
    id = ids[at];
  } else if (found.index < 0 && thread() == 0) {
    id = unlisted_id(ids, q.entries, (target - listed) / q.rest);
  } else {
    return;
  }
  b.compact[r] = {q, static_cast<int32_t>(id)};
}

__global__ void __launch_bounds__(kThreads) fit_row(const DrawBatch b) {
  await_inputs();
  const int32_t r = b.compact_rows[blockIdx.x];
  if (has_failed(b, r)) return;
  const uint64_t total = sum_parts(b, r, b.q_parts);
  const Share share = share_of_thread(b, r, static_cast<int32_t>(sum_parts(b, r, b.part_values)));
  const DrawState& state = b.state[r];
  const uint32_t id_end = id_end_of(b, r);
  const bool has_rest = id_end > 0;
  const uint32_t unit = fitting_unit(b.unit_looks + r * DrawBatch::kUnitLooks);

  uint64_t count = 0, mass = 0, units = 0, largest = 0;
  for (int32_t i = share.begin; i < share.end; ++i) {
    const uint32_t own = units_of(share.weights[i], unit);
    if (own == 0) continue;
    ++count;
    mass += share.weights[i];
    units += own;
    largest = own > largest ? own : largest;
  }
  const uint64_t first = sum_before(count);
  mass = sum_block(mass);
  units = sum_block(units);
  largest = max_block(largest);
  QHead q{.entries = static_cast<int32_t>(sum_block(count)), .rest = has_rest, .id_end = id_end};
  const uint64_t others = has_rest ? id_end - static_cast<uint64_t>(q.entries) : 0;
  const uint32_t per_unit =
      has_rest ? weight_of_unit(mass, total, units, static_cast<uint32_t>(largest), others) : 1;
  q.sum = units * per_unit + others;

  auto* ids = reinterpret_cast<uint32_t*>(b.q + state.first_q + state.step * state.q_stride);
  uint32_t* weights = ids + state.most_entries;
  uint64_t at = first;
  for (int32_t i = share.begin; i < share.end; ++i) {
    const uint32_t own = units_of(share.weights[i], unit);
    if (own == 0) continue;
    ids[at] = share.ids[i];
    weights[at++] = own * per_unit;
  }
  sync_block();  // the row is whole
  draw(b, r, ids, weights, first, count, q);
}

}  // namespace

void rank_weights(StreamView stream, const DrawBatch& b) {
  launch(stream, parts_by_rows(b, b.compact_count), &rank_part, b);
}

void draw_compact_rows(StreamView stream, const DrawBatch& b) {
  launch(stream, parts_by_rows(b, b.compact_count), &count_part, b);
  launch(stream, parts_by_rows(b, b.compact_count), &gather_part, b);
  LaunchShape nodes = one_block_each(kNodes - 1);
  nodes.grid_y = static_cast<unsigned>(b.compact_count);
  for (int turn = 0; turn < kTurns; ++turn) launch(stream, nodes, &look_at_units, b, turn);
  launch(stream, one_block_each(b.compact_count), &fit_row, b);
}

}  // namespace outrider::cuda
