#include "launch/commands/keygen.h"

#include <CLI/CLI.hpp>
#include <cstdio>

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

void add_keygen_options(CLI::App& app, KeygenOptions& o) {
  app.add_option("-o,--output", o.file, "File to create, mode 0600; the public key goes to FILE.pub")
      ->required();
  app.footer(
      "Examples, both ends of a connection:\n"
      "  outrider keygen --output job.key\n"
      "  outrider keygen --output worker.key\n"
      "  outrider generate --listen 'tcp://10.0.0.1:7000' --curve-secret-key job.key --allowed-keys "
      "worker.key.pub ...\n"
      "  outrider draft-worker --connect tcp://10.0.0.1:7000 --curve-secret-key worker.key --server-key "
      "job.key.pub ...");
}

int run_keygen(const KeygenOptions& options) {
  const std::string& file = options.file;
  const Status status = keygen(file);
  if (!status.ok()) return told_exit_code(status);
  std::printf("%s: keep it secret\n%s.pub: give it to the other end\n", file.c_str(), file.c_str());
  return kExitOk;
}

}  // namespace outrider
