#include "start/block_ends.h"

#include <algorithm>

#include "model/kv/kv_shape_of.h"

namespace outrider {
namespace {

// Blocks of the rank with the largest ones, on any back-end, if all numbers had 32 bits.
int64_t most_bytes_of_block(const ModelSettings& models, const Preparation& prepared) {
  const ModelConfig& config = prepared.target;
  const size_t states = prepared.head && models.head() ? prepared.head->aux_layers.size() : 0;
  const KvShape shape =
      kv_shape_of(config, ShardPlan(config, {0, models.tensor_parallel_size}), KvType::kFloat32, states);
  int64_t numbers = shape.hidden_state_size;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    if (shape.keeps_row(layer))
      numbers += shape.row_size;
    else if (shape.holds(layer))
      numbers += 2 * shape.size(layer).kv_heads * shape.size(layer).head_dim;
  }
  return numbers * kBlockTokens * element_bytes(shape.type);
}

}  // namespace

int block_queue_limit(const ModelSettings& models, const Preparation& prepared) {
  const int64_t part = std::max(kBlockPartBytes, most_bytes_of_block(models, prepared));
  const int64_t messages = kMostUnreadBlockBytes / part / std::max(1, models.prefill_groups);
  return static_cast<int>(std::max<int64_t>(messages, 2));
}

int64_t block_inbox_bytes(const KvCache& kv, int64_t max_context) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t longest = std::max(kMost, kv_blocks_for(max_context) * kv.block_bytes());
  return std::min(kv.num_blocks() * kv.block_bytes(), longest);
}

LocalBlockEnds::LocalBlockEnds(const ModelSettings& models, const Preparation& prepared)
    : prefill_groups_(models.prefill_groups), ranks_(models.tensor_parallel_size) {
  if (prefill_groups_ == 0) return;
  const auto limit = static_cast<size_t>(block_queue_limit(models, prepared));
  for (int i = 0; i < models.data_parallel_size * ranks_; ++i)
    hubs_.push_back(make_inproc_hub({.high_water_mark = limit}));
}

BlockEnd LocalBlockEnds::end(int group, int rank) const {
  if (prefill_groups_ == 0) return {};
  if (group >= prefill_groups_) {
    const auto at = static_cast<size_t>((group - prefill_groups_) * ranks_ + rank);
    return {
        .connect = {}, .inbox = hubs_[at]->coordinator_end(), .inbox_name = static_cast<uint64_t>(group) + 1};
  }
  return {.connect = [hubs = hubs_, first = prefill_groups_, ranks = ranks_,
                      rank](uint64_t inbox) -> Result<std::unique_ptr<Transport>> {
            const int64_t at = (static_cast<int64_t>(inbox) - 1 - first) * ranks + rank;
            if (at < 0 || at >= static_cast<int64_t>(hubs.size()))
              return invalid_argument(fmt::format("there is no inbox {}", inbox));
            return hubs[static_cast<size_t>(at)]->connect();
          },
          .inbox = nullptr};
}

}  // namespace outrider
