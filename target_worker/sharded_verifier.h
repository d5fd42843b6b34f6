// Verification on a vocabulary that is split over the ranks of a target group: no rank sees another's logits,
// every rank computes the same verdicts from the same reduced integers. Equal to the whole-row rules of
// acceptance_rule.h for the same draws, whatever the number of ranks. All requests of a pass share every
// collective.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/collectives.h"
#include "kernels/sampling/filters.h"
#include "kernels/sampling/logprobs.h"
#include "kernels/sampling/weighted_draw.h"
#include "target_worker/rules/decisions.h"
#include "target_worker/verifier.h"

namespace outrider {

class ShardedVerifier final : public Verifier {
 public:
  // `group` must outlive the verifier; its ranks call verify() with the same requests and their own shard.
  explicit ShardedVerifier(Collectives& group);

  // The logits are in host memory.
  const std::vector<VerifyResult>& verify(std::span<const VerifyRequest> requests,
                                          const PlacedLogits& logits) override;
  const VerifierStats& stats() const override { return stats_; }

 private:
  struct Entry {
    const VerifyRequest* request = nullptr;
    Rule rule = Rule::kGreedy;
    size_t first_row = 0;   // in rows_
    size_t first_raw = 0;   // in raw_, in rows, when log-probabilities are asked for
    size_t first_draw = 0;  // in draws_
    std::vector<TestedToken> tests;
    std::vector<uint64_t> totals;  // sum of W of the tested rows
    std::vector<double> ratios, residual_mass;
    // The rows in front of the first that is not finite, and the draft tokens that they can test.
    int rows = 0, gamma = 0;

    bool failed() const { return rows == 0; }
    bool tests_q() const { return needs_q(rule) && gamma > 0; }
    bool draws_whole_rows() const { return rule == Rule::kNaive || (needs_q(rule) && gamma == 0); }
  };

  void lay_out(std::span<const VerifyRequest> requests, const LogitsShard& logits);
  void process_rows();
  void reduce_best();
  void filter_rows();
  void sum_tested_rows();
  void sum_block_residuals();
  void choose_tokens();
  void finish_matches(Entry& entry, VerifyResult& result);
  void report_logprobs();

  RankedToken local_choice(const Entry& entry, const ShardRow& row, int index) const;
  RowWeights weights_of_row(const Entry& entry, int index) const;
  RowWeights residual_of_row(const Entry& entry, int index, double ratio) const;

  Collectives& group_;
  ShardFilters filters_;
  WeightedSampler sampler_;
  ShardLogprobs logprobs_;
  VerifierStats stats_;

  size_t entry_count_ = 0;  // entries_ only grows, so that its inner buffers live on
  std::vector<Entry> entries_;
  std::vector<ShardRow> rows_;
  std::vector<RankedToken> noisy_;  // of filtered rows under the invariant rule
  std::vector<RankedToken> best_;   // per row: the target's own choice, for greedy and invariant
  std::vector<float> chunk_max_, raw_;
  std::vector<ShardRow*> filtered_;
  std::vector<uint64_t> integers_;
  std::vector<WeightedDraw> draws_;
  std::vector<TokenId> targets_;
  std::vector<LogprobQuery> queries_;
  std::vector<VerifyResult> results_;
};

}  // namespace outrider
