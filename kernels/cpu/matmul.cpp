// Chooses the kernels, prepares the inputs once, splits the tiles over the threads and adds the leaves.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/matmul_inputs.h"
#include "kernels/cpu/matmul_kernels.h"

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

constexpr int64_t kScaleBytes = kTileColumns * sizeof(bf16);  // of one group of a tile

struct Job {
  const PackedMatrix& weight;
  const KernelSet& kernels;
  const RowBlocks& blocks;
  const MatmulScratch& inputs;
  TensorView<float, 2> out;
  bool by_leaf = false;  // the sums of every leaf go behind one another in place of their tree
};

// `streams` tiles, `distance` apart, from `tile` on.
void multiply_group(const Job& job, int64_t tile, int streams, int64_t distance) {
  const PackedMatrix& w = job.weight;
  const InputLayout layout = job.kernels.layout;
  const CodeLayout* codes = job.kernels.of_codes ? w.int4_codes() : w.codes();
  const auto groups = static_cast<int64_t>(codes ? codes->runs.size() : w.groups().size());
  const std::byte* data = w.tile(tile);
  for (int64_t block = 0; block < job.blocks.count; ++block) {
    const auto rows = static_cast<int>(job.blocks.rows_of(block));
    const int64_t first_row = job.blocks.first(block);
    const int64_t row_stride = row_words(layout, w.packed_k());
    const uint32_t* words = job.inputs.words.data() + first_row * row_stride;
    const LeafKernel kernel = streams == 1 ? job.kernels.single[rows] : job.kernels.many[rows];
    LeafTree tree(int64_t{streams} * rows);
    const auto store = [&](const float* sums, int64_t behind) {
      for (int s = 0; s < streams; ++s) {
        const int64_t column = (tile + s * distance) * kTileColumns;
        const auto bytes = static_cast<size_t>(std::min(kTileColumns, w.own_n() - column)) * sizeof(float);
        for (int m = 0; m < rows; ++m)
          std::memcpy(job.out.data() + (first_row + m) * job.out.stride(0) + behind + column,
                      sums + (s * rows + m) * kTileColumns, bytes);
      }
    };
    int64_t behind = 0;
    for (size_t l = 0; l < w.leaves().size(); ++l) {
      const PackedMatrix::Leaf& leaf = w.leaves()[l];
      const int64_t first_run = codes ? codes->first_run[l] : 0;
      const int64_t group = first_row * groups + (codes ? first_run : leaf.first_group) * rows;
      kernel({.tile = data + w.bytes_of(leaf.packed),
              .stream_stride = distance * w.tile_bytes(),
              .inputs = words + input_words(layout, leaf.packed) * (keeps_rows(layout) ? 1 : rows),
              .row_stride = row_stride,
              .rows = rows,
              .columns = leaf.packed_size,
              .sums = tree.next(),
              .scales = codes ? data : data + w.scales_offset() + leaf.first_group * kScaleBytes,
              .input_scales = job.inputs.scales.data() + group,
              .input_offsets = job.inputs.offsets.data() + group,
              .codes = codes,
              .runs = codes ? codes->runs.data() + first_run : nullptr,
              .run_count = codes ? codes->first_run[l + 1] - first_run : 0,
              .input_sums = job.inputs.sums.data() + (w.codes() ? group : 0)});
      if (job.by_leaf) {
        store(tree.next(), behind);
        behind += w.own_n();
      } else {
        tree.add();
      }
    }
    if (!job.by_leaf) store(tree.root(), 0);
  }
}

// How many tiles a kernel call reads side by side.
int streams_of(const KernelSet& kernels, const RowBlocks& blocks) {
  const int most = kernels.streams[blocks.size];
  return most == kernels.streams[blocks.rows_of(blocks.count - 1)] ? most : 1;
}

// A thread's tiles are cut into as many runs as the kernel reads side by side, so that each is one sequential
// stream.
void multiply_tiles(const Job& job, int64_t first, int64_t last) {
  const int streams = streams_of(job.kernels, job.blocks);
  const int64_t run = (last - first) / streams;
  for (int64_t i = 0; i < run; ++i) multiply_group(job, first + i, streams, run);
  for (int64_t tile = first + run * streams; tile < last; ++tile) multiply_group(job, tile, 1, 0);
}

