// How loading tells that it goes on.
#pragma once

#include <cstdint>
#include <functional>

namespace outrider {

// Called now and then with bytes of weights taken in so far and in total.
using LoadProgress = std::function<void(int64_t done, int64_t total)>;

}  // namespace outrider
