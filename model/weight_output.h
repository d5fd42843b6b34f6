// Helpers for writers of safetensors files.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json_text.h"
#include "base/status.h"

namespace outrider {

inline bool write_bytes(std::FILE* to, const void* data, size_t bytes) {
  return std::fwrite(data, 1, bytes, to) == bytes;
}

// Behind a write that failed; names the system's reason.
inline Status weights_unwritten() {
  return unavailable(fmt::format("the quantised weights cannot be written: {}", std::strerror(errno)));
}

// The beginning of a file: the length of the header, and the header, which ends where aligned data may begin.
inline std::string safetensors_beginning(const nlohmann::ordered_json& header) {
  std::string text = json_text(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace outrider