// A part of less than this many bytes is done before another thread has woken up.
constexpr int64_t kMinimumBytes = 64 << 10;
// Fewer elements of the inputs than this are prepared before another thread has woken up.
constexpr int64_t kMinimumInputs = 16 << 10;

template <class T>
void reserve(Buffer<T>& buffer, int64_t size) {
  if (buffer.size() < size) buffer = Buffer<T>(size);
}

void prepare_inputs(ThreadPool& pool, MatmulScratch& to, TensorView<const float, 2> x,
                    const PackedMatrix& weight, const RowBlocks& blocks, const KernelSet& kernels) {
  const InputLayout layout = kernels.layout;
  const auto groups = static_cast<int64_t>(weight.groups().size());
  reserve(to.words, x.extent(0) * row_words(layout, weight.packed_k()));
  if (const CodeLayout* codes = weight.codes()) {
    const auto runs = static_cast<int64_t>(codes->runs.size());
    reserve(to.scales, x.extent(0) * runs);
    const int64_t elements = blocks.size * weight.packed_k() / std::max<int64_t>(1, runs);
    const int64_t grain = kMinimumInputs / std::max<int64_t>(1, elements) + 1;
    if (codes->activations == ActivationFormat::kInt8) {
      reserve(to.offsets, x.extent(0) * runs);
      reserve(to.sums, x.extent(0) * runs);
      const QuantizedCodeInputs quantized{to.words.data(), to.scales.data(), to.offsets.data(),
                                          to.sums.data()};
      pool.parallel_for(blocks.count * runs, grain, [&](int64_t begin, int64_t end) {
        quantize_code_inputs(x, weight, {begin, end}, blocks, kernels.zero_taken, quantized);
      });
      return;
    }
    pool.parallel_for(blocks.count * runs, grain, [&](int64_t begin, int64_t end) {
      const FlushSubnormals flush;
      lay_out_code_inputs(x, weight, {begin, end}, blocks, layout, {to.words.data(), to.scales.data()});
    });
    return;
  }
  reserve(to.scales, x.extent(0) * groups);
  reserve(to.offsets, x.extent(0) * groups);
  const int64_t grain = std::max<int64_t>(1, kMinimumInputs / x.extent(0));
  if (is_quantized(weight.type())) {
    const QuantizedInputs quantized{to.words.data(), to.scales.data(), to.offsets.data()};
    pool.parallel_for(groups, grain / kMaxGroupColumns, [&](int64_t begin, int64_t end) {
      quantize_inputs(x, weight, {begin, end}, blocks, layout, quantized);
    });
    return;
  }
  pool.parallel_for(weight.packed_k() / 2, grain / 2, [&](int64_t begin, int64_t end) {
    lay_out_inputs(x, weight, {2 * begin, std::min(weight.k(), 2 * end)}, blocks, layout, to.words.data());
  });
}

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

namespace {

// Measured on Emerald Rapids: 1.3 G dot products a second against 5.5 G multiply-adds.
bool has_fast_dot_product() {
#if defined(__x86_64__)
  static const bool is_fast = !__builtin_cpu_is("intel");
  return is_fast && isa_has_avx512_bf16();
#else
  return false;
#endif
}

}  // namespace

const KernelSet& code_kernels(const CodeLayout& codes) {
  const QuantScheme& scheme = codes.scheme;
  if (codes.activations == ActivationFormat::kInt8)
    return isa_has_avx512_vnni() ? avx512_vnni_code_kernels(codes) : highway_int8_code_kernels(codes);
  const bool is_float = scheme.code == CodeType::kE4m3 || scheme.code == CodeType::kE2m1;
  CHECK(!is_float || scheme.zero_type != ZeroType::kConstant || scheme.zero == 0, "floats with a zero of {}",
        scheme.zero);
  return has_fast_dot_product() ? avx512_bf16_code_kernels(scheme) : highway_code_kernels(scheme);
}

const KernelSet& kernel_set(WeightType type, int64_t rows) {
  // Scaling costs the matrix unit's int8 sums a way through memory, which a few rows do not repay (1.07 GB of
  // int8 from memory, two threads, ms, 1 / 4 / 6 rows: 35.3 / 36.7 / 37.6 against 33.0 / 35.5 / 38.5).
  constexpr int64_t kFewRows = 4;
  if (isa_has_amx() && (type == WeightType::kBFloat16 || (type == WeightType::kInt8 && rows > kFewRows)))
    return amx_kernels(type);
  if (is_quantized(type) && isa_has_avx512_vnni()) return avx512_vnni_kernels(type);
  const KernelSet* of_codes = type == WeightType::kInt4 ? highway_int4_code_kernels() : nullptr;
  if (is_quantized(type)) return of_codes ? *of_codes : highway_integer_kernels(type);
  const bool dot_product = type == WeightType::kBFloat16 && has_fast_dot_product();
  return dot_product ? avx512_bf16_kernels() : highway_kernels(type);
}

