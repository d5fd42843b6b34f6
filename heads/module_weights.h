// The parameters of a module of multi-token prediction: a projection of pairs, one layer of the family that
// its config.json says, a norm, and embedding and output head of its own or the target's. Under the names of
// DeepSeek-V3, of Qwen and of MiMo; docs/heads.md has the table.
#pragma once

#include <filesystem>

#include "heads/head_weights.h"

namespace outrider {

// The prefix of the names of an MTP module's tensors: "model.layers.61."; empty if there is no module, or
// more than one.
std::string module_prefix(const TensorFiles& files);

// Found in a directory of its own, or in the target's. Errors name file and tensor.
Result<HeadWeights> load_module_weights(const std::filesystem::path& directory, const HeadConfig& config,
                                        const std::filesystem::path& target_directory,
                                        const ModelConfig& target, WeightFormat format, HeadCompute& compute);

}  // namespace outrider
