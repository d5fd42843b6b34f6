#include "comm/codec.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <utility>

#include "comm/wire_fields.h"

namespace outrider {
namespace {

constexpr uint32_t kMagic = 0x4452544f;  // "OTRD"
constexpr size_t kChecksumOffset = kFrameHeaderBytes - sizeof(uint64_t);

struct Header {
  uint32_t magic = kMagic;
  uint16_t version = kFrameVersion;
  uint16_t type = 0;
  uint64_t length = 0;
  uint64_t cluster = 0;
  uint64_t generation = 0;
  uint64_t number = 0;
  uint64_t checksum = 0;
};
static_assert(sizeof(Header) == kFrameHeaderBytes);

// The checksum of everything in the frame but the checksum itself.
uint64_t checksum(std::span<const std::byte> frame) {
  XXH64_state_t state;
  XXH64_reset(&state, 0);
  XXH64_update(&state, frame.data(), kChecksumOffset);
  if (frame.size() > kFrameHeaderBytes)
    XXH64_update(&state, frame.data() + kFrameHeaderBytes, frame.size() - kFrameHeaderBytes);
  return XXH64_digest(&state);
}

template <size_t... I>
Message message_of_type(size_t type, std::index_sequence<I...>) {
  Message message;
  (void)((type == I && (message.emplace<I>(), true)) || ...);
  return message;
}

Result<Header> read_header(std::span<const std::byte> frame, uint64_t cluster, const WireLimits& limits) {
  if (frame.size() < kFrameHeaderBytes) return malformed("frame: shorter than its header");
  if (frame.size() > limits.frame_bytes) return malformed("frame: larger than the limit");
  Header header;
  std::memcpy(&header, frame.data(), sizeof header);
  if (header.magic != kMagic) return malformed("frame: wrong magic");
  if (header.version != kFrameVersion)
    return malformed(fmt::format("frame: unknown version {}", header.version));
  if (header.type >= std::variant_size_v<Message>)
    return malformed(fmt::format("frame: unknown message type {}", header.type));
  if (header.length != frame.size() - kFrameHeaderBytes) return malformed("frame: length and size differ");
  if (header.cluster != cluster) return malformed("frame: of another cluster");
  if (header.checksum != checksum(frame)) return malformed("frame: wrong checksum");
  return header;
}

}  // namespace

Result<std::vector<std::byte>> encode(const Message& message, const FrameInfo& info,
                                      std::vector<std::byte> buffer, const WireLimits& limits) {
  buffer.resize(kFrameHeaderBytes);
  WireWriter writer(buffer, limits);
  std::visit([&writer](const auto& body) { writer(body); }, message);
  writer.require(buffer.size() <= limits.frame_bytes, "larger than the frame limit");
  if (!writer.ok())
    return invalid_argument(fmt::format("{}: {}", kMessageNames[message.index()], writer.reason()));
  Header header{.type = static_cast<uint16_t>(message.index()),
                .length = buffer.size() - kFrameHeaderBytes,
                .cluster = info.cluster,
                .generation = info.generation.value(),
                .number = info.sequence_number};
  std::memcpy(buffer.data(), &header, sizeof header);
  header.checksum = checksum(buffer);
  std::memcpy(buffer.data() + kChecksumOffset, &header.checksum, sizeof header.checksum);
  return buffer;
}

Result<Decoded> decode(std::span<const std::byte> frame, uint64_t cluster, const WireLimits& limits,
                       QSlice&& reuse) {
  ASSIGN_OR_RETURN(const Header header, read_header(frame, cluster, limits));
  Decoded decoded{
      .info = {.cluster = header.cluster,
               .generation = Generation(header.generation),
               .sequence_number = header.number},
      .message = message_of_type(header.type, std::make_index_sequence<std::variant_size_v<Message>>{})};
  if (auto* const slice = std::get_if<QSlice>(&decoded.message)) *slice = std::move(reuse);
  WireReader reader(frame.subspan(kFrameHeaderBytes), limits);
  std::visit([&reader](auto& body) { reader(body); }, decoded.message);
  reader.require(reader.remaining() == 0, "bytes follow the last field");
  if (!reader.ok()) return malformed(fmt::format("{}: {}", kMessageNames[header.type], reader.reason()));
  return decoded;
}

}  // namespace outrider
