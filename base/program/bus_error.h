// Handles a file that is cut while it is mapped: access beyond its end raises SIGBUS, which by itself
// explains nothing.
#pragma once

namespace outrider {

// From now on a bus error in a mapped file prints the file's name on standard error, removes the unfinished
// temporary file, and ends the program with kExitRuntime. Other bus errors end it as usual.
void explain_bus_errors();

}  // namespace outrider
