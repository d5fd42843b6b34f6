// Conclusions of a study, in words. A difference is reported as one only if its interval excludes chance.
#pragma once

#include <string>
#include <vector>

#include "lab/study/summary.h"

namespace outrider {

// First what holds for all groups, then a sentence for each group. Intervals are of 95 %, each by itself.
std::vector<std::string> conclusions_of(const StudySummary& summary);

// Disturbances of the runs, and cells whose repeats differ more than the cells do.
std::vector<std::string> warnings_of(const StudySummary& summary);

}  // namespace outrider
