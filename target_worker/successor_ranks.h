// The tokens that the model ranks best behind rows of a pass, whatever is decided there: what draft workers
// guess with (TokenSuccessors). Each rank of the group ranks its slice of the vocabulary, and the lists are
// merged, so the answer does not depend on the number of ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/collectives.h"
#include "comm/messages/drafting.h"
#include "kernels/sampling/top_tokens.h"
#include "model/logits.h"
#include "target_worker/verifier.h"

namespace outrider {

class SuccessorRanks {
 public:
  // `group` must outlive it; its ranks ask for the same rows, of their own shard.
  explicit SuccessorRanks(Collectives& group) : group_(group) {}

  // Ranks these rows of the logits, raw ones, which stay as they are. Before verify(), which overwrites them;
  // on a device the verifier does it where they are.
  void begin(std::span<const int64_t> rows, const PlacedLogits& logits, Verifier& verifier);
  // [rows, kSuccessors] of the rows of begin(), after verify(); -1 where there are no more, and for a row
  // that is not finite. One collective for all rows, none for no rows. Valid until the next begin().
  std::span<const TokenId> finish(const Verifier& verifier);

 private:
  void rank_here(std::span<const int64_t> rows, const LogitsShard& logits);

  Collectives& group_;
  TopTokens top_;
  std::vector<float> chunk_max_;
  std::vector<uint64_t> mine_, all_;
  std::vector<TokenId> best_;
  size_t rows_ = 0;
  bool on_device_ = false;
};

}  // namespace outrider
