// Input of one forward pass: consecutive tokens of some sequences, or trees of tokens behind them.
#pragma once

#include <optional>
#include <span>

#include "base/status.h"
#include "base/types.h"
#include "model/kv/kv_cache.h"

namespace outrider {

class ExitedTokens;

// Tokens of one sequence, whose keys and values take slots [kv.length(sequence), + tokens.size()) in order.
// Without parents every token follows the one in front of it: slots are positions.
struct BatchSlice {
  KvHandle sequence;
  std::span<const TokenId> tokens;
  // Logits are computed for the last `logit_rows` tokens; 0 for a prefill chunk that is not the last.
  int64_t logit_rows = 0;
  // These rows are used only through LogitsShard::hidden, their logits are not read.
  bool hidden_only = false;
  // Parents of the last parents.size() tokens, which are a tree: node i follows node parents[i] < i, or, with
  // -1, the last token in front of the tree. Its position is that of its parent plus one, and it attends to
  // the positions in front of the tree, its ancestors and itself: it has the bits of the chain that ends in
  // it. Until KvCache::keep_path or truncate the sequence cannot go on.
  std::span<const int32_t> parents = {};
  // Tokens of this sequence that have been through the first layers (early exit). Where the slice begins with
  // such tokens, they continue from there, with the same bits. Null, or a model on a device: all tokens begin
  // with the first layer.
  const ExitedTokens* exited = nullptr;
};

struct BatchRows {
  int64_t rows = 0;
  int64_t logit_rows = 0;
};
BatchRows count_rows(std::span<const BatchSlice> batch);

// Where a slice's tokens stand in their sequence, once they are appended.
struct SlicePlace {
  int64_t first_slot = 0;            // of the first token
  int64_t tree_begin = 0;            // slot and position of the first node; a chain: where the slice ends
  std::span<const int32_t> parents;  // empty: a chain, however it was written

  bool is_tree() const { return !parents.empty(); }
  int64_t position(int64_t slot) const { return slot < tree_begin ? slot : tree_begin + depth(slot) - 1; }
  // Nodes from the top of the tree to this one; 0 in front of the tree.
  int64_t depth(int64_t slot) const;
  // Writes their slots from the top down, and returns behind the last one.
  int32_t* write_path(int64_t slot, int32_t* to) const;
};
SlicePlace place_of(const BatchSlice& slice, const KvCache& kv);
// Room for the paths of all tokens of a batch.
constexpr int64_t path_slots(int64_t rows) { return rows * (rows + 1) / 2; }

// Which ids a model has an embedding for, and what it reads in place of others. Without a stand-in those are
// the caller's mistake.
struct EmbeddedIds {
  int64_t vocab_size = 0;
  std::optional<TokenId> stand_in;
  TokenId readable(TokenId id) const;
};

// Makes room for every slice in its sequence. kResourceExhausted leaves every sequence as it was. A parent
// that is no earlier node, or a slot beyond max_positions, is the caller's mistake.
Status append_batch(KvCache& kv, std::span<const BatchSlice> batch, int64_t max_positions);

}  // namespace outrider
