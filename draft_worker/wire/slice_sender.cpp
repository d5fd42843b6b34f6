#include "draft_worker/wire/slice_sender.h"

#include <algorithm>

#include "base/shard.h"
#include "base/short_weight.h"

namespace outrider {
namespace {

ZmqOptions endpoint_options(const SliceEndpoints& slices, std::chrono::milliseconds timeout,
                            const SenderQueue& queue) {
  ZmqOptions zmq;
  zmq.cluster = slices.cluster;
  zmq.connect_timeout = timeout;
  zmq.high_water_mark = queue.high_water_mark;
  zmq.linger = queue.linger;
  if (slices.server_key.empty()) return zmq;
  CurveKeys keys;
  keys.own = {slices.public_key, slices.secret_key};
  keys.server = slices.server_key;
  zmq.curve = std::move(keys);
  return zmq;
}

// Packs the weights of `range` in all rows; a row ends where the remaining weights are 0. False: some do not
// fit 16 bits.
bool pack_slice(std::span<const QRow> rows, IndexRange range, std::vector<uint16_t>& out) {
  const auto width = static_cast<size_t>(range.size());
  out.assign(rows.size() * width, 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::span weights(rows[i].weights);
    const auto mine = weights.subspan(std::min(weights.size(), static_cast<size_t>(range.begin)));
    if (!pack_short_weights(mine.first(std::min(mine.size(), width)), out.data() + i * width)) return false;
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<Transport>> connect_to_endpoint(const SliceEndpoints& endpoints, size_t rank,
                                                       std::chrono::milliseconds timeout,
                                                       const SenderQueue& queue) {
  if (rank >= endpoints.of_rank.size())
    return malformed(fmt::format("the target has no door of rank {}", rank));
  return make_zmq_client(endpoints.of_rank[rank].endpoint, endpoint_options(endpoints, timeout, queue));
}

Result<SliceSender> SliceSender::connect(const SliceEndpoints& slices, int64_t vocab_size, Generation worker,
                                         std::chrono::milliseconds timeout) {
  std::vector<std::unique_ptr<Transport>> ranks;
  const auto deadline = Clock::now() + timeout;
  if (!is_supported_tp_size(static_cast<int>(slices.of_rank.size())))
    return malformed(fmt::format("the target has doors for {} ranks", slices.of_rank.size()));
  for (size_t r = 0; r < slices.of_rank.size(); ++r) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    ASSIGN_OR_RETURN(auto rank, connect_to_endpoint(slices, r, left));
    ranks.push_back(std::move(rank));
  }
  return SliceSender(std::move(ranks), vocab_size, worker);
}

void SliceSender::use_links(RowLinks links) {
  rows_ = std::make_unique<RowSender>(std::move(links), vocab_size_, worker_);
}

bool SliceSender::send(Draft& draft) {
  if (rows_ && rows_->send(draft, ranks_)) return true;
  QSlice& slice = std::get<QSlice>(message_);
  slice.sequence = draft.sequence;
  slice.round = draft.round;
  slice.worker = worker_;
  slice.rows = static_cast<int32_t>(draft.q.size());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const Shard shard{static_cast<int>(r), static_cast<int>(ranks_.size())};
    if (!pack_slice(draft.q, vocab_range(vocab_size_, shard), slice.weights)) return false;
    if (!ranks_[r]->send(kCoordinatorPeer, message_).ok()) return false;
  }
  return true;
}

int64_t SliceSender::bytes() const {
  int64_t sum = link_bytes();
  for (const auto& rank : ranks_)
    for (const uint64_t bytes : rank->stats().sent_bytes) sum += static_cast<int64_t>(bytes);
  return sum;
}

}  // namespace outrider
