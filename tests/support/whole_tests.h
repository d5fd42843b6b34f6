// Whether tests run their whole grids: OUTRIDER_TEST_WHOLE=1, which entries labelled slow set. Others run a part
// that each test names.
#pragma once

#include <cstdlib>

namespace outrider::testing {

inline bool runs_whole_grids() {
  const char* const whole = std::getenv("OUTRIDER_TEST_WHOLE");
  return whole != nullptr && *whole == '1';
}

}  // namespace outrider::testing
