#include "base/shard.h"
#include "target_worker/cuda/device_verifier.h"
#include "target_worker/sharded_verifier.h"

namespace outrider {

std::unique_ptr<Verifier> make_verifier(Model& model, Collectives& group, int64_t requests) {
  cuda::DeviceGroup* devices = model.device_group();
  if (!devices) return std::make_unique<ShardedVerifier>(group);
  cuda::VerifierLimits limits{.rows = model.max_logit_rows(), .requests = requests};
  // Ranks that are threads cannot make room later: that may wait for the device, where a peer's kernel waits.
  if (group.size() > 1) {
    const IndexRange slice = vocab_range(model.config().vocab_size, {.tp_rank = 0, .tp_size = group.size()});
    limits.q_words = limits.rows * slice.size();
  }
  return std::make_unique<cuda::DeviceVerifier>(*devices, group, limits);
}

}  // namespace outrider
