// Cosines and sines of the rotary embedding in device memory, as RopeTable has them on the CPU.
#pragma once

#include "base/cuda.h"
#include "model_files/model_config.h"

namespace outrider::cuda {

struct RopeTables {
  int32_t turned = 0;                  // pairs of dimensions; 0: nothing turns
  bool interleaved = false;            // neighbours turn together
  DeviceBuffer<float> cosines, sines;  // [positions, turned]
};

// Tables for the layers that rotate by `rope`; empty where there are none.
RopeTables rope_tables(const ModelConfig& config, LayerRope rope, int64_t positions, StreamView stream);

}  // namespace outrider::cuda
