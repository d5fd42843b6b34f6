// Peers that do not keep to the rules, for tests of who listens. Each connects to `endpoint` (tcp://), does
// its worst, and goes away.
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
// What the listener says to the Hello of another protocol version.
std::string answer_to_version(const std::string& endpoint, uint32_t version);
// What it says to somebody who claims to be the target group; with `keys` as one of the listed workers.
std::string answer_to_target(const std::string& endpoint, const std::optional<CurveKeys>& keys = {});
// What it says to the second of two connections of one identity, while the first is still there.
std::string answer_to_second_with_one_identity(const std::string& endpoint);
// Heartbeats: so many identities over one connection, and one over each of so many connections at once.
void beat_as_many(const std::string& endpoint, int identities, int connections);
// Each over a connection of its own, with 64 doors in it.
void say_large_hellos(const std::string& endpoint, int hellos);
// One message of parts of so many bytes each, without end. How much could be sent before the listener hung
// up, `limit` if it did not.
size_t send_endless_message(const std::string& endpoint, size_t part_bytes, size_t limit);
// Whether it hangs up on who sends a message this large.
bool connection_ends_after(const std::string& endpoint, size_t bytes);

struct LiarCounts {
  int proposed = 0, sent = 0;
};
// Joins like a drafter and answers so many Proposes, twice each: with tokens that nobody would draft, with
// ids outside the vocabulary, with drafts for another text, and so on.
LiarCounts draft_nonsense(const std::string& endpoint, int proposes);
// Joins and drafts tokens that nobody would, in good form, until the job ends.
LiarCounts draft_wrong_tokens(const std::string& endpoint);

}  // namespace outrider::testing
