// `outrider study compare A B`: compares two sets of results, cell by cell: speed, with intervals, and the
// differences of their settings. A set is a directory of a study, its study.json, or the --report of a bench.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "base/status.h"

namespace CLI {
class App;
}

namespace outrider {

// One cell of a study or one length of a bench, over repeats or turns; missing figures are left out.
struct ResultCell {
  std::string id;    // equal ones ran with equal arguments; empty: the name tells
  std::string name;  // the swept values, or the length
  std::vector<double> rates, plain_rates, speedups;  // tokens/s, tokens/s of plain decoding, speed-up
};

struct ResultSet {
  std::string path;
  nlohmann::json provenance;  // requests/provenance.h; null in files of older versions
  std::vector<ResultCell> cells;
};

// Errors name the file.
Result<ResultSet> read_results(const std::string& path);

struct ComparedCell {
  std::string name;
  Ratio rate, plain_rate, speedup;  // of B over A
};

struct Comparison {
  std::string a, b;  // paths
  std::vector<ComparedCell> cells;
  std::vector<std::string> only_a, only_b;  // names of cells that the other has not
  bool by_name = false;                     // arguments differ in more than is swept: matched by swept values
  Ratio rate, plain_rate, speedup;          // over all cells, each counted once
  std::vector<std::string> differences;     // of provenance: "commit: 12ab -> 34cd"
  std::vector<std::string> conclusions;     // sentences
};

Comparison compare_results(const ResultSet& a, const ResultSet& b);
std::string comparison_text(const Comparison& comparison);
nlohmann::json comparison_json(const Comparison& comparison);

struct CompareOptions {
  std::string a, b;
  std::string report;
};
void add_compare_options(CLI::App& app, CompareOptions& options);
Status run_compare(const CompareOptions& options);

}  // namespace outrider
