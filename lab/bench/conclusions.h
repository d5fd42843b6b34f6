// Conclusions of a bench, in words. A difference is reported as one only if its interval excludes chance.
#pragma once

#include <string>
#include <vector>

#include "lab/bench/results.h"

namespace outrider {

// Fills of_plain and of_best of every run (intervals of 95 % for all lengths together), the conclusions and
// the warnings, from the rates by turn and the machine's figures.
void judge(BenchResults& results);

// Disturbances of a measurement, in words: other programs, a hypervisor, memory of varying speed.
std::vector<std::string> disturbances(const MachineResult& machine);

// "1, 2 and 4".
std::string listed(const std::vector<std::string>& names);

}  // namespace outrider
