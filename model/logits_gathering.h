// Brings the vocabulary's parts of all ranks together in host memory. One thread of every rank.
#pragma once

#include <vector>

#include "comm/collectives.h"
#include "model/logits.h"

namespace outrider {

class LogitsGathering {
 public:
  // `group` must outlive it.
  LogitsGathering(Collectives& group, int64_t vocab_size);

  // Every rank calls it with its part of the same rows. For those that want them: whole rows, valid until the
  // next call.
  void exchange(const LogitsShard& shard);
  TensorView<float, 2> rows();

 private:
  IndexRange part(int rank) const;

  Collectives& group_;
  const int64_t vocab_size_;
  int64_t widest_ = 0;                     // all ranks send as much as the widest has
  int64_t count_ = 0;                      // of the rows that were exchanged
  std::vector<float> mine_, all_, whole_;  // [rows, widest_], [ranks, rows, widest_], [rows, vocab_size_]
};

}  // namespace outrider
