// Writes quantised weights, as stored_codes.h describes them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "base/load_progress.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/cpu/packed_matrix.h"
#include "model_files/model_config.h"
#include "model_files/safetensors.h"
#include "model_files/stored_codes.h"
#include "model_files/weight_format.h"

namespace outrider {

// Writes the whole model, quantised, as one safetensors file; the same integers as loading with that format.
// Refuses a model that is quantised already.
Status write_quantized(const TensorFiles& files, const ModelConfig& config, WeightFormat format,
                       ThreadPool& pool, const LoadProgress& progress, std::FILE* to);

}  // namespace outrider
