// What one forward pass sees: consecutive tokens of some sequences.
#pragma once

#include <optional>
#include <span>

#include "base/status.h"
#include "base/types.h"
#include "transformer/kv/kv_cache.h"

namespace outrider {

// Consecutive tokens of one sequence: positions [kv.length(sequence), + tokens.size()).
struct BatchSlice {
  KvHandle sequence;
  std::span<const TokenId> tokens;
  int64_t logit_rows = 0;    // of the last so many tokens; 0 for a prefill chunk that is not the last
  bool hidden_only = false;  // nobody reads these rows' logits, but LogitsShard::hidden
};

struct BatchRows {
  int64_t rows = 0;
  int64_t logit_rows = 0;
};
BatchRows count_rows(std::span<const BatchSlice> batch);

// Which ids a model has an embedding for, and what it reads in place of others. Without a stand-in those are
// the caller's mistake.
struct EmbeddedIds {
  int64_t vocab_size = 0;
  std::optional<TokenId> stand_in;
  TokenId readable(TokenId id) const;
};

// Makes room for every slice in its sequence. kResourceExhausted leaves every sequence as it was.
Status append_batch(KvCache& kv, std::span<const BatchSlice> batch, int64_t max_positions);

}  // namespace outrider
