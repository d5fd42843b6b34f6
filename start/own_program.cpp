#include "start/own_program.h"

#include <cerrno>
#include <filesystem>

namespace outrider {

std::string own_program() {
  constexpr const char* kSelf = "/proc/self/exe";
  std::error_code error;
  const auto running = std::filesystem::read_symlink(kSelf, error);
  return running.filename().string().starts_with("ld-") ? program_invocation_name : kSelf;
}

}  // namespace outrider
