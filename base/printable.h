// Text that others chose, for terminals and logs: names and messages of peers, paths, what files hold.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace outrider {

constexpr size_t kPrintableBytes = 4096;

// One line of valid UTF-8 that says what the text says and does nothing: control characters (of C0 and C1),
// separators of lines and what turns the direction of writing are written as \x1b or \u202e, bytes that are
// no UTF-8 as U+FFFD, and what is beyond `most` bytes as an ellipsis. A text without these is left as it is,
// so that doing it twice changes nothing.
std::string printable(std::string_view text, size_t most = kPrintableBytes);

// Whether standard error takes a line within this time: a pipe that no program reads takes none once it is
// full. For those who have something else to do.
bool can_tell(int patience_ms = 0);

// "outrider: MESSAGE" on standard error, printable.
void tell_error(std::string_view message);

}  // namespace outrider
