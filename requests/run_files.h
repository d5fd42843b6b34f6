// The files that a run reads and writes, except its models. An empty name: none.
#pragma once

#include <string>

namespace outrider {

struct RunFiles {
  std::string prompts;        // JSON lines; "-": standard input
  std::string output;         // results as JSON lines; "-": standard output
  bool overwrite = false;     // an existing output may be overwritten
  std::string resume;         // results of an earlier run
  std::string report;         // JSON
  std::string trace;          // for Perfetto
  std::string record_rounds;  // round_record.h
  std::string rounds;         // round_table.h
};

}  // namespace outrider
