// How weights lie in device memory, and in which order a contraction is summed: index arithmetic
// shared by kernels, loaders and tests.
//
// A contraction over k is cut into at most 8 slices. Where tensor parallelism cuts it, the slices of a rank
// are its leaves (shard.h); elsewhere they are eight runs of whole steps, a function of k alone. A slice is
// one chain of steps from +0; slices are added in the balanced tree. So neither the number of rows, nor of
// ranks, nor of multiprocessors can change a bit.
#pragma once

#include <cstdint>
#include <span>

#include "base/shared_code.h"

namespace outrider::cuda {

constexpr int kMaxSlices = 8;
constexpr int kStep = 16;      // columns of one matrix instruction
constexpr int kTileRows = 16;  // weight rows of one matrix instruction
constexpr int kTileElements = kTileRows * kStep;
// Codes take their steps in four instructions: one group that shares a scale, or of four bits two.
constexpr int kGroupStep = 64;
constexpr int kGroupTileBytes = kTileRows * kGroupStep;  // of eight bits

struct Slices {
  int32_t count = 0;  // a power of two
  int32_t step_columns = kStep;
  int32_t begin[kMaxSlices + 1] = {};  // columns; begin[count] = k
  int32_t first_step[kMaxSlices + 1] =
      {};  // each slice is padded to whole steps; first_step[count]: all steps

