// `outrider simulate texts`: which drafter without a model suits these texts, and how long its drafts may be.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "lab/simulate/report_files.h"
#include "lab/simulate/texts.h"

namespace CLI {
class App;
}

namespace outrider {

struct TextsOptions {
  std::string file, model;
  std::vector<std::string> drafters{"ngram", "suffix", "suffix-own"};
  std::vector<int> gammas{4, 8, 16};
  std::vector<int> nodes{8, 16};
  std::vector<std::string> row_costs{"16=1.10", "64=1.3"};
  int limit = 1000, max_tokens = 2048;
  ReportFiles files;
};

struct TextsRow {
  std::string drafter;
  TextDraftShape shape;
  TextDraftFigures figures;
  std::string shape_text() const;
};

struct TextsTable {
  std::string file, subtitle;
  std::vector<std::string> row_costs;
  std::vector<TextsRow> rows;
  const TextsRow* fastest() const;
};

void add_texts_options(CLI::App& app, TextsOptions& options);
Status run_texts(const TextsOptions& options);

}  // namespace outrider
