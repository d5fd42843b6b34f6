#include "launch/commands/keygen.h"

#include <cstdio>

#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "comm/curve.h"

namespace outrider {
namespace {

Status keygen(const std::string& file) {
  ASSIGN_OR_RETURN(const CurveKeyPair keys, make_curve_key_pair());
  RETURN_IF_ERROR(write_curve_keys(file, keys).in("--output"));
  const Status shared = write_curve_keys(file + ".pub", {.public_key = keys.public_key, .secret_key = {}});
  if (!shared.ok()) std::remove(file.c_str());  // a single key file would block the next attempt
  return shared.in("--output");
}

}  // namespace

int run_keygen(const std::string& file) {
  const Status status = keygen(file);
  if (!status.ok()) {
    tell_error(status.message());
    return exit_code_of(status);
  }
  std::printf("%s: keep it secret\n%s.pub: give it to the other end\n", file.c_str(), file.c_str());
  return kExitOk;
}

}  // namespace outrider
