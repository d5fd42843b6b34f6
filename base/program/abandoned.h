// Unfinished files and directories of programs that were killed (SIGKILL, no power).
#pragma once

#include <string>
#include <vector>

namespace outrider {

// Removes files and directories "PATH.PID.partial" (temporary_file.h, partial_directory.h) whose process does
// not live on this host, and returns their names.
std::vector<std::string> remove_abandoned(const std::string& path);

}  // namespace outrider
