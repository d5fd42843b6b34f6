#include "draft_worker/slice_sender.h"

#include <algorithm>
#include <numeric>

#include "transformer/shard.h"

namespace outrider {
namespace {

ZmqOptions door_options(const SliceDoors& slices, std::chrono::milliseconds timeout) {
  ZmqOptions zmq;
  zmq.cluster = slices.cluster;
  zmq.connect_timeout = timeout;
  zmq.linger = std::chrono::milliseconds(0);  // a draft that is late is of no use
  if (slices.server_key.empty()) return zmq;
  CurveKeys keys;
  keys.own = {slices.public_key, slices.secret_key};
  keys.server = slices.server_key;
  zmq.curve = std::move(keys);
  return zmq;
}

// Of weights that end where the rest is 0.
void cut(const QRow& whole, IndexRange range, QRow& part) {
  const auto size = static_cast<int64_t>(whole.weights.size());
  const auto begin = whole.weights.begin() + std::min(range.begin, size);
  const auto end = whole.weights.begin() + std::min(range.end, size);
  part.weights.assign(begin, end);
  part.sum = std::accumulate(begin, end, uint64_t{0});
}

}  // namespace

Result<SliceSender> SliceSender::connect(const SliceDoors& slices, int64_t vocab_size, Generation worker,
                                         std::chrono::milliseconds timeout) {
  std::vector<std::unique_ptr<Transport>> ranks;
  if (!is_supported_tp_size(static_cast<int>(slices.of_rank.size())))
    return malformed(fmt::format("the target has doors for {} ranks", slices.of_rank.size()));
  for (const SliceDoor& door : slices.of_rank) {
    ASSIGN_OR_RETURN(auto rank, make_zmq_client(door.endpoint, door_options(slices, timeout)));
    ranks.push_back(std::move(rank));
  }
  return SliceSender(std::move(ranks), vocab_size, worker);
}

bool SliceSender::send(const Draft& draft) {
  QSlice& slice = std::get<QSlice>(message_);
  slice.sequence = draft.sequence;
  slice.round = draft.round;
  slice.worker = worker_;
  slice.rows.resize(draft.q.size());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const Shard shard{static_cast<int>(r), static_cast<int>(ranks_.size())};
    for (size_t i = 0; i < draft.q.size(); ++i)
      cut(draft.q[i], vocab_range(vocab_size_, shard), slice.rows[i]);
    if (!ranks_[r]->send(kCoordinatorPeer, message_).ok()) return false;
  }
  return true;
}

int64_t SliceSender::bytes() const {
  int64_t sum = 0;
  for (const auto& rank : ranks_)
    for (const uint64_t bytes : rank->stats().sent_bytes) sum += static_cast<int64_t>(bytes);
  return sum;
}

}  // namespace outrider
