// Runs this program once more as a process of its own, so that a crash is one failed cell and no cell
// inherits warm caches or memory from another.
#pragma once

#include <string>
#include <vector>

namespace outrider {

struct CellEnd {
  bool timed_out = false;
  int code = -1;   // exit code, or -1
  int signal = 0;  // that ended it, or 0
  double seconds = 0;

  bool succeeded() const { return code == 0; }
  std::string describe() const;  // what went wrong
};

// `directory`: to run in. Standard error goes to `error_file`, standard output nowhere. The process has none
// of our OUTRIDER_ variables, and dies with us. Throws where no process can be made.
CellEnd run_cell_process(std::vector<std::string> arguments, const std::string& directory,
                         const std::string& error_file, int timeout_s);

// The end of the error file, for people; empty: there is nothing in it.
std::string last_words(const std::string& error_file);

}  // namespace outrider
