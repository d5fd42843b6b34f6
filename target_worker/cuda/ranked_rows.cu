#include "target_worker/cuda/ranked_rows.h"

#include "kernels/sampling/cuda/block_ops.h"
#include "kernels/sampling/ordered_key.h"
#include "target_worker/successor_ranks.h"

namespace outrider::cuda {
namespace {

struct RankTask {
  const float* logits = nullptr;  // [*, width]
  const int32_t* rows = nullptr;
  uint64_t* lists = nullptr;  // [rows, kRankedWords]
  int32_t width = 0, first_token = 0;
};

// One read of the row: every thread keeps the best of its tokens in order. Then the best head of all threads,
// kSuccessors times.
__global__ void __launch_bounds__(kThreads) rank_row(const RankTask task) {
  await_inputs();
  const float* logits = task.logits + int64_t{task.rows[blockIdx.x]} * task.width;
  uint64_t best[kSuccessors] = {};
  bool finite = true;
  for (int32_t i = thread(); i < task.width; i += kThreads) {
    const float value = logits[i];
    if (value == kMinusInfinity) continue;
    const RankedToken token = RankedToken::of(value, task.first_token + i);
    finite = finite && token.is_finite();
    uint64_t moved = token.packed;
    if (moved <= best[kSuccessors - 1]) continue;
    OUTRIDER_UNROLL
    for (int32_t k = 0; k < kSuccessors; ++k) {
      const uint64_t kept = best[k];
      best[k] = moved > kept ? moved : kept;
      moved = moved > kept ? kept : moved;
    }
  }
  uint64_t* list = task.lists + int64_t{blockIdx.x} * kRankedWords;
  for (int32_t k = 0; k < kSuccessors; ++k) {
    const uint64_t next = max_block(best[0]);
    if (thread() == 0) list[k] = next;
    if (next == 0 || best[0] != next) continue;
    OUTRIDER_UNROLL
    for (int32_t j = 0; j + 1 < kSuccessors; ++j) best[j] = best[j + 1];
    best[kSuccessors - 1] = 0;
  }
  const uint64_t failed = max_block(finite ? 0 : 1);
  if (thread() == 0) list[kSuccessors] = failed;
}

}  // namespace

RankedRows::RankedRows(int64_t most_rows)
    : rows_(most_rows),
      lists_(most_rows * kRankedWords),
      device_rows_(most_rows),
      device_lists_(most_rows * kRankedWords) {}

void RankedRows::queue(std::span<const int64_t> rows, const DeviceLogits& logits) {
  count_ = static_cast<int64_t>(rows.size());
  CHECK(count_ <= rows_.size(), "{} rows to rank; planned {}", count_, rows_.size());
  for (size_t i = 0; i < rows.size(); ++i) rows_.data()[i] = static_cast<int32_t>(rows[i]);
  copy(device_rows_.data(), rows_.data(), count_, logits.stream);
  launch(logits.stream, one_block_each(static_cast<int32_t>(count_)), &rank_row,
         RankTask{.logits = logits.logits.data(),
                  .rows = device_rows_.data(),
                  .lists = device_lists_.data(),
                  .width = static_cast<int32_t>(logits.vocab_range.size()),
                  .first_token = static_cast<int32_t>(logits.vocab_range.begin)});
  copy(lists_.data(), device_lists_.data(), count_ * kRankedWords, logits.stream);
}

std::span<const uint64_t> RankedRows::lists() const {
  return {lists_.data(), static_cast<size_t>(count_ * kRankedWords)};
}

}  // namespace outrider::cuda
