// TokenRunner on a CUDA device. A step - feeding what was drawn last, the forward pass, the draws - is one
// graph for each number of rows, unless filters or confidence ask for more; steps are queued one behind the
// other. Sequences that stop sooner are later rows, so that the rows of a step are always the first ones.
#pragma once

#include <map>
#include <vector>

#include "base/cuda.h"
#include "kernels/sampling/cuda/device_draws.h"
#include "kernels/sampling/cuda/device_ranking.h"
#include "model/cuda/model.h"
#include "model/token_runner.h"

namespace outrider::cuda {

// For runs of `sequences` at a time, of a model with `vocab_size` tokens and a cache of `kv_tokens`.
DrawLimits run_limits(int64_t sequences, int64_t vocab_size, int64_t kv_tokens);
// Limits for looks at `rows` rows of logits.
DrawLimits look_limits(int64_t rows, int64_t vocab_size, int64_t kv_tokens);

class CudaTokenRunner final : public TokenRunner {
 public:
  // Draws ids below `vocab_size`. `model`, one whole rank, must outlive it.
  CudaTokenRunner(CudaModel& model, int64_t vocab_size);

  bool takes(std::span<const TokenRun> runs) override;
  Status run(std::span<const TokenRun> runs, bool measures) override;

  std::span<const TokenId> tokens(size_t run) const override;
  bool failed(size_t run) const override { return results_[run].failed; }
  TokenId guess(size_t run) const override { return results_[run].guess; }
  DraftConfidence confidence(size_t run, size_t token) const override;
  void read_q(size_t run, size_t token, QRow& q) const override;
  DeviceRow device_row(size_t run, size_t token) const override {
    return draws_.device_row(results_[run].row, static_cast<int64_t>(token));
  }
  int64_t first_ns() const override;

  bool takes(std::span<const TokenLook> looks) override;
  Status look(std::span<const BatchSlice> batch, std::span<const TokenLook> looks) override;
  std::span<const RankedToken> best(size_t look) const override;

 private:
  struct Run {
    size_t index = 0;  // as asked for
    int32_t count = 0;
  };
  struct Result {
    int64_t row = 0;               // of the draws
    size_t first = 0, tokens = 0;  // in tokens_
    bool failed = false;
    TokenId guess{-1};
  };

  void warm_up();
  void capture_graphs();
  void put_looks(std::span<const TokenLook> looks);
  int32_t steps_that_fit(std::span<const TokenRun> runs) const;
  void order(std::span<const TokenRun> runs);
  void plan(std::span<const TokenRun> runs);
  int64_t rows_of_step(int32_t step) const;
  void give_back(std::span<const TokenRun> runs, size_t made);
  Status make_room(std::span<const TokenRun> runs);
  void queue_steps(std::span<const TokenRun> runs);
  void queue_step(int64_t rows);
  void collect(std::span<const TokenRun> runs);

  CudaModel& model_;
  const int64_t layers_;  // that its passes go through
  const DrawLimits limits_;
  DeviceDraws draws_;
  DeviceRanking ranking_;
  std::map<int64_t, std::unique_ptr<Graph>> graphs_;  // a step, by rows
  Event begun_, first_drawn_;

  // Scratch of one run.
  std::vector<Run> order_;  // most tokens first
  std::vector<BatchSlice> slices_;
  std::vector<DrawRow> rows_;    // of order_, then guesses
  std::vector<Result> results_;  // as asked for
  std::vector<TokenId> tokens_;
  std::vector<int32_t> wanted_;  // by look
};

}  // namespace outrider::cuda