  OUTRIDER_SHARED_CODE int32_t k() const { return begin[count]; }
  OUTRIDER_SHARED_CODE int32_t steps() const { return first_step[count]; }
  OUTRIDER_SHARED_CODE int32_t slice_of(int32_t column) const {
    int32_t s = 0;
    while (column >= begin[s + 1]) ++s;
    return s;
  }
  OUTRIDER_SHARED_CODE int32_t step_of(int32_t column) const {
    const int32_t s = slice_of(column);
    return first_step[s] + (column - begin[s]) / step_columns;
  }
};

// `ends`: where each slice ends, ascending, the last one k. The number of slices is a power of two. Steps
// restart at the beginning of each slice.
Slices slices_from_ends(std::span<const int64_t> ends, int step_columns = kStep);
// Eight slices of whole steps.
Slices even_slices(int64_t k, int step_columns = kStep);

// Element (row, column) of a tile of 16 x 16 as a matrix instruction wants operand a: 8 elements for each
// lane of a warp, in the order of its four registers.
OUTRIDER_SHARED_CODE inline int32_t fragment_offset(int32_t row, int32_t column) {
  const int32_t lane = row % 8 * 4 + column % 8 / 2;
  const int32_t word = (row >= 8 ? 1 : 0) + (column >= 8 ? 2 : 0);
  return lane * 8 + word * 2 + column % 2;
}

// Which column of operand a holds column c of a bf16 weight's step: those of four neighbours that one lane
// has, so that its activations are one read of 8 bytes.
OUTRIDER_SHARED_CODE inline int32_t operand_column(int32_t c) {
  return c / 4 * 2 + c % 2 + (c % 4 >= 2 ? 8 : 0);
}

// Element (row, column) of a matrix that is stored in such tiles, tile by tile along k.
OUTRIDER_SHARED_CODE inline int64_t tiled_offset(const Slices& slices, int32_t row, int32_t column) {
  const int32_t slice = slices.slice_of(column);
  const int32_t in_slice = column - slices.begin[slice];
  const int64_t tile = static_cast<int64_t>(row / kTileRows) * slices.steps() + slices.step_of(column);
  return tile * kTileElements + fragment_offset(row % kTileRows, operand_column(in_slice % kStep));
}

// Element (row, column) in eight-bit codes, in steps of kGroupStep: a lane's 16 bytes hold two instructions.
// Bytes 0 and 2 of a word are one register of operand a, bytes 1 and 3 another, so that widening needs no
// shuffle; and a lane has eight neighbouring columns of its rows, so that its activations are one read of 16
// bytes.
OUTRIDER_SHARED_CODE inline int64_t code_offset(const Slices& slices, int32_t row, int32_t column) {
  const int32_t slice = slices.slice_of(column);
  const int32_t in_slice = column - slices.begin[slice];
  const int32_t step = slices.step_of(column);
  const int32_t r = row % kTileRows, c = in_slice % kGroupStep;
  const int32_t lane = r % 8 * 4 + c % 32 / 8;
  const int32_t word = c % 8 / 4 * 2 + (r >= 8 ? 1 : 0);
  const int32_t byte = c % 4 == 1 ? 2 : c % 4 == 2 ? 1 : c % 4;
  const int64_t tile = static_cast<int64_t>(row / kTileRows) * slices.steps() + step;
  return tile * kGroupTileBytes + c / 32 * 512 + lane * 16 + word * 4 + byte;
}

// Offset of a code in a tile whose instructions cover 16 neighbouring columns that share a scale. A lane
// holds four of the 16 columns, and four of the next 16.
OUTRIDER_SHARED_CODE inline int64_t quarter_code_offset(const Slices& slices, int32_t row, int32_t column) {
  const int32_t r = row % kTileRows, c = (column - slices.begin[slices.slice_of(column)]) % kGroupStep;
  const int32_t lane = r % 8 * 4 + c % 16 / 4, word = c % 32 / 16 * 2 + (r >= 8 ? 1 : 0);
  const int32_t byte = c % 4 == 1 ? 2 : c % 4 == 2 ? 1 : c % 4;
  const int64_t tile = static_cast<int64_t>(row / kTileRows) * slices.steps() + slices.step_of(column);
  return tile * kGroupTileBytes + c / 32 * 512 + lane * 16 + word * 4 + byte;
}

// Element (row, column) in four-bit codes, in halves of bytes: a word of a lane is one instruction. Its
// halves 0 and 4 are one register of operand a, then 1 and 5, 2 and 6, 3 and 7, so that widening needs no
// shuffle; the two codes of a byte are columns c and c + 2 of one row.
OUTRIDER_SHARED_CODE inline int64_t half_byte_offset(const Slices& slices, int32_t row, int32_t column) {
  const int32_t r = row % kTileRows, c = (column - slices.begin[slices.slice_of(column)]) % kGroupStep;
  const int32_t lane = r % 8 * 4 + c % 32 / 8, word = c / 32 * 2 + c % 8 / 4;
  const int32_t half = (c % 4 >= 2 ? 1 : 0) + (r >= 8 ? 2 : 0) + c % 2 * 4;
  const int64_t tile = static_cast<int64_t>(row / kTileRows) * slices.steps() + slices.step_of(column);
  return tile * kGroupTileBytes + lane * 32 + word * 8 + half;
}

// Neighbouring columns of a row that share a scale. They are counted from 0 as in the file, restarting in
// every slice. A step has one or two such groups.
struct CodeGroup {
  int32_t begin = 0, count = 0;  // columns
  int32_t step = 0, index = 0;   // the index-th of its step
};
OUTRIDER_SHARED_CODE inline int32_t groups_of_slice(const Slices& slices, int32_t group_columns, int32_t s) {
  return (slices.begin[s + 1] - slices.begin[s] + group_columns - 1) / group_columns;
}
OUTRIDER_SHARED_CODE inline int32_t count_groups(const Slices& slices, int32_t group_columns) {
  int32_t groups = 0;
  for (int32_t s = 0; s < slices.count; ++s) groups += groups_of_slice(slices, group_columns, s);
  return groups;
}
OUTRIDER_SHARED_CODE inline CodeGroup group_at(const Slices& slices, int32_t group_columns, int32_t group) {
  int32_t s = 0;
  for (; group >= groups_of_slice(slices, group_columns, s); ++s)
    group -= groups_of_slice(slices, group_columns, s);
  const int32_t of_step = slices.step_columns / group_columns;
  const int32_t begin = slices.begin[s] + group * group_columns, left = slices.begin[s + 1] - begin;
  return {begin, left < group_columns ? left : group_columns, slices.first_step[s] + group / of_step,
          group % of_step};
}

// Offset of a row's scale among the bf16 scales of a matrix, for a step that has `groups` groups. The scales
// of rows r and r + 8 are neighbours.
OUTRIDER_SHARED_CODE inline int64_t scale_offset(const Slices& slices, int32_t row, int32_t step,
                                                 int32_t groups, int32_t index) {
  const int64_t tile = static_cast<int64_t>(row / kTileRows) * slices.steps() + step;
  return ((tile * 8 + row % 8) * groups + index) * 2 + (row % kTileRows >= 8 ? 1 : 0);
}

// fp32 matrices are stored transposed, rows (outputs) fastest.
OUTRIDER_SHARED_CODE inline int64_t transposed_offset(int64_t padded_rows, int32_t row, int32_t column) {
  return column * padded_rows + row;
}

// Balanced tree over neighbours: ((0+1)+(2+3))+((4+5)+(6+7)). count is a power of two. Overwrites values.
OUTRIDER_SHARED_CODE inline float tree_sum(float (&values)[kMaxSlices], int count) {
  OUTRIDER_UNROLL
  for (int width = 1; width < kMaxSlices; width *= 2)
    if (width < count)
      for (int i = 0; i < kMaxSlices; i += 2 * width)
        if (i < count) values[i] = values[i] + values[i + width];
  return values[0];
}

// Which dimensions of a head turn together: i and turned + i, for i < turned, or neighbours. Those behind
// them stay, and go in pairs, too.
struct HeadPairs {
  int32_t turned = 0;
  int32_t all = 0;  // half of head_dim
  bool interleaved = false;

