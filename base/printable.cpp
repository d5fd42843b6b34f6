#include "base/printable.h"

#include <poll.h>
#include <unistd.h>

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>

namespace outrider {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD", kEllipsis = "\xE2\x80\xA6";

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  // 0: not UTF-8
};

Character character_at(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return {};
  uint32_t code = first & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < kSmallest[bytes] || code > 0x10ffff || is_surrogate) return {};
  return {code, bytes};
}

bool acts(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) ||        // C0, DEL and C1
         code == 0x061c || code == 0x200e || code == 0x200f ||  // marks of direction
         (code >= 0x2028 && code <= 0x202e) ||                  // ends of lines; embeddings and overrides
         (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;  // isolates; a byte order mark
}

void tell_as_text(std::string_view message) {
  std::fprintf(stderr, "outrider: %s\n", printable(message).c_str());
}
void (*g_tell)(std::string_view message) = tell_as_text;

}  // namespace

std::string printable(std::string_view text, size_t most) {
  std::string out;
  out.reserve(text.size());
  size_t cut = 0;  // the longest beginning that leaves room for an ellipsis
  while (!text.empty()) {
    const Character c = character_at(text);
    std::string part(c.bytes > 0 ? text.substr(0, c.bytes) : kReplacement);
    if (c.bytes > 0 && acts(c.code))
      part = c.code < 0x80 ? fmt::format("\\x{:02x}", c.code) : fmt::format("\\u{:04x}", c.code);
    if (out.size() + kEllipsis.size() <= most) cut = out.size();
    out += part;
    if (out.size() > most) {
      out.resize(cut);
      return out.append(kEllipsis);
    }
    text.remove_prefix(c.bytes > 0 ? c.bytes : 1);
  }
  return out;
}

bool can_tell(int patience_ms) {
  pollfd ready{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&ready, 1, patience_ms) != 0;
}

void tell_error(std::string_view message) { g_tell(message); }
void tell_by(void (*tell)(std::string_view message)) { g_tell = tell; }

}  // namespace outrider
