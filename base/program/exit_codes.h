// Exit codes of the program, stable.
#pragma once

namespace outrider {

constexpr int kExitOk = 0;
constexpr int kExitRequestFailed = 1;  // at least one request ended with an error
constexpr int kExitUsage = 2;          // a flag, file or request is wrong; nothing was generated
constexpr int kExitRuntime = 3;        // the target group failed, or results could not be written

}  // namespace outrider
