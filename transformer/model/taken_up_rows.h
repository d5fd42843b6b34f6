// Which rows of a pass go on from where they exited once (ExitedTokens), and which begin with the first
// layer. The latter go through the first layers alone, beside the keys and values of the former; then all
// rows are put in the order of the batch. One thread, the model's.
#pragma once

#include <span>
#include <vector>

#include "transformer/model/batch.h"
#include "transformer/model/exited_tokens.h"

namespace outrider {

class TakenUpRows {
 public:
  // Of a batch that is in the cache: brings back the keys and values of the rows that exited. Returns behind
  // how many layers, the same for all; 0: there are none.
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
