#include "comm/device_group.h"

namespace outrider::cuda {

std::string describe_nccl() { return "NCCL: not in this build (no nccl.h was found when it was configured)"; }

Result<std::unique_ptr<DeviceGroup>> make_nccl_group(Collectives&, const NcclOptions&) {
  return unavailable(describe_nccl());
}

}  // namespace outrider::cuda
