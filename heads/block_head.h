// DFlash (2602.06036): a few layers that fill a block of masked tokens in one pass. Rows of the target's
// projected states are keys and values of every layer, at their own positions, and nothing else is kept of a
// text; the block stands behind them: the last token, whose state nobody knows yet, and masks. Its rows see
// each other in both directions, so a block of another length has other logits: the length is the head's, and
// short drafts are cut. DSpark (2607.05147) adds to a row's logits what tends to follow the token before it.
// docs/heads.md has the equations. One thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "heads/block_weights.h"
#include "heads/head.h"
#include "transformer/kv/cpu_kv_storage.h"
#include "transformer/model/activations.h"
#include "transformer/ops/cpu/cpu_ops.h"

namespace outrider {

// Of one sequence, in one pass.
struct BlockSlice {
  KvHandle sequence;
  TensorView<const float, 2> states;  // [rows, hidden_size()]: committed_states() of its next positions
  std::optional<TokenId> last;        // the token behind all states: a block is filled; none: states are read
  int64_t tokens = 0;                 // of the block, whose logits are wanted
};

class BlockHead final : public Head {
 public:
  static Result<std::unique_ptr<BlockHead>> load(const std::filesystem::path& directory,
                                                 const std::filesystem::path& target_directory,
                                                 const HeadOptions& options);

  int64_t weight_bytes() const override { return weights_.bytes / block_tokens(); }
  std::span<const TokenId> target_ids() const override { return weights_.target_ids; }
  int64_t block_tokens() const { return config_.block_tokens(); }
  int64_t block_rows() const { return config_.block_size; }
  int64_t max_blocks() const { return max_blocks_; }  // in one pass; max_rows() are its states and blocks

  // Logits of the wanted tokens of all blocks, in order: [tokens, own vocabulary]. The states stay in the
  // cache, and blocks do not. Valid until the next call.
  TensorView<float, 2> forward(std::span<const BlockSlice> batch);
  // A row of logits where this token stands before: of DSpark, another row, valid until the next call.
  std::span<const float> behind(TokenId before, std::span<const float> logits);

  KvCache& kv() { return kv_; }

 private:
  BlockHead(HeadConfig config, const HeadOptions& options, BlockWeights weights,
            std::unique_ptr<CpuKvStorage> storage, int64_t kv_blocks, int64_t max_blocks);

  struct Place {
    KvSlot slot;
    int64_t position = 0;
  };
  struct Rows {
    int64_t states = 0, blocks = 0;
  };
  Rows append(std::span<const BlockSlice> batch);
  void read(std::span<const BlockSlice> batch, Rows rows);
  void store_keys(int64_t layer, Rows rows);
  void attend(int64_t layer, Rows rows);
  void mlp(const BlockLayer& layer, Rows all);
  TensorView<float, 2> logits(std::span<const BlockSlice> batch);
  float epsilon() const { return static_cast<float>(config_.layer.rms_norm_eps); }

  const BlockWeights weights_;
  CpuKvStorage& storage_;  // of kv_
  KvCache kv_;
  const int64_t max_blocks_;
  ThreadPool pool_;
  RopeTable rope_;
  MatmulScratch matmul_scratch_;
  AttentionScratch attention_scratch_;
  std::vector<Place> places_;                                   // of states, then of blocks
  std::vector<AttentionRow> attention_rows_;                    // of blocks
  ActivationRows inputs_, kv_rows_;                             // [rows, ...]: of states, then of blocks
  ActivationRows residual_, q_, attended_, partial_, gate_up_;  // [rows of blocks, ...]
  ActivationRows last_, logits_;                                // [wanted tokens, ...]
  ActivationRows transition_;                                   // [2, rank or own vocabulary]
};

}  // namespace outrider
