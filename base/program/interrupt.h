// Signals that a command answers in its own time: it says goodbye first, or removes what is unfinished.
#pragma once

namespace outrider {

// From now on the first SIGINT, SIGTERM or SIGHUP is only noted, and the next one ends the program at once.
// One that is ignored, as under nohup, stays ignored.
void note_first_signal();
// From now on SIGINT or SIGTERM ends the program at once, with code 0: nothing was begun that it could lose.
void leave_at_first_signal();
// The signal that was noted, or 0.
int noted_signal();
// Ends the program as the noted signal ends others. Returns if there was none.
void end_as_noted();

}  // namespace outrider
