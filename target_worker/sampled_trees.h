// Verification of tree drafts under the rules that need q, on a vocabulary that is split over the ranks of a
// target group (rules/tree_rules.h, rules/sharded_tree_rows.h). Trees are verified one after the other,
// because a rule's next probe depends on the answers to earlier ones.
#pragma once

#include <vector>

#include "kernels/sampling/filters.h"
#include "kernels/sampling/logprobs.h"
#include "target_worker/verifier.h"

namespace outrider {

class SampledTrees {
 public:
  // `group` must outlive this; its ranks call verify() with the same requests and their own shard.
  explicit SampledTrees(Collectives& group);

  // Verifies a request with parents, whose rule is a tree rule. Overwrites its rows of the logits.
  void verify(const VerifyRequest& request, const LogitsShard& logits, VerifyResult& result);
  uint64_t fallbacks() const { return fallbacks_; }  // as VerifierStats::residual_fallbacks

 private:
  void process_rows(const VerifyRequest& request, const LogitsShard& logits);
  void leave_out_unknown(DraftTreeView tree);
  void weigh(const VerifyRequest& request);
  void report_logprobs(const VerifyRequest& request, VerifyResult& result);

  Collectives& group_;
  ShardFilters filters_;
  WeightedSampler sampler_;
  ShardLogprobs logprobs_;
  uint64_t fallbacks_ = 0;

  // State of one tree. Rows: the committed text's row first, then the rows of nodes.
  std::vector<ShardRow> rows_;
  std::vector<RankedToken> best_;  // of each row, over all ranks
  std::vector<float> chunk_max_, raw_;
  std::vector<int32_t> depths_, path_;
  // The nodes that can be tested, with their rows.
  DraftTree tested_;
  std::vector<int32_t> node_of_;
  std::vector<RowWeights> weights_;
  std::vector<uint64_t> q_drafted_;
};

}  // namespace outrider
