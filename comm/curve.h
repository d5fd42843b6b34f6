// Keys of encrypted and authenticated connections (CURVE, RFC 26/ZeroMQ), as Z85 text of 40 characters, and
// the files that hold them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

struct CurveKeyPair {
  std::string public_key, secret_key;
};

// Keys for one end of a connection.
struct CurveKeys {
  CurveKeyPair own;
  std::string server;                  // clients: the public key of the server they expect
  std::vector<std::string> allowed;    // servers: public keys of the clients that may enter ...
  std::filesystem::path allowed_file;  // more allowed keys, read from this file at each handshake
};

// kUnsupported: this libzmq was built without CURVE.
Result<CurveKeyPair> make_curve_key_pair();
bool is_curve_key(const std::string& text);

// Writes lines `public = KEY` and `secret = KEY`, mode 0600; a file without a secret is readable by all. An
// existing file is never overwritten; an incomplete file is removed.
Status write_curve_keys(const std::filesystem::path& file, const CurveKeyPair& keys);
// Refuses a file that others can read.
Result<CurveKeyPair> read_curve_keys(const std::filesystem::path& file);
// One public key per line, or a key file; '#' starts a comment.
Result<std::vector<std::string>> read_public_keys(const std::filesystem::path& file);

}  // namespace outrider
