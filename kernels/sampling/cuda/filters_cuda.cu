// Top-k, top-p and min-p in place: what does not survive becomes -inf. Exactly the tokens that filters.h
// keeps; the cut is always found byte by byte of the key.
#include "kernels/sampling/cuda/block_ops.h"
#include "kernels/sampling/cuda/row_steps.h"
#include "kernels/sampling/ordered_key.h"

namespace outrider::cuda {
namespace {

constexpr int kBins = 256;
static_assert(kBins == kThreads);

__device__ __forceinline__ uint64_t search_weight(float logit, float max, bool by_mass) {
  if (by_mass) return fixed_weight(logit, max);
  return logit != kMinusInfinity ? 1 : 0;
}

// Sums of 64 bits in shared memory, as halves: there, devices add 32 bits at once and 64 in a loop. Most
// logits of a row have one of few first bytes, so neighbours add to copies of their own, in banks of their
// own.
struct Bins {
  static constexpr int kCopies = 8;
  uint32_t low[kBins][kCopies], high[kBins][kCopies];

  __device__ __forceinline__ void clear() {
    OUTRIDER_UNROLL
    for (int i = 0; i < kCopies; ++i)
      (&low[0][0])[i * kBins + thread()] = (&high[0][0])[i * kBins + thread()] = 0;
  }
  __device__ __forceinline__ void add(uint32_t bin, uint64_t weight) {
    const int copy = thread() % kCopies;
    const auto part = static_cast<uint32_t>(weight);
    const uint32_t before = atomic_add(&low[bin][copy], part);
    const uint32_t rest = static_cast<uint32_t>(weight >> 32) + (before + part < before ? 1 : 0);
    if (rest > 0) atomic_add(&high[bin][copy], rest);
  }
  __device__ __forceinline__ uint64_t sum(int bin) const {
    uint64_t sum = 0;
    OUTRIDER_UNROLL
    for (int i = 0; i < kCopies; ++i) sum += static_cast<uint64_t>(high[bin][i]) << 32 | low[bin][i];
    return sum;
  }
};

__device__ __forceinline__ uint64_t* bins_of(const RowBatch& b, const SearchTask& task, int byte, int32_t s) {
  return b.bins + (static_cast<int64_t>(byte) * task.count + s) * kBins;
}
__device__ __forceinline__ Search& search_of(const RowBatch& b, const SearchTask& task, int byte, int32_t s) {
  return b.searches[byte * task.count + s];
}

// The search once `bytes` bytes of the key are known, in every thread: the bin in which the wanted prefix
// ends gives the last of these bytes. Every block of a row computes it from the previous kernel's results,
// and the first block stores it for the next kernel.
__device__ __forceinline__ Search search_after(const RowBatch& b, const SearchTask& task, int bytes,
                                               int32_t s) {
  const int32_t r = task.rows[s];
  Search search;
  if (bytes > 1) search = search_of(b, task, bytes - 1, s);
  if (has_failed(b, r)) search.keep_all = 1;
  if (bytes > 0 && !search.keep_all) {
    const uint64_t* bins = bins_of(b, task, bytes - 1, s);
    const uint64_t mine = bins[thread()], total = sum_block(mine);
    if (bytes == 1)
      search.need = task.by_mass ? top_p_mass(b.row[r].top_p, total) : static_cast<uint64_t>(b.row[r].top_k);
    const Found found = total < search.need ? Found{} : find_share(mine, total - search.need);
    if (found.index < 0)
      search.keep_all = 1;
    else
      search = {bins[found.index] - found.rest, search.prefix << 8 | static_cast<uint32_t>(found.index), 0};
  }
  if (bytes > 0 && blockIdx.x == 0 && thread() == 0) search_of(b, task, bytes, s) = search;
  return search;
}

// Adds this part to the bins of the tokens that share the bytes known so far.
__global__ void __launch_bounds__(kThreads) bins_of_part(const RowBatch b, const SearchTask task, int byte) {
  await_inputs();
  const auto s = static_cast<int32_t>(blockIdx.y);
  const int32_t r = task.rows[s];
  const Search search = search_after(b, task, byte, s);
  if (byte == 0 && blockIdx.x == 0 && thread() == 0) b.ties[s] = 0;
  if (search.keep_all) return;
  Bins& bins = *shared_memory<Bins>();
  bins.clear();
  sync_block();
  const float* logits = logits_of(b, r);
  const int shift = 24 - 8 * byte;
  for_each_token(b, [&](int32_t i) {
    const uint32_t key = ordered_key(logits[i]);
    if (byte > 0 && key >> (shift + 8) != search.prefix) return;
    const uint64_t weight = search_weight(logits[i], b.max[r], task.by_mass);
    if (weight > 0) bins.add(key >> shift & 255, weight);
  });
  sync_block();
  if (const uint64_t sum = bins.sum(thread()); sum > 0) atomic_add(&bins_of(b, task, byte, s)[thread()], sum);
}

__global__ void __launch_bounds__(kThreads) ties_of_part(const RowBatch b, const SearchTask task) {
  await_inputs();
  const auto s = static_cast<int32_t>(blockIdx.y);
  const int32_t r = task.rows[s];
  const Search search = search_after(b, task, kKeyBytes, s);
  if (search.keep_all) return;
  const float* logits = logits_of(b, r);
  const float cut = value_of_key(search.prefix);
  uint64_t count = 0;
  for_each_token(b, [&](int32_t i) { count += logits[i] == cut; });
  count = sum_block(count);
  if (thread() != 0) return;
  b.part_values[r * kMaxParts + static_cast<int32_t>(blockIdx.x)] = count;
  if (count > 0) atomic_add(&b.ties[s], count);
}

// How many of this rank's tokens at the cut stay, lowest ids first. They have one logit and so one weight: as
// many as are needed.
__device__ __forceinline__ uint64_t kept_ties(const RowBatch& b, const SearchTask& task, const Search& search,
                                              int32_t s, float cut) {
  const uint64_t weight = task.by_mass ? fixed_weight(cut, b.max[task.rows[s]]) : 1;
  const uint64_t wanted = weight > 1 ? (search.need + weight - 1) / weight : search.need;
  uint64_t before = 0;  // on lower ranks
  for (int32_t rank = 0; rank < b.rank; ++rank) before += b.all_ties[rank * task.count + s];
  return wanted > before ? wanted - before : 0;
}

// Where the ties of this block's part end that stay.
__device__ __forceinline__ int32_t tie_end(const RowBatch& b, const float* logits, float cut, uint64_t kept,
                                           const uint64_t* ties_of_parts) {
  const auto part = static_cast<int32_t>(blockIdx.x);
  const uint64_t before = sum_block(thread() < part ? ties_of_parts[thread()] : 0);
  if (kept <= before) return 0;
  if (kept - before >= ties_of_parts[part]) return b.width;
  return 1 + find_in_part(part, b.width, kept - before - 1,
                          [&](int32_t i) { return static_cast<uint64_t>(logits[i] == cut); });
}

// The next search finds the bins empty.
__global__ void __launch_bounds__(kThreads) cut_part(const RowBatch b, const SearchTask task) {
  await_inputs();
  const auto s = static_cast<int32_t>(blockIdx.y);
  const int32_t r = task.rows[s];
  if (blockIdx.x == 0)
    for (int byte = 0; byte < kKeyBytes; ++byte) bins_of(b, task, byte, s)[thread()] = 0;
  const Search search = search_of(b, task, kKeyBytes, s);
  if (search.keep_all) return;
  float* logits = logits_of(b, r);
  const float cut = value_of_key(search.prefix);
  const int32_t end =
      tie_end(b, logits, cut, kept_ties(b, task, search, s, cut), b.part_values + r * kMaxParts);
  sync_block();  // the ties are counted
  for_each_token(b, [&](int32_t i) {
    const bool stays = i < end ? logits[i] >= cut : logits[i] > cut;
    if (!stays) logits[i] = kMinusInfinity;
  });
}

// p >= min_p * p_max: the best token weighs 2^44, and renormalising changes no ratio.
__global__ void __launch_bounds__(kThreads) min_p_of_part(const RowBatch b) {
  await_inputs();
  const int32_t r = b.min_p_rows[blockIdx.y];
  if (has_failed(b, r)) return;
  float* logits = logits_of(b, r);
  const double bound = static_cast<double>(b.row[r].min_p) * 0x1p44;
  for_each_token(b, [&](int32_t i) {
    if (static_cast<double>(fixed_weight(logits[i], b.max[r])) < bound) logits[i] = kMinusInfinity;
  });
}

}  // namespace

void count_bins(StreamView stream, const RowBatch& b, const SearchTask& task, int byte) {
  static_assert(sizeof(Bins) >= sizeof(BlockMemory));
  LaunchShape shape = parts_by_rows(b, task.count);
  shape.shared_bytes = sizeof(Bins);
  launch(stream, shape, &bins_of_part, b, task, byte);
}

uint64_t* searched_bins(const RowBatch& b, const SearchTask& task, int byte) {
  return b.bins + static_cast<int64_t>(byte) * task.count * kBins;
}

void count_ties(StreamView stream, const RowBatch& b, const SearchTask& task) {
  launch(stream, parts_by_rows(b, task.count), &ties_of_part, b, task);
}

void cut(StreamView stream, const RowBatch& b, const SearchTask& task) {
  launch(stream, parts_by_rows(b, task.count), &cut_part, b, task);
}

void cut_min_p(StreamView stream, const RowBatch& b) {
  launch(stream, parts_by_rows(b, b.min_p_count), &min_p_of_part, b);
}

}  // namespace outrider::cuda
