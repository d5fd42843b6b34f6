// Turns messages into frames and back. A frame may come from anyone who can reach the socket, so decoding
// trusts nothing: it never throws, never allocates more than a small multiple of the frame, and accepts only
// complete frames.
//
//   frame    = header payload                  all integers little-endian, fixed width
//   header   = magic:u32 version:u16 type:u16 length:u64 cluster:u64 generation:u64 number:u64 checksum:u64
//   magic    = "OTRD" (4f 54 52 44)
//   type     = index of the message in comm/messages.h's Message
//   length   = bytes of payload; nothing may follow it
//   checksum = XXH64, seed 0, of the header's first 40 bytes and the payload
//   payload  = the struct's fields in the order of comm/wire_fields.h, where
//     integer, float = its bytes (float: IEEE 754 binary32); a strong type is its integer
//     bool, enum     = u8 in range
//     string         = count:u64 count*byte
//     vector         = count:u64 count*element
//     struct         = its fields
//     QRow           = packed, see comm/q_row_fields.h
//     vector<HiddenRow> = the same, see comm/hidden_row_fields.h
//
// Heartbeat{generation 7} of cluster 5, sent by generation 9 as its first frame (56 bytes):
//
//   4f 54 52 44  01 00  02 00  08 00 00 00 00 00 00 00   "OTRD", version 1, type 2, 8 bytes of payload
//   05 00 00 00 00 00 00 00  09 00 00 00 00 00 00 00     cluster, sender generation
//   01 00 00 00 00 00 00 00  XX XX XX XX XX XX XX XX     sequence number, checksum
//   07 00 00 00 00 00 00 00                              payload
//
// Well-formed is not the same as sensible. Receivers check that ids are inside the vocabulary, that lengths
// fit each other, and so on (comm/message_check.h); comm/q_rows.h checks the sums of q rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "comm/messages.h"

namespace outrider {

constexpr uint16_t kFrameVersion = 1;
constexpr size_t kFrameHeaderBytes = 48;

// Facts about a frame's sender.
struct FrameInfo {
  uint64_t cluster = 0;          // frames of another cluster are refused
  Generation generation;         // one life of the sending transport
  uint64_t sequence_number = 0;  // 1, 2, ... within that life
};

// Checked on both sides: a message over a limit is refused by encode() already.
struct WireLimits {
  size_t frame_bytes = size_t{64} << 20;
  uint64_t string_bytes = 4096;
  uint64_t ids = uint64_t{1} << 20;  // token ids of one list, entries of one q row, biases
  uint64_t draft_tokens = 4096;      // of one sequence in one round
  uint64_t sequences = 4096;         // in one plan or result
  uint64_t logprobs = 4096;          // alternatives at one position
};

struct Decoded {
  FrameInfo info;
  Message message;
};

// kInvalidArgument: the message is over a limit or holds a non-finite number. Storage of `buffer` is reused.
Result<std::vector<std::byte>> encode(const Message& message, const FrameInfo& info,
                                      std::vector<std::byte> buffer = {}, const WireLimits& limits = {});

// kMalformed: the reason names the message and the field. A QSlice, the only large message that comes every
// round, takes the storage of `reuse`.
Result<Decoded> decode(std::span<const std::byte> frame, uint64_t cluster, const WireLimits& limits = {},
                       QSlice&& reuse = {});

}  // namespace outrider
