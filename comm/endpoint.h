// Addresses of coordinators.
#pragma once

#include <string>

#include "base/status.h"

namespace outrider {

// The form of an address to connect to: tcp://HOST:PORT or ipc://PATH. kInvalidArgument names it.
Status check_endpoint(const std::string& endpoint);

}  // namespace outrider
