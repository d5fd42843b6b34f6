// Numbers and counts the frames of one end, for both transports. Internal to comm.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/log_line.h"
#include "comm/codec.h"
#include "comm/transport.h"

namespace outrider {

// The seen sequence numbers of one sender: the highest, and a bit for each of the 64 before it. Older numbers
// count as seen.
class ReplayWindow {
 public:
  // False if `number` was seen before.
  bool accept(uint64_t number) {
    if (number > highest_) {
      const uint64_t ahead = number - highest_;
      // Bit i stands for highest_ - 1 - i; the old highest becomes bit ahead - 1.
      seen_ = (ahead >= 64 ? 0 : seen_ << ahead);
      if (highest_ > 0 && ahead <= 64) seen_ |= uint64_t{1} << (ahead - 1);
      highest_ = number;
      return true;
    }
    const uint64_t behind = highest_ - number;
    if (behind == 0 || behind > 64) return false;
    const uint64_t bit = uint64_t{1} << (behind - 1);
    const bool fresh = (seen_ & bit) == 0;
    seen_ |= bit;
    return fresh;
  }

 private:
  uint64_t highest_ = 0;  // 0: none yet; senders count from 1
  uint64_t seen_ = 0;
};

class FrameEnd {
 public:
  FrameEnd(uint64_t cluster, Generation generation, const WireLimits& limits)
      : info_{.cluster = cluster, .generation = generation}, limits_(limits) {}

  Result<std::vector<std::byte>> pack(const Message& message, std::vector<std::byte> buffer = {}) {
    ++info_.sequence_number;
    return encode(message, info_, std::move(buffer), limits_);
  }
  void count_sent(const Message& message, size_t bytes) {
    ++stats.sent_messages[message.index()];
    stats.sent_bytes[message.index()] += bytes;
  }
  // Empty: malformed, and counted.
  std::optional<Decoded> unpack(std::span<const std::byte> frame) {
    Result<Decoded> decoded = decode(frame, info_.cluster, limits_, std::move(spare_));
    if (decoded.ok()) return std::move(decoded).value();
    ++stats.malformed_frames;
    log_line(LogLevel::kDebug, "dropped a frame of {} bytes: {}", frame.size(), decoded.status().message());
    return std::nullopt;
  }
  Incoming deliver(PeerId peer, Message message, size_t bytes) {
    ++stats.received_messages[message.index()];
    stats.received_bytes[message.index()] += bytes;
    return {.peer = peer, .message = std::move(message), .bytes = bytes};
  }

  // Gives back a slice, whose storage serves the next one.
  void recycle(QSlice slice) { spare_ = std::move(slice); }

  TransportStats stats;

 private:
  FrameInfo info_;
  WireLimits limits_;
  QSlice spare_;
};

}  // namespace outrider
