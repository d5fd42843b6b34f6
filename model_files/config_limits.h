// Bounds of the sizes in config.json: generous beyond any published model, and small enough that the product
// of any two sizes fits 64 bits.
#pragma once

#include <cstdint>

namespace outrider {

constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxPositions = int64_t{1} << 30;

}  // namespace outrider
