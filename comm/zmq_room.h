// Checks that the system has the resources for a socket before libzmq opens one. Internal to comm.
#pragma once

#include "base/status.h"

namespace outrider {

// kUnavailable: a thread or file descriptor for one end of a connection is missing, and libzmq would abort
// the program; names the limit.
Status check_room_for_zmq();

}  // namespace outrider
