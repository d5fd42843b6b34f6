// Entry points of the CUDA back-end, present in every build. Without CUDA they return an error.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"
#include "model_files/weight_sources.h"

namespace outrider {

Result<std::unique_ptr<Model>> load_cuda_model(const std::filesystem::path& directory,
                                               const ModelOptions& options, Collectives& collectives);

// Device memory of a rank's matrices, as they are stored. An error names what a device does not support, or
// says that this build has no CUDA.
Result<int64_t> cuda_weight_bytes(const WeightMap& map, const ModelConfig& config, Shard shard);

// Device memory of a sequence's recurrent states on a rank; 0 where the model has none.
int64_t cuda_state_bytes(const ModelConfig& config, Shard shard);

// The device lines of `outrider doctor`.
std::vector<std::string> describe_cuda();
// The number of devices, or why there is none and what to do: "no CUDA device: ...; run with --device cpu".
Result<int> cuda_device_count();

}  // namespace outrider
