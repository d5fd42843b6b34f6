// The output head of a draft model in int8: from a quantised hidden state, which is short, to the logits that
// the draft drew from, which are many, on both ends with the same bits. The integer products are exact in any
// order on any machine, and what follows is IEEE single precision in one fixed order.
//
// States and rows are rotated: blocks of columns go through an orthonormal Walsh-Hadamard transform, which
// changes no product and spreads channels that are far larger than the others over their block (QuaRot,
// Ashkboos et al. 2024).
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/hidden_row.h"
#include "base/shard.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace outrider {

// Immutable after loading; safe to share between threads.
class DraftHead {
 public:
  // Memory of one caller; it grows to what a call needs and is kept.
  struct Scratch {
    std::vector<uint32_t> states;
  };

  // Loads the rows of these ids, cut at the model's last id. kUnsupported: fp8 output heads, and hidden
  // states of more than 32768 elements. `threads` threads read.
  static Result<DraftHead> load(const std::filesystem::path& model_directory, IndexRange ids, int threads);

  IndexRange ids() const { return ids_; }
  int64_t hidden_size() const { return hidden_size_; }
  // Hashes all rows of the stored head and what is done to them here: equal means equal logits.
  uint64_t fingerprint() const { return fingerprint_; }
  int64_t bytes() const { return static_cast<int64_t>(codes_.bytes() + scales_.bytes()); }

  // Fills codes and scale. `hidden` [hidden_size] comes from the final norm and is overwritten. `bits`:
  // kLeastHiddenBits to kMostHiddenBits. False: it is not finite, or zero.
  bool quantize(std::span<float> hidden, int bits, HiddenRow& row) const;

  // logits[r, i] is that of id ids.begin + i after rows[r]; `ids` lie within ours, rows have hidden_size
  // codes.
  void logits(std::span<const HiddenRow> rows, IndexRange ids, TensorView<float, 2> logits,
              Scratch& scratch) const;

 private:
  DraftHead(IndexRange ids, int64_t hidden_size);

  IndexRange ids_;
  int64_t hidden_size_ = 0;
  int64_t quads_ = 0;  // of columns, the last one padded
  uint64_t fingerprint_ = 0;
  Buffer<uint8_t> codes_;  // [tile][quad][16][4] of code + 128
  Buffer<float> scales_;   // [id]
};

// In place; the length of a block is a power of two.
void rotate_blocks(std::span<float> row, int64_t block);
// The largest power of two that divides the hidden size, at most 256.
int64_t rotation_block(int64_t hidden_size);

}  // namespace outrider
