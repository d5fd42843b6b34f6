// A mixture of experts for rows of activations (Shazeer et al. 2017). A router chooses a few experts for
// every row; the row gets the weighted sum of what those yield. An expert is read once for all rows that
// chose it.
//
// A row's bits do not depend on the rows beside it, nor on ranks: routing is fp32 in one order, ties go to
// the lowest id, nothing is dropped, an expert's product of a row is what it is alone, and in every leaf
// (shard.h) a row's experts are added in the order of their ids, then the shared one. The leaves' tree comes
// last.
#pragma once

#include <span>
#include <vector>

#include "transformer/files/model_config.h"
#include "transformer/model/activations.h"
#include "transformer/model/shard_plan.h"
#include "transformer/model/weights.h"

namespace outrider {

// gate_up's first half becomes the MLP's intermediate activations of x. gate_up [rows, 2 * columns]
void gate_and_up(ThreadPool& pool, MatmulScratch& scratch, const DenseMlp& mlp, Activation activation,
                 TensorView<const float, 2> x, TensorView<float, 2> gate_up);

struct ExpertChoice {
  int32_t expert = 0;
  float weight = 0;
  bool operator==(const ExpertChoice&) const = default;
};

// Fills `choices`, as many as a token chooses, ascending by expert: those of the largest logits, weighted by
// their share of all logits' softmax, or of the chosen ones' if `renormalise`. Overwrites the logits.
void choose_experts(std::span<float> logits, bool renormalise, std::span<ExpertChoice> choices);

// Memory of one model's mixtures, planned at start-up.
class ExpertRows {
 public:
  ExpertRows(const ModelConfig& config, const ShardPlan& plan, int64_t max_rows);

  // out[m, :] = this rank's part of the mixture of x[m, :]. x, out [rows, hidden]
  void forward(ThreadPool& pool, MatmulScratch& scratch, const ExpertMlp& mlp, TensorView<const float, 2> x,
               TensorView<float, 2> out);

 private:
  static constexpr int64_t kRowsTogether = 64;  // that go through an expert at once

  // A row that goes through an expert, and the weight of what it yields.
  struct Visit {
    int64_t row = 0;
    float weight = 0;
  };

  void route(ThreadPool& pool, MatmulScratch& scratch, const ExpertMlp& mlp, TensorView<const float, 2> x);
  void visit(ThreadPool& pool, MatmulScratch& scratch, const DenseMlp& expert, TensorView<const float, 2> x,
             std::span<const Visit> visits);
  void add_shared(ThreadPool& pool, MatmulScratch& scratch, const ExpertMlp& mlp,
                  TensorView<const float, 2> x);
  void sum_leaves(ThreadPool& pool, TensorView<float, 2> out);

  const ExpertConfig config_;
  const Activation activation_;
  const int64_t leaves_;
  ActivationRows logits_;              // [rows, experts]
  ActivationRows sums_;                // [rows, leaves * hidden]: of every leaf, over the experts so far
  ActivationRows gathered_;            // [together, hidden]
  Buffer<float> gate_up_;              // [together, 2 * columns], of experts and the shared one
  ActivationRows products_;            // [together, leaves * hidden]
  std::vector<ExpertChoice> choices_;  // [rows, chosen]
  std::vector<int64_t> begins_;        // of each expert's visits; experts + 1 of them
  std::vector<Visit> visits_;          // by expert, then row
};

}  // namespace outrider
