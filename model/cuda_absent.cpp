#include "model/cuda_backend.h"

namespace outrider {

Result<int> cuda_device_count() {
  return unavailable(
      "no CUDA device: this program was built without the CUDA toolkit (nvcc); run with --device cpu");
}

Result<std::unique_ptr<Model>> load_cuda_model(const std::filesystem::path&, const ModelOptions&,
                                               Collectives&) {
  return cuda_device_count().status();
}

Result<int64_t> cuda_weight_bytes(const WeightMap&, const ModelConfig&, Shard) {
  return cuda_device_count().status();
}

int64_t cuda_state_bytes(const ModelConfig&, Shard) { return 0; }

std::vector<std::string> describe_cuda() {
  return {"not in this build (no nvcc was found when it was configured); models run on the CPU"};
}

}  // namespace outrider
