// How long a study will take, before it runs.
#pragma once

#include <string>

#include "lab/study/study_file.h"

namespace outrider {

// One sentence: the time of the runs that `output` has not, from the seconds of those that it has; without
// any, from a run of the first and of the last cell, here and now, whose results are thrown away. Says which.
std::string expected_time(const StudyFile& study, const std::string& output);

// "0:02:10".
std::string clock_of(double seconds);

}  // namespace outrider
