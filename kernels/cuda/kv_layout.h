// How keys and values of one layer lie in device memory.
//   fp32: [block][kv_head][token of the block][head_dim]
//   bf16: [block][kv_head][tile of 16 dimensions][256], each tile an operand of a matrix instruction: for
//   keys the 16 tokens are its rows, for values the 16 dimensions are. head_dim is padded to whole tiles with
//   zeros, which are never overwritten.
#pragma once

#include <cstdint>

#include "base/kv_shape.h"
#include "kernels/cuda/cuda_layout.h"

namespace outrider::cuda {

static_assert(kBlockTokens == kTileRows && kBlockTokens == kStep);

// Where a value's token stands among the 16 columns of its tile: tokens t and t + 8 are neighbours, since the
// lane that computes the weight of one has the other's too.
OUTRIDER_SHARED_CODE inline int32_t value_column(int32_t token) { return token % 8 * 2 + token / 8; }

// Where the keys and values of a row's positions lie: each position in its slot, but for the tail of a tree's
// node, which is given slot by slot.
constexpr int32_t kNoTail = INT32_MAX;
struct RowSlots {
  int32_t tail_begin = kNoTail;   // position
  const int32_t* tail = nullptr;  // slots from there on, ascending

  OUTRIDER_SHARED_CODE int32_t slot(int32_t position) const {
    return position < tail_begin ? position : tail[position - tail_begin];
  }
  // Whether a block of the sequence's table holds the positions that its number says.
  OUTRIDER_SHARED_CODE bool is_in_place(int32_t block) const {
    return (block + 1) * static_cast<int32_t>(kBlockTokens) <= tail_begin;
  }
};

// Attention over a tree's nodes: splits in front of every tail are read once for a tile, as a chain's; those
// with tails are a row's own. Splits before this one are shared.
OUTRIDER_SHARED_CODE inline int32_t shared_splits(int32_t tail_begin, int32_t last_position) {
  return tail_begin == kNoTail ? split_count(last_position + 1) : tail_begin / kSplitPositions;
}

struct KvLayer {
  KvType type = KvType::kFloat32;
  void* keys = nullptr;
  void* values = nullptr;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;    // of a key
  // Above 0: a value is the first `latent_dim` dimensions of its key, and is not stored.
  int32_t latent_dim = 0;

  OUTRIDER_SHARED_CODE bool has_values() const { return latent_dim == 0; }
  OUTRIDER_SHARED_CODE int32_t value_dim() const { return has_values() ? head_dim : latent_dim; }
  OUTRIDER_SHARED_CODE int32_t dim_tiles() const { return (head_dim + kStep - 1) / kStep; }
  // Elements of one head in one block.
  OUTRIDER_SHARED_CODE int64_t head_elements() const {
    return type == KvType::kBFloat16 ? int64_t{dim_tiles()} * kTileElements : kBlockTokens * head_dim;
  }
  OUTRIDER_SHARED_CODE int64_t block_elements() const { return kv_heads * head_elements(); }
  OUTRIDER_SHARED_CODE int64_t head_offset(int64_t block, int32_t head) const {
    return (block * kv_heads + head) * head_elements();
  }
  OUTRIDER_SHARED_CODE int64_t key_offset(int64_t block, int32_t head, int32_t token, int32_t dim) const {
    return head_offset(block, head) + (type == KvType::kBFloat16
                                           ? dim / kStep * kTileElements + fragment_offset(token, dim % kStep)
                                           : token * head_dim + dim);
  }
  OUTRIDER_SHARED_CODE int64_t value_offset(int64_t block, int32_t head, int32_t token, int32_t dim) const {
    return head_offset(block, head) +
           (type == KvType::kBFloat16
                ? dim / kStep * kTileElements + fragment_offset(dim % kStep, value_column(token))
                : token * head_dim + dim);
  }
};

// States of tokens, [block][token of the block][size] in the type of keys and values.
struct HiddenStateRows {
  KvType type = KvType::kFloat32;
  void* data = nullptr;
  int64_t size = 0;  // numbers of one token

  OUTRIDER_SHARED_CODE int64_t offset(int64_t block, int64_t token) const {
    return (block * kBlockTokens + token) * size;
  }
};

}  // namespace outrider::cuda
