// Rows of one pass whose best tokens the model's device ranks, so that their logits never come to the host:
// rows of tree nodes under match rules. Internal to the model drafter.
#pragma once

#include <span>
#include <vector>

#include "draft_worker/model/drafted_sequence.h"
#include "model/token_runner.h"

namespace outrider {

class RankedPass {
 public:
  // `runner` must outlive this.
  explicit RankedPass(TokenRunner& runner) : runner_(runner) {}

  void begin();
  // Requests the best `count` tokens of this row of the pass, which stands after the committed text and
  // `step.drafted`. Rows in ascending order.
  void add(const DraftStep& step, int64_t row, size_t count);
  // Whether the device ranks all requested rows; else the host does.
  bool is_taken();
  Status run(std::span<const BatchSlice> slices) { return runner_.look(slices, looks_); }
  // At most as many tokens as requested; none if the row is not finite.
  std::span<const RankedToken> best(int64_t row) const;

 private:
  TokenRunner& runner_;
  std::vector<TokenLook> looks_;
  std::vector<std::vector<TokenId>> drafted_;  // by requested row
};

}  // namespace outrider
