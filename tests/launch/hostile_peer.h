// Peers that violate the protocol, for tests of a listener. Each connects to `endpoint` (tcp://), sends its
// messages and disconnects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/curve.h"

namespace outrider::testing {

// Past ZeroMQ's own handshake and around it.
void send_random_bytes(const std::string& endpoint, size_t bytes);
void send_random_frames(const std::string& endpoint, int frames);
// Returns the listener's answer to a Hello of another protocol version.
std::string answer_to_version(const std::string& endpoint, uint32_t version);
// Returns the answer to a stranger that claims to be the target group. With `keys` it claims so as one of the
// listed workers.
std::string answer_to_target(const std::string& endpoint, const std::optional<CurveKeys>& keys = {});
// Returns the answer to the second of two connections with one identity, while the first is still open.
std::string answer_to_second_with_one_identity(const std::string& endpoint);
// Sends heartbeats of `identities` identities over one connection, and of one identity over each of
// `connections` simultaneous connections.
void beat_as_many(const std::string& endpoint, int identities, int connections);
// Sends `hellos` Hellos, each over a connection of its own and with 64 endpoints in it.
void say_large_hellos(const std::string& endpoint, int hellos);
// Sends one endless message in parts of `part_bytes` bytes. Returns the bytes sent before the listener
// disconnected, or `limit` if it did not.
size_t send_endless_message(const std::string& endpoint, size_t part_bytes, size_t limit);
// Whether it hangs up on who sends a message this large.
bool connection_ends_after(const std::string& endpoint, size_t bytes);

struct LiarCounts {
  int proposed = 0, sent = 0;
};
// Joins like a drafter and answers `proposes` Proposes, twice each: with wrong tokens, with ids outside the
// vocabulary, with drafts for another text, and so on.
LiarCounts draft_nonsense(const std::string& endpoint, int proposes);
// Joins and sends well-formed drafts of wrong tokens until the job ends.
LiarCounts draft_wrong_tokens(const std::string& endpoint);

}  // namespace outrider::testing
