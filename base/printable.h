// Makes foreign text safe for terminals and logs: names and messages of peers, paths, contents of files.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace outrider {

constexpr size_t kPrintableBytes = 4096;

// One line of valid UTF-8 without effects on a terminal: control characters (C0 and C1), line separators and
// characters that change the writing direction become \x1b or \u202e, invalid bytes become U+FFFD, and text
// beyond `most` bytes becomes an ellipsis. Other text stays as it is, so applying it twice changes nothing.
std::string printable(std::string_view text, size_t most = kPrintableBytes);

// Whether standard error accepts a line within this time: a full pipe without a reader does not. For callers
// that have other work.
bool can_tell(int patience_ms = 0);

// "outrider: MESSAGE" on standard error, printable.
void tell_error(std::string_view message);
// From now on `tell` writes what tell_error() is given. Call it before threads start.
void tell_by(void (*tell)(std::string_view message));

}  // namespace outrider
