// How long a study will take, before it runs.
#pragma once

#include <string>

#include "base/status.h"
#include "lab/study/study_file.h"

namespace outrider {

// One sentence: the time of the runs that `output` lacks, from the seconds of its finished runs. Without
// finished runs: from a run of the first and of the last cell, here and now, with discarded results. The
// sentence names the basis. An error: such a run failed, with its last words.
Result<std::string> expected_time(const StudyFile& study, const std::string& output);

// "0:02:10".
std::string clock_of(double seconds);

}  // namespace outrider
