// Device operations through pinned memory and the collectives of the host.
#include <algorithm>
#include <vector>

#include "base/cuda_peer.h"
#include "comm/device_group.h"

namespace outrider::cuda {
namespace {

class StagedGroup final : public DeviceGroup {
 public:
  explicit StagedGroup(Collectives& host) : host_(&host) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  std::string name() const override { return "host memory"; }
  int device() const override { return device_; }
  bool is_capturable() const override { return size() == 1; }

  void all_reduce(Reduction reduction, void* values, int64_t count, StreamView stream) override {
    if (size() == 1 || count == 0) return;
    const int64_t bytes = count * element_bytes(reduction);
    std::byte* staged = fetch(values, bytes, bytes + 4, stream);  // 4 more: words are merged in pairs
    reduce(reduction, staged, count);
    copy(static_cast<std::byte*>(values), staged, bytes, stream);
    stream.synchronize();  // the staging memory is reused at once
  }

  void all_gather(const void* mine, void* all, int64_t bytes, StreamView stream) override {
    if (size() == 1) return copy_bytes(all, mine, static_cast<size_t>(bytes), stream);
    std::byte* staged = fetch(mine, bytes, bytes * (1 + size()), stream);
    const auto n = static_cast<size_t>(bytes);
    host_->all_gather({staged, n}, {staged + n, n * static_cast<size_t>(size())});
    copy(static_cast<std::byte*>(all), staged + n, bytes * size(), stream);
    stream.synchronize();
  }

  void wait(StreamView stream) override {
    stream.synchronize();
    if (aborted_) throw CollectiveError("the group was aborted");
  }
  void abort() noexcept override {
    aborted_ = true;
    host_->abort();
  }

 private:
  std::byte* fetch(const void* from, int64_t bytes, int64_t room, StreamView stream) {
    if (room > staging_.size()) staging_ = PinnedBuffer<std::byte>(2 * room);
    copy(staging_.data(), static_cast<const std::byte*>(from), bytes, stream);
    stream.synchronize();
    return staging_.data();
  }

  void reduce(Reduction reduction, std::byte* staged, int64_t count) {
    const auto n = static_cast<size_t>(count);
    const std::span integers(reinterpret_cast<uint64_t*>(staged), n);
    switch (reduction) {
      case Reduction::kTreeSum:
        return host_->all_reduce_sum(std::span(reinterpret_cast<float*>(staged), n));
      case Reduction::kMerge:  // as integers: one rank's word plus zeros, so no carry reaches the neighbour
        if (n % 2) reinterpret_cast<uint32_t*>(staged)[n] = 0;
        return host_->all_reduce_sum(integers.first((n + 1) / 2));
      case Reduction::kSum:
        return host_->all_reduce_sum(integers);
      case Reduction::kMax:
        return host_->all_reduce_max(integers);
      case Reduction::kMin:
        return host_->all_reduce_min(integers);
    }
  }

  Collectives* host_;
  int device_ = current_device();
  bool aborted_ = false;  // by this rank; other ranks learn of it from the host's collectives
  PinnedBuffer<std::byte> staging_;
};

}  // namespace

std::unique_ptr<DeviceGroup> make_staged_group(Collectives& host) {
  return std::make_unique<StagedGroup>(host);
}

std::unique_ptr<DeviceGroup> connect_devices(Collectives& host) {
  if (host.size() > 1) {
    if (auto peers = make_peer_group(host); peers.ok()) return std::move(peers).value();
    if (auto nccl = make_nccl_group(host); nccl.ok()) return std::move(nccl).value();
  }
  return make_staged_group(host);
}

}  // namespace outrider::cuda
