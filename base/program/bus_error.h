// A file that is cut while it is mapped: touching what is gone is SIGBUS, which by itself says nothing.
#pragma once

namespace outrider {

// From now on a bus error in a mapped file names the file on standard error, removes the unfinished temporary
// file, and ends the program with kExitRuntime. Other bus errors end it as they always do.
void explain_bus_errors();

}  // namespace outrider
