// What the repeats of a study prove, in words: a difference is told as one only where its interval says so.
#pragma once

#include <string>
#include <vector>

#include "lab/study/summary.h"

namespace outrider {

// First what holds for all groups, then a sentence for each group. Intervals are of 95 %, each by itself.
std::vector<std::string> conclusions_of(const StudySummary& summary);

// What disturbed the runs, and where repeats differ more than cells do.
std::vector<std::string> warnings_of(const StudySummary& summary);

}  // namespace outrider
