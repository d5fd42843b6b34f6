// The cost of one target pass by its number of rows, and of one step of the draft model: timed on the models
// themselves, without a cluster around them.
#pragma once

#include <map>
#include <vector>

#include "start/local_cluster.h"

namespace outrider {

class VerifyCurve {
 public:
  // `context`: the text the rows follow. `rows`: passes to time.
  VerifyCurve(LocalModels& models, std::vector<TokenId> context, std::vector<int> rows);

  // Times every pass once more, smallest first.
  Status turn();

  // Medians over turns.
  double seconds(int rows) const;
  double draft_step_seconds() const;  // 0 without a draft model
  const std::vector<int>& rows() const { return rows_; }

 private:
  Status time_target(size_t rank);
  Status time_draft();

  LocalModels& models_;
  std::vector<TokenId> context_;
  std::vector<int> rows_;
  std::map<int, std::vector<double>> samples_;  // by rows
  std::vector<double> draft_samples_;
};

}  // namespace outrider
