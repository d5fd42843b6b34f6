#include "target_worker/cuda/device_verifier.h"
#include "target_worker/sharded_verifier.h"

namespace outrider {

std::unique_ptr<Verifier> make_verifier(Model& model, Collectives& group, int64_t requests) {
  cuda::DeviceGroup* devices = model.device_group();
  if (!devices) return std::make_unique<ShardedVerifier>(group);
  return std::make_unique<cuda::DeviceVerifier>(
      *devices, group, cuda::VerifierLimits{.rows = model.max_logit_rows(), .requests = requests});
}

}  // namespace outrider
