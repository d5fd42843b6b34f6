// Exit codes of the program, stable, and how a command ends.
#pragma once

#include "base/printable.h"
#include "base/status.h"

namespace outrider {

constexpr int kExitOk = 0;
constexpr int kExitRequestFailed = 1;  // at least one request ended with an error
constexpr int kExitUsage = 2;          // a flag, file or request is wrong; nothing was generated
constexpr int kExitRuntime = 3;        // a role failed, a resource is taken or used up, or a write failed

// The exit code of a command that ends with this status. kExitRuntime: the same command may succeed later.
inline int exit_code_of(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return kExitOk;
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kResourceExhausted:
      return kExitRuntime;
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kMalformed:
    case StatusCode::kUnsupported:
      break;
  }
  return kExitUsage;
}

// The same, with the error on standard error.
inline int told_exit_code(const Status& status) {
  if (!status.ok()) tell_error(status.message());
  return exit_code_of(status);
}
inline int told_exit_code(const Result<int>& code) {
  return code.ok() ? *code : told_exit_code(code.status());
}

}  // namespace outrider
