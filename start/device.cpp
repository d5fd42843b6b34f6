#include "start/device.h"

#include "model/cuda_backend.h"

namespace outrider {

Status check_device(const DeviceSetting& device) {
  RETURN_IF_ERROR(device.status());
  if (device->kind == Device::Kind::kCpu) return {};
  const std::string& text = device.text();
  const auto count = cuda_device_count();
  if (!count.ok()) return invalid_argument("--device " + text + ": " + count.status().message());
  if (device->index && *device->index >= *count)
    return invalid_argument(fmt::format("--device {}: this machine has {} CUDA device{}, numbered from 0",
                                        text, *count, *count == 1 ? "" : "s"));
  return {};
}

int gpus_for(const ModelSettings& models) {
  const auto& choice = models.device;
  if (!choice.ok() || choice->kind == Device::Kind::kCpu || choice->index) return 0;
  const auto count = cuda_device_count();
  return count.ok() ? *count : 0;
}

Device device_of_worker(const ModelSettings& models, int worker) {
  const DeviceChoice& choice = *models.device;
  if (choice.kind == Device::Kind::kCpu) return {};
  return {.kind = choice.kind, .index = choice.index ? *choice.index : worker % gpus_for(models)};
}

}  // namespace outrider
