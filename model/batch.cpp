#include "model/batch.h"

#include <algorithm>

#include "base/log.h"

namespace outrider {
namespace {

void check_parents(const BatchSlice& slice) {
  CHECK(slice.parents.size() <= slice.tokens.size(), "{} parents of {} tokens", slice.parents.size(),
        slice.tokens.size());
  for (size_t i = 0; i < slice.parents.size(); ++i)
    CHECK(slice.parents[i] >= -1 && slice.parents[i] < static_cast<int32_t>(i), "node {} follows node {}", i,
          slice.parents[i]);
}

}  // namespace

BatchRows count_rows(std::span<const BatchSlice> batch) {
  BatchRows count;
  for (const BatchSlice& slice : batch) {
    count.rows += static_cast<int64_t>(slice.tokens.size());
    count.logit_rows += slice.logit_rows;
  }
  return count;
}

int64_t SlicePlace::depth(int64_t slot) const {
  if (slot < tree_begin) return 0;
  if (!is_tree()) return slot - tree_begin + 1;
  int64_t depth = 0;
  for (auto node = static_cast<int32_t>(slot - tree_begin); node >= 0;
       node = parents[static_cast<size_t>(node)])
    ++depth;
  return depth;
}

int32_t* SlicePlace::write_path(int64_t slot, int32_t* to) const {
  int32_t* const end = to + depth(slot);
  auto node = static_cast<int32_t>(slot - tree_begin);
  for (int32_t* at = end; at != to;) {
    *--at = static_cast<int32_t>(tree_begin) + node;
    node = is_tree() ? parents[static_cast<size_t>(node)] : node - 1;
  }
  return end;
}

SlicePlace place_of(const BatchSlice& slice, const KvCache& kv) {
  const int64_t end = kv.length(slice.sequence);
  const auto tokens = static_cast<int64_t>(slice.tokens.size());
  int32_t before = -1;
  const bool is_chain = std::all_of(slice.parents.begin(), slice.parents.end(),
                                    [&](int32_t parent) { return parent == before++; });
  if (is_chain) return {.first_slot = end - tokens, .tree_begin = end, .parents = {}};
  return {.first_slot = end - tokens,
          .tree_begin = end - static_cast<int64_t>(slice.parents.size()),
          .parents = slice.parents};
}

TokenId EmbeddedIds::readable(TokenId id) const {
  if (id.value() >= 0 && id.value() < vocab_size) return id;
  CHECK(stand_in, "token {} of {}", id.value(), vocab_size);
  return *stand_in;
}

Status append_batch(KvCache& kv, std::span<const BatchSlice> batch, int64_t max_positions) {
  for (const BatchSlice& slice : batch) check_parents(slice);
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
