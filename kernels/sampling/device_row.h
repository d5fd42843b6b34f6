// A dense row of q where it was drawn from, in device memory.
#pragma once

#include <cstdint>

namespace outrider {

struct DeviceRow {
  const uint16_t* weights = nullptr;  // of every token, in 16 bits (base/short_weight.h)
  // Known on the host.
  uint64_t sum = 0;
  uint64_t drawn = 0;  // weight of the token that was drawn
};

}  // namespace outrider
