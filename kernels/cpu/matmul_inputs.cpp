#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul_inputs.cpp"
#include <hwy/foreach_target.h>  // first: it re-includes this file for every instruction set

#include <hwy/highway.h>

#include <bit>
#include <cstring>

#include "kernels/cpu/matmul_inputs.h"

HWY_BEFORE_NAMESPACE();
namespace outrider {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::CappedTag<float, 16>;
using U = hn::RebindToUnsigned<F>;
constexpr int64_t kLanes = hn::MaxLanes(F());

// base/bfloat16.h's to_bf16, left in the upper half of each word; not for NaN, which no bit is promised for.
HWY_INLINE hn::Vec<U> round_bf16(hn::Vec<U> bits) {
  const U u;
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
  return hn::And(hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7fff))), hn::Set(u, 0xffff0000u));
}

HWY_INLINE hn::Vec<U> load_rounded(const float* x) {
  const U u;
  const auto v = hn::LoadU(F(), x);
  const auto is_nan = hn::RebindMask(u, hn::IsNaN(v));
  return hn::IfThenElse(is_nan, hn::Set(u, 0x7fc00000u), round_bf16(hn::BitCast(u, v)));
}

// Calls use(pointer to kLanes inputs, index) for `count` inputs; the tail goes through a copy padded by
// zeros.
template <class Use>
HWY_INLINE void for_each_vector(const float* x, int64_t count, Use use) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) use(x + i, i);
  if (i == count) return;
  HWY_ALIGN float tail[kLanes] = {};
  for (int64_t j = 0; i + j < count; ++j) tail[j] = x[i + j];
  use(tail, i);
}

constexpr int64_t kChunk = 64;  // columns that are taken together

// Columns of one row as bf16, side by side, and the zero that completes a pair. Nothing is written beyond:
// the next columns may be another thread's.
HWY_INLINE void round_row(const float* x, int64_t count, uint16_t* to) {
  const hn::Rebind<int32_t, F> i32;
  const hn::Rebind<uint16_t, F> u16;
  HWY_ALIGN uint16_t chunk[kChunk + kLanes];
  for_each_vector(x, count, [&](const float* from, int64_t i) HWY_ATTR {
    hn::StoreU(hn::DemoteTo(u16, hn::BitCast(i32, hn::ShiftRight<16>(load_rounded(from)))), u16, chunk + i);
  });
  std::memcpy(to, chunk, static_cast<size_t>((count + 1) / 2 * 2) * sizeof *to);
}

// Columns of R rows, the rows side by side: words of one column, or of two.
HWY_INLINE void interleave(const float* x, int64_t count, bool round, bool pairs, int64_t rows,
                           uint32_t* to) {
  const U u;
  HWY_ALIGN uint32_t chunk[kChunk + kLanes];
  for_each_vector(x, count, [&](const float* from, int64_t i) HWY_ATTR {
    hn::Store(round ? load_rounded(from) : hn::BitCast(u, hn::LoadU(F(), from)), u, chunk + i);
  });
  const int64_t padded = (count + 1) / 2 * 2;
  if (padded > count) chunk[count] = 0;
  if (pairs)
    for (int64_t i = 0; i < padded; i += 2) to[i / 2 * rows] = chunk[i] >> 16 | chunk[i + 1];
  else
    for (int64_t i = 0; i < padded; ++i) to[i * rows] = chunk[i];
}

void lay_out(TensorView<const float, 2> x, const PackedMatrix& weight, IndexRange columns,
             const RowBlocks& blocks, InputLayout layout, uint32_t* words) {
  const bool round = weight.type() == WeightType::kBFloat16;
  const int64_t stride = row_words(layout, weight.packed_k());
  for (int64_t k = columns.begin; k < columns.end; k += kChunk) {
    const int64_t count = HWY_MIN(kChunk, columns.end - k);
    for (int64_t m = 0; m < blocks.rows; ++m) {
      const float* from = x.data() + m * x.stride(0) + k;
      const int64_t block = m / blocks.size, first = blocks.first(block), rows = blocks.rows_of(block);
      if (layout == InputLayout::kPairRows)
        round_row(from, count, reinterpret_cast<uint16_t*>(words + m * stride) + k);
      else
        interleave(from, count, round, layout == InputLayout::kPairs, rows,
                   words + first * stride + input_words(layout, k) * rows + m - first);
    }
  }
}

// Columns [packed, packed + count) of a tile of codes: where they are in the row, or a copy.
HWY_INLINE const float* code_columns(const float* row, const PackedMatrix& weight, int64_t packed,
                                     int64_t count, float* copy) {
  const std::vector<int32_t>& columns = weight.codes()->columns;
  if (columns.empty() && packed + count <= weight.k()) return row + packed;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t column = columns.empty() ? packed + i : columns[static_cast<size_t>(packed + i)];
    copy[i] = column < 0 || column >= weight.k() ? 0.0f : row[column];
  }
  return copy;
}

constexpr int kSums = 16;

