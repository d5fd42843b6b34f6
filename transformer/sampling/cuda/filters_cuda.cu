// Top-k, top-p and min-p in place: what does not survive becomes -inf. Exactly the tokens that filters.h
// keeps; the cut is always found byte by byte of the key.
#include "transformer/sampling/cuda/block_ops.h"
#include "transformer/sampling/cuda/row_steps.h"
#include "transformer/sampling/ordered_key.h"

namespace outrider::cuda {
namespace {

constexpr int kBins = 256;
static_assert(kBins == kThreads);

__device__ __forceinline__ uint64_t search_weight(float logit, float max, bool by_mass) {
  if (by_mass) return fixed_weight(logit, max);
  return logit != kMinusInfinity ? 1 : 0;
}

// Sums of 64 bits in shared memory, as halves: there, devices add 32 bits at once and 64 in a loop.
struct Bins {
  uint32_t low[kBins], high[kBins];

  __device__ __forceinline__ void add(uint32_t bin, uint64_t weight) {
    const auto part = static_cast<uint32_t>(weight);
    const uint32_t before = atomic_add(&low[bin], part);
    const uint32_t rest = static_cast<uint32_t>(weight >> 32) + (before + part < before ? 1 : 0);
    if (rest > 0) atomic_add(&high[bin], rest);
  }
  __device__ __forceinline__ uint64_t sum(int bin) const {
    return static_cast<uint64_t>(high[bin]) << 32 | low[bin];
  }
};
static_assert(sizeof(Bins) <= sizeof(BlockMemory));

// Adds this part to the bins of the tokens that share the bytes known so far.
__global__ void __launch_bounds__(kThreads) bins_of_part(const RowBatch b, const SearchTask task, int byte) {
  const auto s = static_cast<int32_t>(blockIdx.y);
  const int32_t r = task.rows[s];
  if (has_failed(b, r) || (byte > 0 && b.searches[s].keep_all)) return;
  Bins& bins = *shared_memory<Bins>();
  bins.low[thread()] = bins.high[thread()] = 0;
  sync_block();
  const float* logits = logits_of(b, r);
  const uint32_t prefix = byte > 0 ? b.searches[s].prefix : 0;
  const int shift = 24 - 8 * byte;
  for_each_token(b, [&](int32_t i) {
    const uint32_t key = ordered_key(logits[i]);
    if (byte > 0 && key >> (shift + 8) != prefix) return;
    const uint64_t weight = search_weight(logits[i], b.max[r], task.by_mass);
    if (weight > 0) bins.add(key >> shift & 255, weight);
  });
  sync_block();
  if (const uint64_t sum = bins.sum(thread()); sum > 0) atomic_add(&b.bins[s * kBins + thread()], sum);
}

// The bin in which the wanted prefix ends becomes the next byte.
__global__ void __launch_bounds__(kThreads) choose_bin(const RowBatch b, const SearchTask task, int byte) {
  const auto s = static_cast<int32_t>(blockIdx.x);
  const int32_t r = task.rows[s];
  uint64_t& bin = b.bins[s * kBins + thread()];
  const uint64_t mine = bin, before = sum_before(mine), total = sum_block(mine);
  bin = 0;
  Search search = b.searches[s];
  if (byte == 0) {
    const auto wanted =
        task.by_mass ? top_p_mass(b.row[r].top_p, total) : static_cast<uint64_t>(b.row[r].top_k);
    search = {.need = wanted, .keep_all = has_failed(b, r) || total < wanted};
  }
  sync_block();  // everyone has read the search
  const uint64_t above = total - before - mine;
  const bool ends_here = above < search.need && search.need - above <= mine;
  if (search.keep_all ? thread() == 0 : ends_here)
    b.searches[s] = {search.need - (search.keep_all ? 0 : above),
                     search.prefix << 8 | static_cast<uint32_t>(thread()), search.keep_all};
}

__global__ void __launch_bounds__(kThreads) ties_of_part(const RowBatch b, const SearchTask task) {
  const auto s = static_cast<int32_t>(blockIdx.y);
  const int32_t r = task.rows[s];
  const float* logits = logits_of(b, r);
  const float cut = value_of_key(b.searches[s].prefix);
  uint64_t count = 0;
  if (!b.searches[s].keep_all) for_each_token(b, [&](int32_t i) { count += logits[i] == cut; });
  count = sum_block(count);
  if (thread() == 0) b.part_values[r * kMaxParts + static_cast<int32_t>(blockIdx.x)] = count;
}

__global__ void __launch_bounds__(kThreads) sum_ties(const RowBatch b, const SearchTask task) {
  const auto s = static_cast<int32_t>(blockIdx.x);
  const uint64_t count =
      sum_block(thread() < b.parts ? b.part_values[task.rows[s] * kMaxParts + thread()] : 0);
  if (thread() == 0) b.ties[s] = count;
}

// Tokens at the cut have one logit and so one weight: as many stay as are needed, lowest ids first.
__global__ void __launch_bounds__(kThreads) find_tie_end(const RowBatch b, const SearchTask task) {
  const auto s = static_cast<int32_t>(blockIdx.x);
  const int32_t r = task.rows[s];
  const Search search = b.searches[s];
  if (search.keep_all) return;
  const float cut = value_of_key(search.prefix);
  const uint64_t weight = task.by_mass ? fixed_weight(cut, b.max[r]) : 1;
  const uint64_t wanted = weight > 1 ? (search.need + weight - 1) / weight : search.need;
  uint64_t before = 0;  // on lower ranks
  for (int32_t rank = 0; rank < b.rank; ++rank) before += b.all_ties[rank * task.count + s];
  int32_t end = 0;
  if (wanted > before) {
    const uint64_t here = wanted - before;
    const float* logits = logits_of(b, r);
    end = here >= b.all_ties[b.rank * task.count + s]
              ? b.width
              : 1 + find_token(b.part_values + r * kMaxParts, b.parts, b.width, here - 1,
                               [&](int32_t i) { return static_cast<uint64_t>(logits[i] == cut); });
  }
  if (thread() == 0) b.tie_ends[s] = end;
}

__global__ void __launch_bounds__(kThreads) cut_part(const RowBatch b, const SearchTask task) {
  const auto s = static_cast<int32_t>(blockIdx.y);
  if (b.searches[s].keep_all) return;
  float* logits = logits_of(b, task.rows[s]);
  const float cut = value_of_key(b.searches[s].prefix);
  const int32_t tie_end = b.tie_ends[s];
  for_each_token(b, [&](int32_t i) {
    const bool stays = i < tie_end ? logits[i] >= cut : logits[i] > cut;
    if (!stays) logits[i] = kMinusInfinity;
  });
}

// p >= min_p * p_max: the best token weighs 2^44, and renormalising changes no ratio.
__global__ void __launch_bounds__(kThreads) min_p_of_part(const RowBatch b) {
  const int32_t r = b.filtered_rows[blockIdx.y];
  if (has_failed(b, r) || !(b.row[r].min_p > 0)) return;
  float* logits = logits_of(b, r);
  const double bound = static_cast<double>(b.row[r].min_p) * 0x1p44;
  for_each_token(b, [&](int32_t i) {
    if (static_cast<double>(fixed_weight(logits[i], b.max[r])) < bound) logits[i] = kMinusInfinity;
  });
}

}  // namespace

void count_bins(StreamView stream, const RowBatch& b, const SearchTask& task, int byte) {
  launch(stream, parts_by_rows(b, task.count), &bins_of_part, b, task, byte);
}

void descend(StreamView stream, const RowBatch& b, const SearchTask& task, int byte) {
  launch(stream, one_block_each(task.count), &choose_bin, b, task, byte);
}

void count_ties(StreamView stream, const RowBatch& b, const SearchTask& task) {
  launch(stream, parts_by_rows(b, task.count), &ties_of_part, b, task);
  launch(stream, one_block_each(task.count), &sum_ties, b, task);
}

void cut(StreamView stream, const RowBatch& b, const SearchTask& task) {
  launch(stream, one_block_each(task.count), &find_tie_end, b, task);
  launch(stream, parts_by_rows(b, task.count), &cut_part, b, task);
}

void cut_min_p(StreamView stream, const RowBatch& b) {
  launch(stream, parts_by_rows(b, b.filtered_count), &min_p_of_part, b);
}

}  // namespace outrider::cuda
