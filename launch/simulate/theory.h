// `outrider simulate theory`: the published tables of expected gain, recomputed (algorithms.md section 4).
#pragma once

#include <string>

namespace outrider {

std::string theory_report();

}  // namespace outrider