HWY_INLINE float add_sums(float (&sums)[kSums]) {
  for (int half = kSums / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

void lay_out_codes(TensorView<const float, 2> x, const PackedMatrix& weight, IndexRange items,
                   const RowBlocks& blocks, InputLayout layout, const CodeInputs& to) {
  const U u;
  const CodeLayout& codes = *weight.codes();
  const auto runs = static_cast<int64_t>(codes.runs.size());
  const bool pairs = layout == InputLayout::kPairs;
  HWY_ALIGN float copy[kChunk];
  HWY_ALIGN uint32_t chunk[kChunk + kLanes];
  for (int64_t item = items.begin; item < items.end; ++item) {
    const int64_t block = item / runs, r = item % runs;
    const int64_t first = blocks.first(block), rows = blocks.rows_of(block);
    const CodeLayout::Run& run = codes.runs[static_cast<size_t>(r)];
    uint32_t* const block_words = to.words + first * row_words(layout, weight.packed_k());
    for (int64_t m = 0; m < rows; ++m) {
      float sums[kSums] = {};
      for (int64_t begin = 0; begin < run.columns; begin += kChunk) {
        const int64_t packed = run.packed + begin, count = HWY_MIN(kChunk, run.columns - begin);
        const float* from = code_columns(x.data() + (first + m) * x.stride(0), weight, packed, count, copy);
        for_each_vector(from, count, [&](const float* at, int64_t i) HWY_ATTR {
          hn::StoreU(load_rounded(at), u, chunk + i);
        });
        uint32_t* words = block_words + input_words(layout, packed) * rows + m;
        if (pairs)
          for (int64_t i = 0; i < count; i += 2) words[i / 2 * rows] = chunk[i] >> 16 | chunk[i + 1];
        else
          for (int64_t i = 0; i < count; ++i) words[i * rows] = chunk[i];
        if (codes.has_input_sums())
          for (int64_t i = 0; i < count; ++i) sums[i % kSums] += std::bit_cast<float>(chunk[i]);
      }
      if (codes.has_input_sums()) to.sums[first * runs + r * rows + m] = add_sums(sums);
    }
  }
}

// Up to kMaxGroupColumns columns of one row -> integers, zero from `count` to the next multiple of 8. A NaN
// or an infinity among them makes the scale NaN, and so every output that reads it.
HWY_INLINE float quantize_group(const float* x, int64_t count, int8_t* integers, int32_t& sum) {
  const F f;
  const hn::RebindToSigned<F> i32;
  const hn::Rebind<int8_t, F> i8;
  constexpr int64_t kStep = HWY_MAX(kLanes, 8);  // kernels read whole words of columns
  const int64_t size = (count + kStep - 1) / kStep * kStep;
  HWY_ALIGN float copy[kMaxGroupColumns + kStep];
  const float* values = x;
  if (size != count) {
    for (int64_t i = 0; i < size; i += kLanes) hn::Store(hn::Zero(f), f, copy + i);
    for (int64_t i = 0; i < count; ++i) copy[i] = x[i];
    values = copy;
  }
  auto best = hn::Zero(f), poison = hn::Zero(f);
  for (int64_t i = 0; i < size; i += kLanes) {
    const auto v = hn::LoadU(f, values + i);
    best = hn::Max(best, hn::Abs(v));
    poison = hn::MulAdd(v, hn::Zero(f), poison);
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(f, best));
  const float unit = largest > 1e-30f ? 127 / largest : 0;  // less is noise, and its inverse might overflow
  auto sums = hn::Zero(i32);
  for (int64_t i = 0; i < size; i += kLanes) {
    const auto v = hn::LoadU(f, values + i);
    const auto q = hn::NearestInt(hn::IfThenElseZero(hn::IsFinite(v), hn::Mul(v, hn::Set(f, unit))));
    sums = hn::Add(sums, q);
    hn::StoreU(hn::DemoteTo(i8, q), i8, integers + i);
  }
  sum = hn::GetLane(hn::SumOfLanes(i32, sums));
  return largest / 127 + hn::GetLane(hn::SumOfLanes(f, poison));
}

// LeafJob::input_offsets where a kernel takes the zero from every code; 16 bits may wrap.
HWY_INLINE int32_t starts_of_pairs(const int8_t* integers, int64_t count, int zero) {
  int32_t sums[2] = {};
  for (int64_t i = 0; i < count; i += 4) {
    sums[0] += integers[i] + integers[i + 1];
    sums[1] += integers[i + 2] + integers[i + 3];
  }
  const auto start = [&](int32_t sum) { return static_cast<uint32_t>(-zero * sum) & 0xffffu; };
  return static_cast<int32_t>(start(sums[0]) | start(sums[1]) << 16);
}

void quantize_codes(TensorView<const float, 2> x, const PackedMatrix& weight, IndexRange items,
                    const RowBlocks& blocks, int zero_taken, const QuantizedCodeInputs& to) {
  const CodeLayout& codes = *weight.codes();
  const auto runs = static_cast<int64_t>(codes.runs.size());
  HWY_ALIGN float copy[kChunk];
  HWY_ALIGN int8_t q[kMaxGroupColumns + kLanes];
  for (int64_t item = items.begin; item < items.end; ++item) {
    const int64_t block = item / runs, r = item % runs;
    const int64_t first = blocks.first(block), rows = blocks.rows_of(block);
    const CodeLayout::Run& run = codes.runs[static_cast<size_t>(r)];
    uint32_t* const words = to.words + first * row_words(InputLayout::kBytes, weight.packed_k()) +
                            input_words(InputLayout::kBytes, run.packed) * rows;
    for (int64_t m = 0; m < rows; ++m) {
      const float* from =
          code_columns(x.data() + (first + m) * x.stride(0), weight, run.packed, run.columns, copy);
      const int64_t at = first * runs + r * rows + m;
      int32_t sum = 0;
      const float scale = quantize_group(from, run.columns, q, sum);
      to.scales[at] = scale;
      to.integer_sums[at] = zero_taken == 0 ? sum : starts_of_pairs(q, run.columns, zero_taken);
      to.sums[at] = scale * static_cast<float>(sum);
      for (int64_t i = 0; i < run.columns; i += 4) std::memcpy(words + i / 4 * rows + m, q + i, 4);
    }
  }
}

HWY_INLINE uint32_t two_shorts(int8_t low, int8_t high) {
  return static_cast<uint16_t>(low) | static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16;
}

void quantize_blocks(TensorView<const float, 2> x, const PackedMatrix& weight, IndexRange groups,
                     const RowBlocks& blocks, InputLayout layout, const QuantizedInputs& to) {
  const auto group_count = static_cast<int64_t>(weight.groups().size());
  const int32_t stored_offset = weight.type() == WeightType::kInt8 ? 128 : 8;
  HWY_ALIGN int8_t q[kMaxGroupColumns + kLanes];
  for (int64_t block = 0; block < blocks.count; ++block) {
    const int64_t rows = blocks.rows_of(block);
    const int64_t stride = row_words(layout, weight.packed_k());
    uint32_t* block_words = to.words + blocks.first(block) * stride;
    for (int64_t g = groups.begin; g < groups.end; ++g) {
      const PackedMatrix::Group& group = weight.groups()[static_cast<size_t>(g)];
      const int64_t count = group.end - group.begin;
      const int64_t padded = round_up(count, column_alignment(weight.type()));
      for (int64_t m = 0; m < rows; ++m) {
        int32_t sum = 0;
        const int64_t at = (blocks.first(block) * group_count) + g * rows + m;
        to.scales[at] =
            quantize_group(x.data() + (blocks.first(block) + m) * x.stride(0) + group.begin, count, q, sum);
        to.offsets[at] = -stored_offset * sum;
        if (layout == InputLayout::kByteRows) {
          std::memcpy(block_words + m * stride + input_words(layout, group.packed), q,
                      static_cast<size_t>(padded));
          continue;
        }
        uint32_t* words = block_words + input_words(layout, group.packed) * rows + m;
        for (int64_t i = 0; i < padded; i += 4) {
          if (layout == InputLayout::kBytes) {
            std::memcpy(words + i / 4 * rows, q + i, 4);
          } else {
            words[i / 2 * rows] = two_shorts(q[i], q[i + 2]);
            words[(i / 2 + 1) * rows] = two_shorts(q[i + 1], q[i + 3]);
          }
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(lay_out);
HWY_EXPORT(lay_out_codes);
HWY_EXPORT(quantize_blocks);
HWY_EXPORT(quantize_codes);

void lay_out_inputs(TensorView<const float, 2> x, const PackedMatrix& weight, IndexRange columns,
                    const RowBlocks& blocks, InputLayout layout, uint32_t* words) {
  HWY_DYNAMIC_DISPATCH(lay_out)(x, weight, columns, blocks, layout, words);
}

void lay_out_code_inputs(TensorView<const float, 2> x, const PackedMatrix& weight, IndexRange items,
                         const RowBlocks& blocks, InputLayout layout, const CodeInputs& to) {
  HWY_DYNAMIC_DISPATCH(lay_out_codes)(x, weight, items, blocks, layout, to);
}

void quantize_inputs(TensorView<const float, 2> x, const PackedMatrix& weight, IndexRange groups,
                     const RowBlocks& blocks, InputLayout layout, const QuantizedInputs& to) {
  HWY_DYNAMIC_DISPATCH(quantize_blocks)(x, weight, groups, blocks, layout, to);
}

void quantize_code_inputs(TensorView<const float, 2> x, const PackedMatrix& weight, IndexRange items,
                          const RowBlocks& blocks, int zero_taken, const QuantizedCodeInputs& to) {
  HWY_DYNAMIC_DISPATCH(quantize_codes)(x, weight, items, blocks, zero_taken, to);
}

}  // namespace outrider
#endif
