// Rows of one pass whose best tokens the model's device ranks, so that none of their logits come to the host:
// of nodes of trees under match rules. Internal to the model drafter.
#pragma once

#include <span>
#include <vector>

#include "draft_worker/drafted_sequence.h"
#include "transformer/model/token_runner.h"

namespace outrider {

class RankedPass {
 public:
  // It must outlive this.
  explicit RankedPass(TokenRunner& runner) : runner_(runner) {}

  void begin();
  // The best `count` tokens are wanted of this row of the pass, which stands behind the committed text and
  // `step.drafted`. Rows in ascending order.
  void add(const DraftStep& step, int64_t row, size_t count);
  // Whether the device takes them all; else they are the host's.
  bool is_taken();
  Status run(std::span<const BatchSlice> slices) { return runner_.look(slices, looks_); }
  // At most as many as were wanted; none where the row is not finite.
  std::span<const RankedToken> best(int64_t row) const;

 private:
  TokenRunner& runner_;
  std::vector<TokenLook> looks_;
  std::vector<std::vector<TokenId>> drafted_;  // by look
};

}  // namespace outrider
