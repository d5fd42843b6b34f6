// --device: the device of models, and the GPU of each worker where there are several.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "start/settings.h"

namespace outrider {

struct DeviceChoice {
  Device::Kind kind = Device::Kind::kCpu;
  std::optional<int> index;  // cuda:N; without it workers take the GPUs in turn
};

// "cpu", "cuda", "cuda:N", or "auto", which means cpu: GPUs must be requested by name.
Result<DeviceChoice> parse_device(const std::string& text);
// parse_device, and checks that the device exists. An error names --device and the remedy.
Result<DeviceChoice> check_device(const std::string& text);
// The GPUs of this machine that workers may take; 0 on the CPU.
int gpus_for(const ModelSettings& models);
// Worker 0, 1, ... of one process: target ranks first, then the drafter. After check_device.
Device device_of_worker(const ModelSettings& models, int worker);

}  // namespace outrider
