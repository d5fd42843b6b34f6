// What libzmq needs of the system before it is asked for a socket. Internal to comm.
#pragma once

#include "base/status.h"

namespace outrider {

// libzmq aborts the program where it gets no thread or file descriptor. kUnavailable: one end of a connection
// would; names the limit.
Status check_room_for_zmq();

}  // namespace outrider