namespace {

const KernelSet& kernels_of(const PackedMatrix& weight, int64_t rows) {
  return weight.codes() ? code_kernels(*weight.codes()) : kernel_set(weight.type(), rows);
}

void multiply(const KernelSet& kernels, ThreadPool& pool, MatmulScratch& scratch,
              TensorView<const float, 2> x, const PackedMatrix& weight, int64_t tiles,
              TensorView<float, 2> out, bool by_leaf) {
  const int64_t rows = x.extent(0), k = weight.k();
  const int64_t outputs = std::min(weight.own_n(), tiles * kTileColumns);
  const int64_t width = outputs * (by_leaf ? static_cast<int64_t>(weight.leaves().size()) : 1);
  CHECK(x.extent(1) >= k && out.extent(1) >= width && out.extent(0) >= rows, "x [{}, {}], weight [{}, {}]",
        rows, x.extent(1), weight.n(), k);
  if (rows == 0 || weight.own_n() == 0) return;
  const RowBlocks blocks(rows, kernels.max_rows);
  prepare_inputs(pool, scratch, x, weight, blocks, kernels);
  const Job job{.weight = weight,
                .kernels = kernels,
                .blocks = blocks,
                .inputs = scratch,
                .out = out,
                .by_leaf = by_leaf};
  // No tiles are left over between the parts: one alone is read at half the speed.
  const int64_t together = streams_of(kernels, blocks);
  const int64_t grain = kMinimumBytes / (together * std::max<int64_t>(1, weight.tile_bytes())) + 1;
  pool.parallel_for((tiles + together - 1) / together, grain, [&](int64_t begin, int64_t end) {
    const FlushSubnormals flush;
    multiply_tiles(job, begin * together, std::min(end * together, tiles));
    if (kernels.finish) kernels.finish();
  });
}

}  // namespace

void matmul(ThreadPool& pool, MatmulScratch& scratch, TensorView<const float, 2> x,
            const PackedMatrix& weight, TensorView<float, 2> out) {
  matmul_with(kernels_of(weight, x.extent(0)), pool, scratch, x, weight, out);
  int64_t row = weight.own_n();
  for (const PackedMatrix& below : weight.below()) {
    matmul(pool, scratch, x, below,
           TensorView<float, 2>(out.data() + row, {out.extent(0), below.n()}, {out.stride(0), 1}));
    row += below.n();
  }
}

void matmul_leaves(ThreadPool& pool, MatmulScratch& scratch, TensorView<const float, 2> x,
                   const PackedMatrix& weight, TensorView<float, 2> out) {
  CHECK(weight.below().empty(), "leaves of rows in several forms");
  multiply(kernels_of(weight, x.extent(0)), pool, scratch, x, weight, weight.tiles(), out, true);
}

void matmul_with(const KernelSet& kernels, ThreadPool& pool, MatmulScratch& scratch,
                 TensorView<const float, 2> x, const PackedMatrix& weight, TensorView<float, 2> out) {
  multiply(kernels, pool, scratch, x, weight, weight.tiles(), out, false);
}

void matmul_first(ThreadPool& pool, MatmulScratch& scratch, TensorView<const float, 2> x,
                  const PackedMatrix& weight, TensorView<float, 2> out) {
  const int64_t outputs = out.extent(1), own = std::min(outputs, weight.own_n());
  multiply(kernels_of(weight, x.extent(0)), pool, scratch, x, weight, (own + kTileColumns - 1) / kTileColumns,
           out, false);
  int64_t row = weight.own_n();
  for (const PackedMatrix& below : weight.below()) {
    if (row >= outputs) return;
    matmul_first(pool, scratch, x, below,
                 TensorView<float, 2>(out.data() + row, {out.extent(0), std::min(below.n(), outputs - row)},
                                      {out.stride(0), 1}));
    row += below.n();
  }
}

}  // namespace outrider
