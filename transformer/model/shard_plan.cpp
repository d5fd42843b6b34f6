#include "transformer/model/shard_plan.h"

#include <algorithm>

namespace outrider {
namespace {

constexpr int64_t kMlpUnit = 32;  // columns of the intermediate activations in one unit of a leaf

int64_t mlp_units(const ModelConfig& config) { return (config.intermediate_size + kMlpUnit - 1) / kMlpUnit; }

// Where each leaf of this rank ends, relative to the rank's first column.
template <class ColumnOfUnit>
std::vector<int64_t> leaf_ends(int64_t units, Shard shard, ColumnOfUnit column) {
  const IndexRange leaves = shard_leaves(shard);
  const int64_t first = column(leaf_units(units, static_cast<int>(leaves.begin)).begin);
  std::vector<int64_t> ends;
  for (int64_t leaf = leaves.begin; leaf < leaves.end; ++leaf)
    ends.push_back(column(leaf_units(units, static_cast<int>(leaf)).end) - first);
  return ends;
}

}  // namespace

ShardPlan::ShardPlan(const ModelConfig& config, Shard s)
    : shard(s),
      query_heads(shard_units(config.num_heads, s)),
      kv_heads(kv_heads_of(query_heads, config.num_heads, config.num_kv_heads)),
      vocab(vocab_range(config.vocab_size, s)) {
  const auto mlp_column = [&](int64_t unit) { return std::min(unit * kMlpUnit, config.intermediate_size); };
  const IndexRange units = shard_units(mlp_units(config), s);
  mlp_columns = {mlp_column(units.begin), mlp_column(units.end)};
  attention_leaf_ends = leaf_ends(config.num_heads, s, [&](int64_t head) { return head * config.head_dim; });
  mlp_leaf_ends = leaf_ends(mlp_units(config), s, mlp_column);
}

}  // namespace outrider
