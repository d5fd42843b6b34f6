#include "comm/curve.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include <zmq.h>

#include "base/program/secret_file.h"
#include "base/trimmed.h"

namespace outrider {
namespace {

constexpr size_t kKeyCharacters = 40, kKeyBytes = 32;
constexpr size_t kMaxKeys = 4096;

// The value of `name = value`; empty: none. A Z85 key may contain '=' and '#'.
std::string value_of(const std::string& line, const std::string& name) {
  const auto equals = line.find('=');
  if (equals == std::string::npos || trimmed(std::string_view(line).substr(0, equals)) != name) return {};
  return std::string(trimmed(std::string_view(line).substr(equals + 1)));
}

Result<std::vector<std::string>> read_lines(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) return not_found(fmt::format("{}: {}", file.string(), std::strerror(errno)));
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (lines.size() >= kMaxKeys)
      return invalid_argument(fmt::format("{}: more than {} lines", file.string(), kMaxKeys));
    lines.emplace_back(trimmed(line));
  }
  return lines;
}

}  // namespace

Result<CurveKeyPair> make_curve_key_pair() {
  std::array<char, kKeyCharacters + 1> public_key{}, secret_key{};
  if (zmq_curve_keypair(public_key.data(), secret_key.data()) != 0)
    return unsupported(
        fmt::format("libzmq cannot make keys: {}; install one with CURVE", zmq_strerror(errno)));
  return CurveKeyPair{public_key.data(), secret_key.data()};
}

bool is_curve_key(const std::string& text) {
  std::array<uint8_t, kKeyBytes> bytes;
  return text.size() == kKeyCharacters && zmq_z85_decode(bytes.data(), text.c_str()) != nullptr;
}

Status write_curve_keys(const std::filesystem::path& file, const CurveKeyPair& keys) {
  const mode_t mode = keys.secret_key.empty() ? 0666 : 0600;  // less the umask
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0)
    return invalid_argument(
        fmt::format("{}: cannot be created: {}; {}", file.string(), std::strerror(errno),
                    errno == EEXIST ? "a key may be in use: choose another name, or remove the file first"
                                    : "choose a path in a directory that exists and is yours"));
  std::string text = fmt::format("public = {}\n", keys.public_key);
  if (!keys.secret_key.empty()) text += fmt::format("secret = {}\n", keys.secret_key);
  int error = 0;
  for (std::string_view left = text; !left.empty() && error == 0;) {  // a disk may accept a part
    const ssize_t bytes = write(fd, left.data(), left.size());
    if (bytes > 0)
      left.remove_prefix(static_cast<size_t>(bytes));
    else
      error = bytes == 0 ? EIO : errno;
  }
  if (error == 0 && fsync(fd) != 0) error = errno;  // some file systems report errors only here
  if (close(fd) != 0 && error == 0) error = errno;
  if (error == 0) return {};
  unlink(file.c_str());  // a partial key would block the next attempt
  return unavailable(
      fmt::format("{}: cannot be written: {}; nothing is left there", file.string(), std::strerror(error)));
}

Result<CurveKeyPair> read_curve_keys(const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const auto lines, read_lines(file));
  CurveKeyPair keys;
  for (const std::string& line : lines) {
    if (const auto value = value_of(line, "public"); !value.empty()) keys.public_key = value;
    if (const auto value = value_of(line, "secret"); !value.empty()) keys.secret_key = value;
  }
  if (!is_curve_key(keys.public_key) || !is_curve_key(keys.secret_key)) {
    const bool is_public = is_curve_key(keys.public_key) && keys.secret_key.empty();
    return malformed(fmt::format("{}: {}it needs lines `public = KEY` and `secret = KEY`; {}", file.string(),
                                 is_public ? "this is a public key alone; " : "",
                                 is_public ? "name the file that `outrider keygen` wrote beside it"
                                           : "make one with `outrider keygen`"));
  }
  struct stat info {};
  if (stat(file.c_str(), &info) == 0 && may_be_read_by_others(info))
    return invalid_argument(
        fmt::format("{}: others may read this secret key (mode {:04o}); run chmod 600 {}, or give it mode "
                    "0440, root or you "
                    "as its owner and a group of yours",
                    file.string(), info.st_mode & 07777, file.string()));
  return keys;
}

Result<std::vector<std::string>> read_public_keys(const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const auto lines, read_lines(file));
  std::vector<std::string> keys;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    if (line.empty() || (line[0] == '#' && !is_curve_key(line)) || !value_of(line, "secret").empty())
      continue;
    const std::string value = is_curve_key(line) ? line : value_of(line, "public");
    if (!is_curve_key(value))
      return malformed(fmt::format("{}, line {}: not a public key", file.string(), i + 1));
    keys.push_back(value);
  }
  if (keys.empty()) return malformed(fmt::format("{}: it holds no public key", file.string()));
  return keys;
}

}  // namespace outrider
