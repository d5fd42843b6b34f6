// A study file: which runs of `outrider generate` to compare. TOML:
//
//   name = "policies"            # default: the file's name
//   repeats = 3                  # of every cell
//   cell-timeout-s = 600         # a run that takes longer is marked as failed
//   x-axis = "temperature"       # a swept key that the report draws tokens/s over; default: none
//   [base]                       # any options of `generate` by their long names; the same in every cell
//   model = "../../launch/demo_pair/target"
//   [sweep]                      # each cell is one choice from every list; the last list varies fastest.
//   temperature = [0, 1]         # several [[sweep]] tables: the cells of all tables
//   gamma-policy = ["fixed:gamma=2", "ewma"]
//
// Relative paths in values are those seen from the study file's folder.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "lab/study/cell.h"

namespace outrider {

struct StudyFile {
  std::string path, name;
  int repeats = 1;
  int cell_timeout_s = 600;
  std::vector<std::string> axes;  // swept keys as they appear
  std::string x_axis;             // a key of `axes`, or empty
  std::vector<Cell> cells;

  std::string directory() const;  // of the file
};

constexpr int kMaxStudyRuns = 10000;

// An error names file, line and key.
Result<StudyFile> read_study_file(const std::string& path);

}  // namespace outrider
