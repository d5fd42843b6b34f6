// bf16 and int8 weights on the matrix unit of x86 (AMX): one instruction multiplies up to 16 rows by 16
// outputs over 32 columns of bf16 or 64 of int8, so that 16 rows cost hardly more than one and both wait for
// memory. Weights already lie as the instruction wants them.
//
// bf16: of every 32 columns of a leaf the even and the odd products are summed apart, in order, then both
// sums are added, then to the output. int8: integer sums are exact, and the arithmetic on scales is that of
// the other kernels, so their bits are too. int4 is left to others: unpacking through memory costs more than
// the unit saves.
#include "base/log.h"
#include "kernels/cpu/matmul_kernels.h"

#if defined(__x86_64__)
// GCC 12 warns of the undefined operand inside its own intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <utility>

#define TARGET __attribute__((target("avx512f,avx512bw,amx-tile,amx-bf16,amx-int8")))

namespace outrider {
namespace {

constexpr int64_t kLineBytes = 64;                  // of 16 outputs: 2 columns of bf16, 4 of int8
constexpr int64_t kTileBytes = 16 * kLineBytes;     // what one instruction multiplies
constexpr int64_t kPrefetchBytes = 2 * kTileBytes;  // ahead of a single stream

// The registers: an odd number of columns at a leaf's end has registers of its own shape. Macros, because the
// intrinsics paste the number into assembler text.
#define SUMS0 0
#define SUMS1 1
#define SUMS2 2
#define SUMS3 3
#define INPUTS 4
#define WEIGHTS 5
#define LAST_INPUTS 6
#define LAST_WEIGHTS 7

// Shapes of the registers, in the layout of LDTILECFG (palette 1).
struct alignas(64) Shapes {
  // `input_rows` rows of inputs; `lines` of weights in a whole tile, `last_lines` in the last one.
  Shapes(int input_rows, int64_t lines, int64_t last_lines) {
    for (int sums : {SUMS0, SUMS1, SUMS2, SUMS3}) set(sums, input_rows, 16);
    set(INPUTS, input_rows, lines), set(LAST_INPUTS, input_rows, last_lines);
    set(WEIGHTS, lines, 16), set(LAST_WEIGHTS, last_lines, 16);
  }

