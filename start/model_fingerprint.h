// Fingerprints of models. They detect mistakes and damaged copies, not attacks.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/status.h"

namespace outrider {

// The names, types and shapes of all tensors: what the sizes of buffers follow from.
Result<uint64_t> fingerprint_of_shapes(const std::filesystem::path& directory);
// Covers config.json; of a GGUF file 0, because its configuration is a part of weights_sum().
uint64_t fingerprint_of_config(const std::filesystem::path& directory);

// Identifies the files: inode, size and times of change of each file with weights. Equal values mean the same
// files, on one host or on several that share a file system; a copy differs.
Result<uint64_t> identity_of_weights(const std::filesystem::path& directory);

// Hashes the `part`-th of `parts` shares of a model's tensors. The sum over all shares, modulo 2^64, covers
// every byte of every tensor, in all files of a split GGUF model. Reads with `threads` threads, and releases
// the pages.
Result<uint64_t> weights_sum(const std::filesystem::path& directory, int part, int parts, int threads);

// Covers every byte of the weights, config.json and `salt`, which holds what else decides the bits.
Result<uint64_t> whole_fingerprint_of_model(const std::filesystem::path& directory, uint64_t salt,
                                            int threads);

}  // namespace outrider
