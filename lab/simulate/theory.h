// `outrider simulate theory`: the published tables of expected gain, recomputed.
#pragma once

#include <string>

namespace outrider {

std::string theory_report();

}  // namespace outrider
