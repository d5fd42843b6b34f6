// Sizes of a paged key/value cache, shared by its tables and by every kind of storage.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider {

constexpr int64_t kBlockTokens = 16;  // consecutive positions of one sequence in a block

constexpr int64_t kv_blocks_for(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

enum class KvType : uint8_t { kFloat32, kBFloat16 };

constexpr int64_t element_bytes(KvType type) { return type == KvType::kBFloat16 ? 2 : 4; }

// Keys and values of one layer, where layers differ.
struct KvLayerSize {
  int64_t kv_heads = 0;  // of this rank
  int64_t head_dim = 0;
  int64_t of = 0;  // the layer that holds them: itself, or an earlier one
  bool operator==(const KvLayerSize&) const = default;
};

struct KvShape {
  int64_t layers = 0;
  int64_t kv_heads = 0;  // of this rank
  int64_t head_dim = 0;
  KvType type = KvType::kFloat32;
  int64_t hidden_state_size =
      0;  // numbers kept of each token besides (ModelOptions::aux_layers), in the same type
  // A layer with a short convolution or a gated delta net keeps a row of `row_size` numbers of each token in
  // place of keys and values.
  std::vector<bool> row_layers = {};  // by layer; empty: there are none
  int64_t row_size = 0;               // of this rank
  std::vector<KvLayerSize> layer_sizes = {};  // by layer; empty: all have kv_heads and head_dim

  KvLayerSize size(int64_t layer) const {
    return layer_sizes.empty() ? KvLayerSize{kv_heads, head_dim, layer}
                               : layer_sizes[static_cast<size_t>(layer)];
  }
  // Whether it has keys and values of its own.
  bool holds(int64_t layer) const { return size(layer).of == layer; }
  bool keeps_row(int64_t layer) const {
    return !row_layers.empty() && row_layers[static_cast<size_t>(layer)];
  }
};

}  // namespace outrider
