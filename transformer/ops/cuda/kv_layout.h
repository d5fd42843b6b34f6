// How keys and values of one layer lie in device memory.
//   fp32: [block][kv_head][token of the block][head_dim]
//   bf16: [block][kv_head][tile of 16 dimensions][256], each tile an operand of a matrix instruction: of the
//   keys the 16 tokens are its rows, of the values the 16 dimensions. head_dim is padded to whole tiles with
//   zeros, which nobody writes.
#pragma once

#include <cstdint>

#include "transformer/kv/kv_shape.h"
#include "transformer/ops/cuda/cuda_layout.h"

namespace outrider::cuda {

static_assert(kBlockTokens == kTileRows && kBlockTokens == kStep);

// Where a value's token stands among the 16 columns of its tile: tokens t and t + 8 are neighbours, since the
// lane that computes the weight of one has the other's too.
OUTRIDER_SHARED_CODE inline int32_t value_column(int32_t token) { return token % 8 * 2 + token / 8; }

struct KvLayer {
  KvType type = KvType::kFloat32;
  void* keys = nullptr;
  void* values = nullptr;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;

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

}  // namespace outrider::cuda
