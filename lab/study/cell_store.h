// Finished runs of a study on disk: one JSON file per run, complete or absent, so that a study killed at any
// moment continues where it was.
//
//   DIR/runs/ID.REPEAT.json   cell, arguments, status, seconds, the report of `generate`, when its rounds
//                             were, and the load of the machine meanwhile
//   DIR/runs/ID.REPEAT.rounds.csv   its rounds (requests/round_table.h)
//   DIR/running/              of the run in progress; emptied at start
//   DIR/lock                  held while a study works in DIR
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lab/study/study_file.h"

namespace outrider {

class CellStore {
 public:
  // Creates DIR. kUnavailable while another study works there.
  static Result<CellStore> open(const std::string& directory);
  CellStore(CellStore&& other) noexcept;
  CellStore& operator=(CellStore&&) = delete;
  ~CellStore();

  // The record of a finished run; empty if there is none.
  std::optional<nlohmann::json> load(const Cell& cell, int repeat) const;
  // Runs the cell, whatever its end, and stores the record. An error only if that cannot be written.
  // `read_bandwidth`: of the machine, as probed shortly before; stored with what others did meanwhile.
  Result<nlohmann::json> run(const Cell& cell, int repeat, const StudyFile& study,
                             double read_bandwidth) const;

  const std::string& directory() const { return directory_; }

 private:
  CellStore(std::string directory, int lock) : directory_(std::move(directory)), lock_(lock) {}
  std::string directory_;  // absolute
  int lock_;
};

// The rounds of a finished run (requests/round_table.h); runs of earlier versions have none.
std::string rounds_path(const std::string& directory, const Cell& cell, int repeat);

// The record of one run from the directory of a study that need not be open, nor be there.
std::optional<nlohmann::json> load_record(const std::string& directory, const Cell& cell, int repeat);

}  // namespace outrider
