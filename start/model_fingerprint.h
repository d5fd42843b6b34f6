// Tells models apart without reading all of their weights: two draft workers with one fingerprint draft the
// same. Against mistakes, not against attackers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/status.h"

namespace outrider {

uint64_t fingerprint_of_text(std::string_view text);
// Of config.json, and of every tensor's name, type, shape, first and last bytes. `salt`: what else decides
// the bits.
Result<uint64_t> fingerprint_of_model(const std::filesystem::path& directory, uint64_t salt);

}  // namespace outrider
