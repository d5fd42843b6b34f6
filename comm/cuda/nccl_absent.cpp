#include "comm/device_group.h"
#include "comm/row_link.h"

namespace outrider::cuda {

std::string describe_nccl() { return "NCCL: not in this build (no nccl.h was found when it was configured)"; }

Result<std::unique_ptr<DeviceGroup>> make_nccl_group(Collectives&, const NcclOptions&) {
  return unavailable(describe_nccl());
}

Result<RowLinks> nccl_row_links(int, const RowLinkOptions&) { return unavailable(describe_nccl()); }

Result<std::string> linkable_device(int) { return unavailable(describe_nccl()); }

}  // namespace outrider::cuda
