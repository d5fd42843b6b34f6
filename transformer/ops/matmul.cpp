// Chooses the kernels, prepares the inputs once, splits the tiles over the threads and adds the leaves.
#include <algorithm>
#include <cstring>

#include "transformer/ops/cpu_ops.h"
#include "transformer/ops/matmul_inputs.h"
#include "transformer/ops/matmul_kernels.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace outrider {
namespace {

// Leaves are summed as they come, in the balanced tree ((0+1)+(2+3))+((4+5)+(6+7)), by a binary counter of
// partial sums. Their number is a power of two, as every rank's share is.
class LeafTree {
 public:
  explicit LeafTree(int64_t outputs) : size_(outputs * kTileColumns) {}

  // Where the next leaf's sums go.
  float* next() { return sum_; }
  void add() {
    float* sum = sum_;
    int level = 0;
    for (; count_ >> level & 1; ++level) {
      for (int64_t i = 0; i < size_; ++i) levels_[level][i] += sum[i];
      sum = levels_[level];
    }
    if (sum != levels_[level]) std::memcpy(levels_[level], sum, static_cast<size_t>(size_) * sizeof(float));
    ++count_;
    root_ = levels_[level];
  }
  const float* root() const { return root_; }

 private:
  static constexpr int kLevels = 4;
  int64_t size_;
  int count_ = 0;
  const float* root_ = nullptr;
  alignas(64) float sum_[kMaxOutputs * kTileColumns];
  alignas(64) float levels_[kLevels][kMaxOutputs * kTileColumns];
};

struct Job {
  const PackedMatrix& weight;
  const KernelSet& kernels;
  const RowBlocks& blocks;
  const uint32_t* inputs;
  TensorView<float, 2> out;
};

// `streams` tiles, `distance` apart, from `tile` on.
void multiply_group(const Job& job, int64_t tile, int streams, int64_t distance) {
  const PackedMatrix& w = job.weight;
  const int64_t element_words = job.kernels.layout == InputLayout::kPairs ? 2 : 1;
  for (int64_t block = 0; block < job.blocks.count; ++block) {
    const auto rows = static_cast<int>(job.blocks.rows_of(block));
    const uint32_t* inputs = job.inputs + job.blocks.first(block) * w.padded_k() / element_words;
    const LeafKernel kernel = streams == 1 ? job.kernels.single[rows] : job.kernels.many[rows];
    LeafTree tree(int64_t{streams} * rows);
    int64_t begin = 0;
    for (int64_t end : w.leaf_ends()) {
      const int64_t padded_end = end == w.k() && begin < end ? w.padded_k() : end;
      kernel({.tile = w.tile(tile) + begin * w.column_bytes(),
              .stream_stride = distance * w.tile_bytes(),
              .inputs = inputs + begin / element_words * rows,
              .columns = padded_end - begin,
              .sums = tree.next()});
      tree.add();
      begin = end;
    }
    for (int s = 0; s < streams; ++s) {
      const int64_t column = (tile + s * distance) * kTileColumns;
      const auto bytes = static_cast<size_t>(std::min(kTileColumns, w.n() - column)) * sizeof(float);
      for (int m = 0; m < rows; ++m)
        std::memcpy(job.out.data() + (job.blocks.first(block) + m) * job.out.stride(0) + column,
                    tree.root() + (s * rows + m) * kTileColumns, bytes);
    }
  }
}

// A thread's tiles are cut into as many runs as the kernel reads side by side, so that each is one sequential
// stream.
void multiply_tiles(const Job& job, int64_t first, int64_t last) {
  const int streams = job.blocks.count == 1 ? job.kernels.streams[job.blocks.size] : 1;
  const int64_t run = (last - first) / streams;
  for (int64_t i = 0; i < run; ++i) multiply_group(job, first + i, streams, run);
  for (int64_t tile = first + run * streams; tile < last; ++tile) multiply_group(job, tile, 1, 0);
}

// A part of less than this many bytes is done before another thread has woken up.
constexpr int64_t kMinimumBytes = 64 << 10;
// The same for inputs: elements.
constexpr int64_t kMinimumInputs = 16 << 10;

}  // namespace

FlushSubnormals::FlushSubnormals() {
#if defined(__x86_64__)
  constexpr unsigned kDenormalsAreZero = 0x40, kFlushToZero = 0x8000;
  saved_ = _mm_getcsr();
  _mm_setcsr(saved_ | kDenormalsAreZero | kFlushToZero);
#endif
}

FlushSubnormals::~FlushSubnormals() {
#if defined(__x86_64__)
  _mm_setcsr(saved_);
#endif
}

const KernelSet& kernel_set(WeightType type) {
#if defined(__x86_64__)
  // Measured on Emerald Rapids: 1.3 G dot products a second against 5.5 G multiply-adds.
  static const bool fast_dot_product = !__builtin_cpu_is("intel");
#else
  constexpr bool fast_dot_product = false;
#endif
  const bool dot_product = type == WeightType::kBFloat16 && fast_dot_product && isa_has_avx512_bf16();
  return dot_product ? avx512_bf16_kernels() : highway_kernels(type);
}

void matmul(ThreadPool& pool, MatmulScratch& scratch, TensorView<const float, 2> x,
            const PackedMatrix& weight, TensorView<float, 2> out) {
  matmul_with(kernel_set(weight.type()), pool, scratch, x, weight, out);
}

void matmul_with(const KernelSet& kernels, ThreadPool& pool, MatmulScratch& scratch,
                 TensorView<const float, 2> x, const PackedMatrix& weight, TensorView<float, 2> out) {
  const int64_t rows = x.extent(0), k = weight.k(), padded = weight.padded_k();
  CHECK(x.extent(1) >= k && out.extent(1) >= weight.n() && out.extent(0) >= rows,
        "x [{}, {}], weight [{}, {}]", rows, x.extent(1), weight.n(), k);
  if (rows == 0 || weight.n() == 0) return;
  if (scratch.rounded.size() < rows * padded) scratch.rounded = Buffer<uint32_t>(rows * padded);

  const RowBlocks blocks(rows, kernels.max_rows);
  const bool bf16_weights = weight.type() == WeightType::kBFloat16;
  pool.parallel_for(padded / 2, std::max<int64_t>(1, kMinimumInputs / (2 * rows)),
                    [&](int64_t begin, int64_t end) {
                      lay_out_inputs(x, 2 * begin, std::min(k, 2 * end), blocks, padded, kernels.layout,
                                     bf16_weights, scratch.rounded.data());
                    });
  const Job job{
      .weight = weight, .kernels = kernels, .blocks = blocks, .inputs = scratch.rounded.data(), .out = out};
  const int64_t grain = std::max<int64_t>(1, kMinimumBytes / std::max<int64_t>(1, weight.tile_bytes()));
  pool.parallel_for(weight.tiles(), grain, [&](int64_t begin, int64_t end) {
    const FlushSubnormals flush;
    multiply_tiles(job, begin, end);
  });
}

}  // namespace outrider
