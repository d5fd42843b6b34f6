// Splits the rows of a pass into rows that continue behind the layer where they exited before (ExitedTokens)
// and rows that begin with the first layer. The rows that begin run through the first layers alone, with the
// exited rows' keys and values restored beside them; then all rows are put in the order of the batch. Used by
// the model's thread only.
#pragma once

#include <span>
#include <vector>

#include "model/batch.h"
#include "model/exited_tokens.h"

namespace outrider {

class TakenUpRows {
 public:
  // Restores the keys and values of a batch's exited rows; the batch has its KV slots already. Returns the
  // number of layers that these rows have passed, the same for all; 0: no row exited.
  int64_t split(std::span<const BatchSlice> batch, const KvCache& kv, CpuKvStorage& storage);
  // The tokens that begin with the first layer; without slices that have none.
  std::span<const BatchSlice> rest() const { return rest_; }
  // `x` begins with the rows of rest(); makes it those of the whole batch.
  void join(std::span<const BatchSlice> batch, ActivationRows& x) const;

  int64_t total() const { return total_; }  // rows that did not begin with the first layer, of all batches

 private:
  std::vector<BatchSlice> rest_;
  std::vector<int64_t> exited_;  // of every slice: how many of its tokens exited
  int64_t total_ = 0;
};

}  // namespace outrider
