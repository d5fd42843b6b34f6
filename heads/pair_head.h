// Heads of one layer over pairs: row t is made of the target's state at position t and of the token at t + 1,
// stands at rotary position t, and says which token comes at t + 2. Behind the committed text the head goes
// on from its own output in place of a state. EAGLE-1 and 3 and modules of multi-token prediction differ in
// how a pair is put together, and in which output goes on; docs/heads.md has the equations. The layer that
// Hydra's states go through is one, too, over states alone and without logits. One thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "heads/head.h"
#include "heads/head_weights.h"
#include "transformer/kv/cpu_kv_storage.h"
#include "transformer/model/activations.h"
#include "transformer/ops/cpu/cpu_ops.h"

namespace outrider {

// Pairs of one sequence that go through together: the next ones of its cache.
struct PairSlice {
  KvHandle sequence;
  std::span<const TokenId> tokens;  // of pair t: at position t + 1; of Hydra they are counted and not read
  TensorView<const float, 2>
      states;               // [tokens.size(), hidden_size()]: committed_states(), or an earlier output
  bool has_logits = false;  // of its last pair
};

class PairHead final : public Head {
 public:
  static Result<std::unique_ptr<PairHead>> load(const std::filesystem::path& directory,
                                                const std::filesystem::path& target_directory,
                                                const HeadOptions& options);

  int64_t weight_bytes() const override { return weights_.bytes; }
  std::span<const TokenId> target_ids() const override { return weights_.target_ids; }

  // Logits of the last pair of every slice that asks for it, in order. Valid until the next pass; may be
  // overwritten.
  struct Rows {
    TensorView<float, 2> logits;  // [rows, own vocabulary]
    TensorView<float, 2> states;  // [rows, hidden_size()]: what drafting goes on from
  };
  Rows forward(std::span<const PairSlice> batch);

  KvCache& kv() { return kv_; }
  // Slices with logits in one pass, and blocks of the cache that are for nodes of trees.
  int64_t max_logit_rows() const { return last_.data.size() / last_.stride; }
  int64_t tree_blocks() const { return options_.max_sequences * options_.tree_nodes; }

 private:
  PairHead(HeadConfig config, const HeadOptions& options, HeadWeights weights,
           std::unique_ptr<CpuKvStorage> storage, int64_t kv_blocks);

  int64_t append(std::span<const PairSlice> batch);
  void read_single_states(std::span<const PairSlice> batch, int64_t rows);
  void read_pairs(std::span<const PairSlice> batch, int64_t rows);
  void attend(std::span<const PairSlice> batch, int64_t rows);
  void prepare_heads(std::span<const PairSlice> batch);
  void mlp(int64_t rows);
  float epsilon() const { return static_cast<float>(config_.layer.rms_norm_eps); }

  HeadWeights weights_;
  CpuKvStorage& storage_;  // of kv_
  KvCache kv_;
  ThreadPool pool_;
  RopeTable rope_;
  MatmulScratch matmul_scratch_;
  AttentionScratch attention_scratch_;
  std::vector<AttentionRow> attention_rows_;
  ActivationRows pairs_;     // [rows, 2 * hidden]: both halves of a pair, normed
  ActivationRows residual_;  // [rows, hidden]
  ActivationRows normed_, partial_, qkv_, attended_, gate_up_;
  ActivationRows last_, logits_;  // [slices with logits, ...]
};

}  // namespace outrider
