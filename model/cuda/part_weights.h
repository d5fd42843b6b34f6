// Weights of one part of a layer: latent attention, or a mixture of experts. For models, and for heads whose
// layer is like a model's (heads/cuda/device_compute.h).
#pragma once

#include "model/cuda/uploader.h"
#include "model/cuda/weights.h"

namespace outrider::cuda {

// Parts of a layer as DeviceLayer has them: latent attention, but for `o`, and a mixture of experts. All
// matrices are of `type`, those of single heads of its activation_type. Uploading repeats the plan, which has
// had no error.
Result<MatrixSizes> plan_latents(const LatentSources& sources, WeightType type);
void upload_latents(const LatentSources& sources, const ModelConfig& config, WeightType type,
                    Uploader& uploader, StreamView stream, DeviceLayer& to);
Result<MatrixSizes> plan_mixture(const ExpertSources& sources, const ModelConfig& config,
                                 const ShardPlan& plan, WeightType type);
void upload_mixture(const ExpertSources& sources, const ModelConfig& config, const ShardPlan& plan,
                    WeightType type, Uploader& uploader, StreamView stream, DeviceLayer& to);
// The matrices of either whose formats decide what the part is held as.
MatrixSource formatted_matrices(const LatentSources& sources);
MatrixSource formatted_matrices(const ExpertSources& sources);
// An error names experts that are held in codes as no device takes them. keeps_codes: of published
// checkpoints.
Status check_mixture(const ExpertSources& mixture, bool keeps_codes);

// Pieces from which such parts, and whole models, are built.
void add(MatrixSizes& to, const StackPlan& stack);
DeviceStack upload(Uploader& uploader, const StackPlan& plans);
DeviceBuffer<float> to_device(std::span<const float> values, StreamView stream);
DeviceBuffer<float> upload_norm(const VectorSource& source, const ModelConfig& config, StreamView stream);

}  // namespace outrider::cuda
