#include "heads/head_compute.h"
#include "model/cuda_backend.h"

namespace outrider {

Result<std::shared_ptr<HeadCompute>> make_device_compute(const Device&, Model*) {
  return cuda_device_count().status();
}

}  // namespace outrider
