// A study file: which runs of `outrider generate` to compare. TOML:
//
//   name = "policies"            # default: the file's name
//   repeats = 3                  # of every cell
//   cell-timeout-s = 600         # a run that takes longer is marked as failed
//   [base]                       # any options of `generate` by their long names; the same in every cell
//   model = "../demo_pair/target"
//   [sweep]                      # each cell is one choice from every list; the last list varies fastest.
//   temperature = [0, 1]         # Several [[sweep]] tables: the cells of all of them
//   gamma-policy = ["fixed:gamma=2", "ewma"]
//
// Relative paths in values are those seen from the study file's folder.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

struct Cell {
  std::string id;                             // 16 digits made from the arguments: equal runs have equal ones
  std::vector<std::string> arguments;         // "--key=value"
  std::map<std::string, std::string> values;  // of the swept keys

  std::string label() const;
  // Of all swept keys but those that set the draft length: cells of a group differ in nothing else.
  std::string group() const;
  // The draft length and nothing but it, e.g. "fixed:gamma=2".
  std::string choice() const;
  // The length where it is fixed.
  std::optional<int> fixed_gamma() const;
};

struct StudyFile {
  std::string path, name;
  int repeats = 1;
  int cell_timeout_s = 600;
  std::vector<std::string> axes;  // swept keys as they appear
  std::vector<Cell> cells;

  std::string directory() const;  // of the file
};

constexpr int kMaxStudyRuns = 10000;

// An error names file, line and key.
Result<StudyFile> read_study_file(const std::string& path);

}  // namespace outrider
