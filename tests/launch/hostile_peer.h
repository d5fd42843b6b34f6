// Peers that do not keep to the rules, for tests of who listens. Each connects to `endpoint` (tcp://), does
// its worst, and goes away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace outrider::testing {

// Past ZeroMQ's own handshake and around it.
void send_random_bytes(const std::string& endpoint, size_t bytes);
void send_random_frames(const std::string& endpoint, int frames);
// What the listener says to the Hello of another protocol version.
std::string answer_to_version(const std::string& endpoint, uint32_t version);
// What it says to the second of two connections of one identity, while the first is still there.
std::string answer_to_second_with_one_identity(const std::string& endpoint);
// Whether it hangs up on who sends a message this large.
bool connection_ends_after(const std::string& endpoint, size_t bytes);

struct LiarCounts {
  int proposed = 0, sent = 0;
};
// Joins like a drafter and answers so many Proposes, twice each: with tokens that nobody would draft, with ids
// outside the vocabulary, with drafts for another text, and so on.
LiarCounts draft_nonsense(const std::string& endpoint, int proposes);

}  // namespace outrider::testing
