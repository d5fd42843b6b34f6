// How the columns of published codes are laid out on a device: pure arithmetic, done once to tell what memory
// a model takes and once more to load it. What shares numbers must share a unit (CodeForm). So where groups
// do not fill units, as leaves may end anywhere and act-order groups any columns, columns are put side by
// side by group and units are filled up; then the activations are put into that order first. It is a function
// of the unsharded columns of a slice, so ranks change no bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/shard.h"
#include "base/status.h"
#include "kernels/cuda/code_form.h"
#include "model_files/coded_matrix.h"

namespace outrider::cuda {

// Columns of a matrix of codes. Several, one beside the other, are what a device multiplies as one.
struct CodedPiece {
  const CodedMatrix* coded = nullptr;
  IndexRange columns;
};

struct CodePlan {
  struct Unit {
    int32_t piece = -1;  // -1: it has no columns
    int32_t group = 0;   // of the piece
  };

  CodeForm form;
  Slices slices;                 // of the columns as they lie on the device
  std::vector<int32_t> columns;  // which column of the pieces lies at each, -1 for none; empty: in order
  std::vector<Unit> units;       // of all steps
};

// The pieces are of one scheme. leaf_ends: where leaves end among all their columns; empty: not cut.
Result<CodePlan> plan_codes(std::span<const CodedPiece> pieces, const std::vector<int64_t>& leaf_ends);

// Row `row` of all pieces as pack_rows and pack_words want it: codes, two a byte where they are of four bits,
// and words. A NaN among fp8 codes makes the scale of its unit NaN.
void stage_codes(const CodePlan& plan, std::span<const CodedPiece> pieces, int64_t row, std::byte* codes,
                 uint16_t* words);

// The bytes of a row's codes, and how many words it has.
int64_t staged_code_bytes(const CodePlan& plan);
int64_t staged_words(const CodePlan& plan);

}  // namespace outrider::cuda
