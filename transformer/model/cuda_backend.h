// The door to the CUDA back-end, there in every build: without CUDA it says so.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "transformer/files/weight_sources.h"
#include "transformer/model/model.h"

namespace outrider {

Result<std::unique_ptr<Model>> load_cuda_model(const std::filesystem::path& directory,
                                               const ModelOptions& options, Collectives& collectives);

// What the matrices of a rank take on its device, as they are stored; an error says what a device does not
// take, or that this build has no CUDA.
Result<int64_t> cuda_weight_bytes(const WeightMap& map, const ModelConfig& config, Shard shard);

// What `outrider doctor` says: one line each.
std::vector<std::string> describe_cuda();
// The number of devices, or why there is none and what to do: "no CUDA device: ...; run with --device cpu".
Result<int> cuda_device_count();

}  // namespace outrider
