// --device: the device of models, and the GPU of each worker where there are several.
#pragma once

#include "base/status.h"
#include "start/settings.h"

namespace outrider {

// Checks that the device exists. An error names --device and the remedy.
Status check_device(const DeviceSetting& device);
// The GPUs of this machine that workers may take; 0 on the CPU.
int gpus_for(const ModelSettings& models);
// Worker 0, 1, ... of one process: target ranks first, then the drafter. After check_device.
Device device_of_worker(const ModelSettings& models, int worker);

}  // namespace outrider
