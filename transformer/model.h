// A decoder-only transformer, or one tensor-parallel shard of it: tokens in, logits out. It knows nothing of
// requests, drafts or epochs. One owner thread; under tensor parallelism every rank calls forward() with the
// same batch at the same time.
#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "base/status.h"
#include "base/types.h"
#include "comm/collectives.h"
#include "transformer/kv_cache.h"
#include "transformer/logits.h"
#include "transformer/model_config.h"
#include "transformer/weights.h"

namespace outrider {

// Consecutive tokens of one sequence: positions [kv.length(sequence), + tokens.size()).
struct BatchSlice {
  KvHandle sequence;
  std::span<const TokenId> tokens;
  int64_t logit_rows = 0;  // of the last so many tokens; 0 for a prefill chunk that is not the last
};

struct ModelOptions {
  Shard shard;
  int threads = 1;                              // at most
  int64_t bytes_per_thread = int64_t{2} << 20;  // a thread with fewer weights to read is not worth waking
  bool spin = false;                            // see ThreadPool
  int64_t max_rows = 256;                       // tokens in one forward
  int64_t max_logit_rows = 64;
  int64_t max_positions = 0;  // longest sequence; 0: what the model supports
  int64_t kv_tokens = 0;      // capacity of the cache in tokens, over all sequences; 0: one longest sequence
  enum class Kv : uint8_t { kAuto, kFloat32, kBFloat16 } kv = Kv::kAuto;  // auto: as the weights
  LoadProgress progress;
};

class Model {
 public:
  static Result<std::unique_ptr<Model>> load(const std::filesystem::path& directory,
                                             const ModelOptions& options, Collectives& collectives);
  ~Model();

  // Appends every slice to its sequence's KV and returns the logits of the last logit_rows tokens of each
  // slice, in batch order. kResourceExhausted (no KV blocks) leaves every sequence as it was.
  Result<LogitsShard> forward(std::span<const BatchSlice> batch);

  KvCache& kv() { return kv_; }
  const ModelConfig& config() const { return config_; }
  int64_t max_positions() const { return max_positions_; }
  int64_t max_rows() const { return options_.max_rows; }
  int64_t max_logit_rows() const { return options_.max_logit_rows; }
  int64_t weight_bytes() const { return weights_.bytes; }

 private:
  struct Activations;  // [rows, ...], planned at start-up

  Model(ModelConfig config, const ModelOptions& options, const ShardPlan& plan, Weights weights,
        KvShape kv_shape, int64_t kv_blocks, int64_t max_positions, std::unique_ptr<ThreadPool> pool,
        Collectives& collectives);

  Status append_kv(std::span<const BatchSlice> batch);
  void embed(std::span<const BatchSlice> batch, int64_t rows);
  void attention_block(int64_t layer, std::span<const BatchSlice> batch, int64_t rows);
  void mlp_block(int64_t layer, int64_t rows);
  void prepare_heads(int64_t layer, std::span<const BatchSlice> batch);
  void sum_over_ranks(TensorView<float, 2> partial);

  ModelConfig config_;
  ModelOptions options_;
  ShardPlan plan_;
  Weights weights_;
  KvCache kv_;
  int64_t max_positions_;
  std::unique_ptr<ThreadPool> pool_;
  Collectives* collectives_;
  RopeTable rope_;
  MatmulScratch matmul_scratch_;
  AttentionScratch attention_scratch_;
  std::unique_ptr<Activations> act_;
};

}  // namespace outrider
