#include "transformer/model/batch.h"

#include "base/log.h"

namespace outrider {

BatchRows count_rows(std::span<const BatchSlice> batch) {
  BatchRows count;
  for (const BatchSlice& slice : batch) {
    count.rows += static_cast<int64_t>(slice.tokens.size());
    count.logit_rows += slice.logit_rows;
  }
  return count;
}

TokenId EmbeddedIds::readable(TokenId id) const {
  if (id.value() >= 0 && id.value() < vocab_size) return id;
  CHECK(stand_in, "token {} of {}", id.value(), vocab_size);
  return *stand_in;
}

Status append_batch(KvCache& kv, std::span<const BatchSlice> batch, int64_t max_positions) {
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto count = static_cast<int64_t>(batch[i].tokens.size());
    const int64_t end = kv.length(batch[i].sequence) + count;
    CHECK(end <= max_positions, "position {} of {}", end, max_positions);
    if (Status status = kv.append(batch[i].sequence, count); !status.ok()) {
      for (size_t j = 0; j < i; ++j)
        kv.truncate(batch[j].sequence,
                    kv.length(batch[j].sequence) - static_cast<int64_t>(batch[j].tokens.size()));
      return status;
    }
  }
  return {};
}

}  // namespace outrider
