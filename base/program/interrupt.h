// Signals that a command handles itself: it says goodbye first, or removes unfinished files.
#pragma once

namespace outrider {

// From now on the first SIGINT, SIGTERM or SIGHUP is only noted, and the next one ends the program at once.
// An ignored signal, as under nohup, stays ignored.
void note_first_signal();
// From now on SIGINT or SIGTERM ends the program at once with code 0, because no work would be lost.
void leave_at_first_signal();
// The signal that was noted, or 0.
int noted_signal();
// Ends the program by the noted signal. Returns if there was none.
void end_as_noted();

}  // namespace outrider
