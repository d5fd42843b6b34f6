// The interface of comm/collectives.h over a group's device memory, so that its conformance suite can run
// there.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/log.h"
#include "comm/device_group.h"

namespace outrider::cuda {

// Messages of any length go through `host`. Both must outlive it.
class DeviceCollectives final : public Collectives {
 public:
  // Freeing device memory waits for the device, where a peer's kernel may be waiting for us: room from the
  // start.
  DeviceCollectives(DeviceGroup& group, Collectives& host) : group_(group), host_(host) {
    reserve(size_t{1} << 20);
  }

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  void all_reduce_sum(std::span<float> values) override { reduce(Reduction::kTreeSum, values); }
  void all_reduce_sum(std::span<uint64_t> values) override { reduce(Reduction::kSum, values); }
  void all_reduce_max(std::span<uint64_t> values) override { reduce(Reduction::kMax, values); }
  void all_reduce_min(std::span<uint64_t> values) override { reduce(Reduction::kMin, values); }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    CHECK(all.size() == mine.size() * ranks(), "mine={} all={} ranks={}", mine.size(), all.size(), size());
    const size_t padded = (mine.size() + 7) / 8 * 8;
    reserve(padded * (ranks() + 1));
    std::byte *staged = staging_.data(), *device = memory_.data();
    std::memset(staged, 0, padded);
    std::copy(mine.begin(), mine.end(), staged);
    copy_bytes(device, staged, padded, stream_);
    group_.all_gather(device, device + padded, static_cast<int64_t>(padded), stream_);
    copy_bytes(staged, device + padded, padded * ranks(), stream_);
    group_.wait(stream_);
    for (size_t r = 0; r < ranks(); ++r)
      std::copy_n(staged + r * padded, mine.size(),
                  all.begin() + static_cast<std::ptrdiff_t>(r * mine.size()));
  }

  void broadcast(std::span<std::byte> bytes, int root) override {
    CHECK(root >= 0 && root < size(), "root={} ranks={}", root, size());
    gathered_.resize(bytes.size() * ranks());
    all_gather(bytes, gathered_);
    std::copy_n(gathered_.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(root) * bytes.size()),
                bytes.size(), bytes.begin());
  }

  void barrier() override {
    uint64_t nothing = 0;
    all_reduce_max(std::span(&nothing, 1));
  }
  void meet() override { host_.meet(); }
  void broadcast_message(std::vector<std::byte>& bytes, int root, size_t max_bytes) override {
    host_.broadcast_message(bytes, root, max_bytes);
  }
  void abort() noexcept override {
    group_.abort();
    host_.abort();
  }

 private:
  size_t ranks() const { return static_cast<size_t>(size()); }

  void reserve(size_t bytes) {
    if (static_cast<int64_t>(bytes) <= memory_.size()) return;
    memory_ = DeviceBuffer<std::byte>(static_cast<int64_t>(2 * bytes));
    staging_ = PinnedBuffer<std::byte>(static_cast<int64_t>(2 * bytes));
  }

  template <class T>
  void reduce(Reduction reduction, std::span<T> values) {
    reserve(values.size_bytes() + 8);
    if (!values.empty()) std::memcpy(staging_.data(), values.data(), values.size_bytes());
    copy_bytes(memory_.data(), staging_.data(), values.size_bytes(), stream_);
    group_.all_reduce(reduction, memory_.data(), static_cast<int64_t>(values.size()), stream_);
    copy_bytes(staging_.data(), memory_.data(), values.size_bytes(), stream_);
    group_.wait(stream_);
    if (!values.empty()) std::memcpy(values.data(), staging_.data(), values.size_bytes());
  }

  DeviceGroup& group_;
  Collectives& host_;
  Stream stream_;
  DeviceBuffer<std::byte> memory_;
  PinnedBuffer<std::byte> staging_;
  std::vector<std::byte> gathered_;
};

}  // namespace outrider::cuda
