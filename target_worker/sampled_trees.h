// Verification of drafts that branch under the rules that need q, on a vocabulary that is split over the
// ranks of a target group (rules/tree_rules.h, rules/sharded_tree_rows.h). One tree after the other: what a
// rule asks next depends on what it was told.
#pragma once

#include <vector>

#include "target_worker/verifier.h"
#include "transformer/sampling/filters.h"
#include "transformer/sampling/logprobs.h"

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

  // What one tree needs. Rows: the committed text's first, then those of nodes.
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
