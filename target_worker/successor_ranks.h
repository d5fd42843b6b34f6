// The tokens that the model ranks best behind rows of a pass, whatever is decided there: what draft workers
// guess with (TokenSuccessors). Each rank of the group ranks its slice of the vocabulary, and the lists are
// merged, so the answer does not depend on the number of ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/collectives.h"
#include "comm/messages.h"
#include "transformer/model/logits.h"
#include "transformer/sampling/top_tokens.h"

namespace outrider {

class SuccessorRanks {
 public:
  // `group` must outlive it; its ranks call rank() with the same rows and their own shard.
  explicit SuccessorRanks(Collectives& group) : group_(group) {}

  // [rows, kSuccessors] of these rows of the logits, raw ones in host memory, which stay as they are; -1
  // where there are no more, and for a row that is not finite. One collective for all rows, none for no rows.
  // Valid until the next call.
  std::span<const TokenId> rank(const LogitsShard& logits, std::span<const int64_t> rows);

 private:
  Collectives& group_;
  TopTokens top_;
  std::vector<float> chunk_max_;
  std::vector<uint64_t> mine_, all_;
  std::vector<TokenId> best_;
};

}  // namespace outrider