  OUTRIDER_SHARED_CODE int32_t low(int32_t i) const {
    return interleaved ? 2 * i : i < turned ? i : turned + i;
  }
  OUTRIDER_SHARED_CODE int32_t high(int32_t i) const {
    return interleaved ? 2 * i + 1 : i < turned ? turned + i : all + i;
  }
};

// The first position that a row attends to, its own being the last; a window of 0 is the whole text.
OUTRIDER_SHARED_CODE inline int32_t first_visible(int32_t position, int32_t window) {
  return window > 0 && position >= window ? position + 1 - window : 0;
}

// Where leaves of a rank's columns end (shard.h), its first column being 0.
struct LeafEnds {
  int32_t count = 0;  // a power of two
  int32_t end[kMaxSlices] = {};

  OUTRIDER_SHARED_CODE int32_t begin(int32_t leaf) const { return leaf > 0 ? end[leaf - 1] : 0; }
};
LeafEnds leaves_from_ends(std::span<const int64_t> ends);

// A mixture's experts as one wide MLP: leaf by leaf the columns of every expert, in the order of their ids,
// then those of the shared one. So in every leaf's chain a token's experts come in that order, and those that
// it did not choose add zeros.
struct ExpertColumns {
  int32_t experts = 0;
  LeafEnds each, shared;  // of one expert's columns; of the shared one's, all 0 where there is none

  OUTRIDER_SHARED_CODE int32_t begin(int32_t leaf) const {
    return each.begin(leaf) * experts + shared.begin(leaf);
  }
  OUTRIDER_SHARED_CODE int32_t size() const { return begin(each.count); }
  struct Run {
    int32_t expert = 0;  // `experts`: the shared one
    int32_t end = 0;     // behind its columns here
  };
  OUTRIDER_SHARED_CODE Run run_of(int32_t column) const {
    int32_t leaf = 0;
    while (column >= begin(leaf + 1)) ++leaf;
    const int32_t width = each.end[leaf] - each.begin(leaf), at = column - begin(leaf);
    if (at >= width * experts) return {experts, begin(leaf + 1)};
    return {at / width, begin(leaf) + (at / width + 1) * width};
  }
  OUTRIDER_SHARED_CODE int32_t expert_of(int32_t column) const { return run_of(column).expert; }
};

// Attention cuts the KV at multiples of this many positions, counted from the start of the sequence.
constexpr int kSplitPositions = 128;
OUTRIDER_SHARED_CODE inline int32_t split_count(int32_t positions) {
  return (positions + kSplitPositions - 1) / kSplitPositions;
}

}  // namespace outrider::cuda