 private:
  void set(int r, int64_t row_count, int64_t words) {
    if (row_count == 0 || words == 0) return;  // a register that is not used
    row_bytes[r] = static_cast<uint16_t>(4 * words);
    rows[r] = static_cast<uint8_t>(row_count);
  }

  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(Shapes) == 64);

// The tile shapes this thread's registers are configured for. Configuring them waits for all instructions in
// flight, so it is done only when the shapes change.
thread_local uint32_t loaded_shapes = 0;

TARGET inline void shape_registers(int rows, int64_t lines, int64_t last_lines) {
  const auto key = static_cast<uint32_t>(rows << 16 | lines << 8 | last_lines);
  if (key == loaded_shapes) return;
  const Shapes shapes(rows, lines, last_lines);
  _tile_loadconfig(&shapes);
  loaded_shapes = key;
}

TARGET void release_registers() {
  _tile_release();
  loaded_shapes = 0;
}

TARGET inline void prefetch_tile(const std::byte* weights) {
#pragma GCC unroll 16
  for (int64_t line = 0; line < 16; ++line)
    _mm_prefetch(reinterpret_cast<const char*>(weights) + kPrefetchBytes + line * kLineBytes, _MM_HINT_T0);
}

// Prefetches a quarter of the data that four streams read next, line by line through all four, each stream a
// little further ahead than the one before. Prefetching one stream's whole tile at once takes up to 13 %
// longer from memory, and so do larger distances.
TARGET inline void prefetch_quarter(const std::byte* weights, int64_t next, int64_t quarter) {
#pragma GCC unroll 4
  for (int64_t line = 4 * quarter; line < 4 * quarter + 4; ++line)
#pragma GCC unroll 4
    for (int64_t stream = 0; stream < 4; ++stream)
      _mm_prefetch(
          reinterpret_cast<const char*>(weights) + stream * next + (line + 6 + 4 * stream) * kLineBytes,
          _MM_HINT_T0);
}

// sums += inputs * weights, for one tile of one stream.
#define ADD_TILE(sums, inputs, weights, from) \
  do {                                        \
    _tile_loadd(weights, from, kLineBytes);   \
    _tile_dpbf16ps(sums, inputs, weights);    \
  } while (false)

// One leaf of one or of four tiles of 16 outputs: one stream alone does not keep enough lines on their way.
template <int kStreams>
TARGET void leaf_bf16(const LeafJob& job) {
  static_assert(kStreams == 1 || kStreams == 4);
  const int64_t lines = job.columns / 2, whole = lines / 16, last = lines % 16;
  shape_registers(job.rows, 16, last);
  _tile_zero(SUMS0);
  if constexpr (kStreams == 4) {
    _tile_zero(SUMS1);
    _tile_zero(SUMS2);
    _tile_zero(SUMS3);
  }
  const std::byte* at = job.tile;
  const int64_t next = job.stream_stride;
  const uint32_t* x = job.inputs;
  const int64_t stride = job.row_stride * static_cast<int64_t>(sizeof(uint32_t));
  for (int64_t i = 0; i < whole; ++i, x += 16, at += kTileBytes) {
    _tile_loadd(INPUTS, x, stride);
    if constexpr (kStreams == 4) {
      prefetch_quarter(at, next, 0);
      ADD_TILE(SUMS0, INPUTS, WEIGHTS, at);
      prefetch_quarter(at, next, 1);
      ADD_TILE(SUMS1, INPUTS, WEIGHTS, at + next);
      prefetch_quarter(at, next, 2);
      ADD_TILE(SUMS2, INPUTS, WEIGHTS, at + 2 * next);
      prefetch_quarter(at, next, 3);
      ADD_TILE(SUMS3, INPUTS, WEIGHTS, at + 3 * next);
    } else {
      prefetch_tile(at);
      ADD_TILE(SUMS0, INPUTS, WEIGHTS, at);
    }
  }
  if (last > 0) {
    _tile_loadd(LAST_INPUTS, x, stride);
    ADD_TILE(SUMS0, LAST_INPUTS, LAST_WEIGHTS, at);
    if constexpr (kStreams == 4) {
      ADD_TILE(SUMS1, LAST_INPUTS, LAST_WEIGHTS, at + next);
      ADD_TILE(SUMS2, LAST_INPUTS, LAST_WEIGHTS, at + 2 * next);
      ADD_TILE(SUMS3, LAST_INPUTS, LAST_WEIGHTS, at + 3 * next);
    }
  }
  const int64_t outputs = job.rows * kTileColumns;
  _tile_stored(SUMS0, job.sums, kLineBytes);
  if constexpr (kStreams == 4) {
    _tile_stored(SUMS1, job.sums + outputs, kLineBytes);
    _tile_stored(SUMS2, job.sums + 2 * outputs, kLineBytes);
    _tile_stored(SUMS3, job.sums + 3 * outputs, kLineBytes);
  }
}

TARGET inline __m512 load_scales(const std::byte* scales) {
  const __m256i halves = _mm256_load_si256(reinterpret_cast<const __m256i*>(scales));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// One group of columns of one stream, whose inputs are in their register: integer sums to `sums` [rows][16].
TARGET inline void multiply_group(const std::byte* weights, bool last, int32_t* sums) {
  _tile_zero(SUMS0);
  if (last) {
    _tile_loadd(LAST_WEIGHTS, weights, kLineBytes);
    _tile_dpbsud(SUMS0, LAST_INPUTS, LAST_WEIGHTS);
  } else {
    _tile_loadd(WEIGHTS, weights, kLineBytes);
    _tile_dpbsud(SUMS0, INPUTS, WEIGHTS);
  }
  _tile_stored(SUMS0, sums, kLineBytes);
}

// Four groups are taken together, of one stream or of four, so that the matrix unit is busy with some while
// vectors scale others.
constexpr int kGroupsTogether = 4;

template <int kRows, int kStreams>
TARGET void leaf_int8(const LeafJob& job) {
  static_assert(kStreams == 1 || kStreams == 4);
  constexpr int64_t kGroupLines = group_columns(WeightType::kInt8) / 4;
  static_assert(kGroupLines * kLineBytes == kTileBytes);
  constexpr int64_t kSteps = kGroupsTogether / kStreams;
  const int64_t lines = job.columns / 4, groups = (lines + kGroupLines - 1) / kGroupLines;
  const int64_t last_lines = lines % kGroupLines;
  shape_registers(kRows, kGroupLines, last_lines);
  const int64_t stride = job.row_stride * static_cast<int64_t>(sizeof(uint32_t));
  alignas(64) int32_t integers[kGroupsTogether][kRows * kTileColumns];
  __m512 sum[kStreams][kRows];
#pragma GCC unroll 4
  for (int s = 0; s < kStreams; ++s)
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) sum[s][m] = _mm512_setzero_ps();
  for (int64_t begin = 0; begin < groups; begin += kSteps) {
    const int64_t end = begin + kSteps < groups ? begin + kSteps : groups;
    for (int64_t g = begin; g < end; ++g) {
      const std::byte* weights = job.tile + g * kTileBytes;
      const bool last = g + 1 == groups && last_lines > 0;
      if (last)
        _tile_loadd(LAST_INPUTS, job.inputs + g * kGroupLines, stride);
      else
        _tile_loadd(INPUTS, job.inputs + g * kGroupLines, stride);
      for (int s = 0; s < kStreams; ++s) {
        if constexpr (kStreams == 4)
          prefetch_quarter(weights, job.stream_stride, s);
        else
          prefetch_tile(weights);
        multiply_group(weights + s * job.stream_stride, last, integers[kStreams * (g - begin) + s]);
      }
    }
    for (int64_t g = begin; g < end; ++g) {
#pragma GCC unroll 4
      for (int s = 0; s < kStreams; ++s) {
        const __m512 scales = load_scales(job.scales + s * job.stream_stride + g * 32);
        const int32_t* sums = integers[kStreams * (g - begin) + s];
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) {
          const __m512i exact = _mm512_add_epi32(_mm512_load_si512(sums + m * kTileColumns),
                                                 _mm512_set1_epi32(job.input_offsets[g * kRows + m]));
          const __m512 scale = _mm512_mul_ps(scales, _mm512_set1_ps(job.input_scales[g * kRows + m]));
          sum[s][m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), scale, sum[s][m]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int s = 0; s < kStreams; ++s)
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) _mm512_store_ps(job.sums + (s * kRows + m) * kTileColumns, sum[s][m]);
}

template <int... kRow>
KernelSet bf16_set(std::integer_sequence<int, kRow...>) {
  return {.layout = InputLayout::kPairRows,
          .max_rows = kMaxBlockRows,
          .streams = {0, 4 + 0 * kRow...},
          .many = {nullptr, leaf_bf16<4 + 0 * kRow>...},
          .single = {nullptr, leaf_bf16<1 + 0 * kRow>...},
          .finish = release_registers};
}

template <int... kRow>
KernelSet int8_set(std::integer_sequence<int, kRow...>) {
  return {.layout = InputLayout::kByteRows,
          .max_rows = kMaxBlockRows,
          .streams = {0, 4 + 0 * kRow...},
          .many = {nullptr, leaf_int8<kRow + 1, 4>...},
          .single = {nullptr, leaf_int8<kRow + 1, 1>...},
          .finish = release_registers};
}

}  // namespace

const KernelSet& amx_kernels(WeightType type) {
  constexpr auto kRows = std::make_integer_sequence<int, kMaxBlockRows>();
  static const KernelSet bf16 = bf16_set(kRows), int8 = int8_set(kRows);
  return type == WeightType::kBFloat16 ? bf16 : int8;
}

}  // namespace outrider

#else

namespace outrider {
const KernelSet& amx_kernels(WeightType) {
  CHECK(false, "no AMX on this processor");
  __builtin_unreachable();
}
}  // namespace outrider

#endif
