// Tells models apart without reading all of their weights: two draft workers with one fingerprint draft the
// same. Against mistakes, not against attackers.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/status.h"

namespace outrider {

// Covers config.json, and every tensor's name, type, shape, first and last bytes. `salt`: what else decides
// the bits.
Result<uint64_t> fingerprint_of_model(const std::filesystem::path& directory, uint64_t salt);

}  // namespace outrider
