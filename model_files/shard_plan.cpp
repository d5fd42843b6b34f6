#include "model_files/shard_plan.h"

#include <algorithm>

namespace outrider {
namespace {

constexpr int64_t kMlpUnit = 32;  // columns of the intermediate activations in one unit of a leaf

// Where each leaf of this rank ends, relative to the rank's first column.
template <class ColumnOfUnit>
std::vector<int64_t> ends_of_leaves(int64_t units, Shard shard, ColumnOfUnit column) {
  const IndexRange leaves = shard_leaves(shard);
  const int64_t first = column(leaf_units(units, static_cast<int>(leaves.begin)).begin);
  std::vector<int64_t> ends;
  for (int64_t leaf = leaves.begin; leaf < leaves.end; ++leaf)
    ends.push_back(column(leaf_units(units, static_cast<int>(leaf)).end) - first);
  return ends;
}

}  // namespace

MlpCut::MlpCut(int64_t intermediate_size, Shard shard) {
  const int64_t units = (intermediate_size + kMlpUnit - 1) / kMlpUnit;
  const auto column = [&](int64_t unit) { return std::min(unit * kMlpUnit, intermediate_size); };
  const IndexRange own = shard_units(units, shard);
  columns = {column(own.begin), column(own.end)};
  leaf_ends = ends_of_leaves(units, shard, column);
}

DeltaNetPart::DeltaNetPart(const DeltaNetConfig& config, Shard shard)
    : values(shard_units(config.value_heads, shard)), key_dim(config.key_dim), value_dim(config.value_dim) {
  for (int64_t value = values.begin; value < values.end; ++value) keys.push_back(config.key_of(value));
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  leaf_ends =
      ends_of_leaves(config.value_heads, shard, [&](int64_t head) { return head * config.value_dim; });
}

ShardPlan::ShardPlan(const ModelConfig& config, Shard s)
    : shard(s),
      query_heads(shard_units(config.num_heads, s)),
      kv_heads(kv_heads_of(query_heads, config.num_heads, config.num_kv_heads)),
      vocab(vocab_range(config.vocab_size, s)) {
  MlpCut mlp(config.intermediate_size, s);
  mlp_columns = mlp.columns;
  mlp_leaf_ends = std::move(mlp.leaf_ends);
  if (config.conv_taps > 0) {
    MlpCut channels(config.hidden_size, s);
    conv_channels = channels.columns;
    conv_leaf_ends = std::move(channels.leaf_ends);
  }
  if (config.delta_net) delta_net.emplace(*config.delta_net, s);
  attention_leaf_ends =
      ends_of_leaves(config.num_heads, s, [&](int64_t head) { return head * config.output_dim(); });
  kv_leaf_ends = ends_of_leaves(config.num_kv_heads, s, [&](int64_t head) { return head * config.head_dim; });
}

LayerPart::LayerPart(const ModelConfig& config, const ShardPlan& plan, const LayerKind& kind)
    : query_heads(plan.query_heads.size()), has_keys(kind.kv_of < 0), values_are_keys(kind.values_are_keys) {
  const ModelConfig sized = config.sized_for(kind);
  head_dim = sized.head_dim;
  kv_heads = kv_heads_of(plan.query_heads, sized.num_heads, sized.num_kv_heads);
  heads_per_kv = sized.heads_per_kv_head();
  mlp_columns = MlpCut(sized.intermediate_size, plan.shard).columns.size();
}

}  // namespace outrider
