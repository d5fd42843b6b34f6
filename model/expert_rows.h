// A mixture of experts for rows of activations (Shazeer et al. 2017). A router chooses a few experts for
// every row; the row gets the weighted sum of what those yield. An expert is read once for all rows that
// chose it.
//
// A row's bits do not depend on the rows beside it, nor on ranks: routing is fp32 in one order, ties go to
// the lowest id, nothing is dropped, an expert's product of a row is what it is alone, and in every leaf
// (shard.h) a row's experts are added in the order of their ids, then the shared one. A bias of what experts
// yield belongs to the first leaf. The leaves' tree comes last.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/activations.h"
#include "model/weights.h"
#include "model_files/model_config.h"
#include "model_files/shard_plan.h"

namespace outrider {

// The gated activation: combines a gate and an up.
struct GateRule {
  explicit GateRule(const ModelConfig& config)
      : activation(config.activation),
        factor(static_cast<float>(config.scales.gate_factor)),
        limit(static_cast<float>(config.scales.gate_limit)) {}
  Activation activation;
  float factor, limit;  // of kClampedSwish
};

// gate_up's first half becomes the MLP's intermediate activations of x. gate_up [rows, 2 * columns]
void gate_and_up(ThreadPool& pool, MatmulScratch& scratch, const DenseMlp& mlp, const GateRule& rule,
                 TensorView<const float, 2> x, TensorView<float, 2> gate_up);

struct ExpertChoice {
  int32_t expert = 0;
  float weight = 0;
  bool operator==(const ExpertChoice&) const = default;
};

// Fills `choices`, ascending by expert: the `choices.size()` experts with the largest scores, from the best
// groups. A score is the softmax share or the sigmoid of the expert's logit. With corrections ([experts], or
// empty), choices are ranked by score plus correction, and a group by the sum of its best two; without, a
// group is ranked by its best. Weights are the scores (divided by the sum of the chosen scores if
// `renormalise`; sums of sigmoids have `added` added), times the factor. Overwrites the logits. (DeepSeek-AI
// 2024, arXiv 2405.04434, section 2.2.2 and 2412.19437, section 2.1.2)
struct RoutingRule {
  bool renormalise = true;
  RouterScore score = RouterScore::kSoftmax;
  int64_t groups = 1, groups_chosen = 1;
  float factor = 1;
  float added = 1e-20f;  // to the sum of chosen sigmoids
};
void choose_experts(std::span<float> logits, const RoutingRule& rule, std::span<const float> corrections,
                    std::span<ExpertChoice> choices);

// Memory of one model's mixtures, planned at start-up.
class ExpertRows {
 public:
  // threads: of the pool that forward() is given.
  ExpertRows(const ModelConfig& config, const ShardPlan& plan, int64_t max_rows, int threads);

  // out[m, :] = this rank's part of the mixture of x[m, :]. x, out [rows, hidden]
  void forward(ThreadPool& pool, MatmulScratch& scratch, const ExpertMlp& mlp, TensorView<const float, 2> x,
               TensorView<float, 2> out) {
    forward(pool, scratch, mlp, x, x, out);
  }
  // The same; `routed` [rows, hidden] decides which experts a row goes through.
  void forward(ThreadPool& pool, MatmulScratch& scratch, const ExpertMlp& mlp,
               TensorView<const float, 2> routed, TensorView<const float, 2> x, TensorView<float, 2> out);

 private:
  static constexpr int64_t kVisitsTogether = 128;

  // A row that goes through an expert, and the weight of what it yields.
  struct Visit {
    int64_t row = 0;
    float weight = 0;
  };
  // Visits [first, first + count) of together_, all to one expert.
  struct Turn {
    const DenseMlp* expert = nullptr;
    int64_t first = 0, count = 0;
  };
  // Buffers of one turn, so that each thread may run its own turn.
  struct Desk {
    Desk(int64_t rows, int64_t hidden, int64_t columns)
        : gathered(rows, hidden), gate_up(rows * round_up(2 * columns, kRowPadding)) {}
    ThreadPool alone{1};
    MatmulScratch scratch;
    ActivationRows gathered;  // [rows, hidden]
    Buffer<float> gate_up;    // [rows, 2 * columns], of experts or the shared one
  };

  void route(ThreadPool& pool, MatmulScratch& scratch, const ExpertMlp& mlp, TensorView<const float, 2> x);
  void gate_shared(ThreadPool& pool, MatmulScratch& scratch, const ExpertMlp& mlp,
                   TensorView<const float, 2> x);
  // Adds what `visits` to one expert yield, sooner or later; flush() does what is left.
  void queue(ThreadPool& pool, MatmulScratch& scratch, const DenseMlp& expert, TensorView<const float, 2> x,
             std::span<const Visit> visits);
  void flush(ThreadPool& pool, MatmulScratch& scratch, TensorView<const float, 2> x);
  void take(const Turn& turn, ThreadPool& pool, MatmulScratch& scratch, Desk& desk,
            TensorView<const float, 2> x);
  void add_products(ThreadPool& pool);
  void sum_leaves(ThreadPool& pool, TensorView<float, 2> out);

  const ExpertConfig config_;
  const GateRule rule_;
  const int64_t leaves_;
  ActivationRows logits_;    // [rows, experts]
  ActivationRows sums_;      // [rows, leaves * hidden]: of every leaf, over the experts so far
  ActivationRows products_;  // [together, leaves * hidden]
  std::vector<std::unique_ptr<Desk>> desks_;  // one a thread
  std::vector<ExpertChoice> choices_;         // [rows, chosen]
  std::vector<int64_t> begins_;               // where each expert's visits begin, [experts + 1]
  std::vector<Visit> visits_;                 // by expert, then row
  std::vector<Turn> turns_;                   // runs of together_ that go to one expert
  std::vector<Visit> together_;
};

}  // namespace outrider
