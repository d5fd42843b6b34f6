#include "start/block_ends.h"

namespace outrider {
namespace {

// Messages of a mebibyte each that a rank may have unread; a prompt whose blocks are more is computed where
// it is decoded.
constexpr size_t kMostUnread = 4096;

}  // namespace

LocalBlockEnds::LocalBlockEnds(const ModelSettings& models)
    : prefill_groups_(models.prefill_groups), ranks_(models.tensor_parallel_size) {
  if (prefill_groups_ == 0) return;
  for (int i = 0; i < models.data_parallel_size * ranks_; ++i)
    hubs_.push_back(make_inproc_hub({.high_water_mark = kMostUnread}));
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
