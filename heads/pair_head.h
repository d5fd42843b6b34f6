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

namespace outrider {

// Pairs of one sequence that go through together: the next ones of its cache.
struct PairSlice {
  KvHandle sequence;
  std::span<const TokenId> tokens;  // of pair t: at position t + 1; of Hydra they are counted and not read
  FloatRows hidden_states;  // [tokens.size(), hidden_size()]: committed_hidden_states(), or an earlier
                            // output; where the head computes
  bool has_logits = false;  // of its last pair
};

class PairHead final : public Head {
 public:
  static Result<std::unique_ptr<PairHead>> load(const std::filesystem::path& directory,
                                                const std::filesystem::path& target_directory,
                                                const HeadOptions& options);

  int64_t weight_bytes() const override { return weights_.bytes; }
  std::span<const TokenId> target_ids() const override { return weights_.target_ids; }

  // Output for the last pair of every slice that asks for it, in order, where the head computes. Valid until
  // the next pass.
  struct Rows {
    FloatRows logits;         // [rows, own vocabulary]; may be overwritten
    FloatRows hidden_states;  // [rows, hidden_size()]: what drafting goes on from
  };
  Rows forward(std::span<const PairSlice> batch);

  // The next pairs of a sequence, of tokens that a device draws meanwhile.
  struct Ahead {
    KvHandle sequence;
    int64_t pairs = 0;
  };
  // Reserves KV slots for all sequences. False: there is no room, or tokens are drawn on the host; nothing
  // changed. On success the caller writes the states from which the sequences continue to
  // ahead_hidden_states().
  bool begin_ahead(std::span<const Ahead> sequences);
  FloatRows ahead_hidden_states(int64_t first, int64_t count) const { return residual_.from(first, count); }
  // Queues one draft step for the first sequences. The input is the token that `drawn` drew last and the
  // head's own previous output, until begin_ahead() or forward(). Every call queues the same work. Afterwards
  // a sequence's row of ahead_hidden_states() holds the head's new output.
  FloatRows next_ahead(int64_t sequences, HeadSampler& drawn);

  KvCache& kv() { return attention_->kv(); }
  // Slices with logits in one pass, and blocks of the cache that are for nodes of trees.
  int64_t max_logit_rows() const { return logits_.capacity; }
  int64_t tree_blocks() const { return options_.max_sequences * options_.tree_nodes; }

 private:
  PairHead(HeadConfig config, const HeadOptions& options, HeadWeights weights);

  int64_t append(std::span<const PairSlice> batch);
  void read_hidden_states(std::span<const PairSlice> batch);
  void read_tokens(std::span<const PairSlice> batch, FloatRows to);
  Operand normed_hidden_states(int64_t rows);
  Operand joined_pairs(int64_t rows);
  void attend(Operand inputs, int64_t rows);
  void mlp(int64_t rows);
  FloatRows last_rows(std::span<const PairSlice> batch);
  Rows outputs(FloatRows last);

  HeadWeights weights_;
  std::unique_ptr<HeadAttention> attention_;
  std::unique_ptr<HeadMixture> mixture_;    // null: an MLP
  std::vector<HeadAttention::Row> places_;  // of the pass
  RowBuffer tokens_;                        // [rows, hidden]: their embeddings
  RowBuffer residual_;                      // [rows, hidden]
  RowBuffer partial_, qkv_, attention_gate_, gate_up_;
  OperandBuffer pairs_;  // [rows, 2 * hidden]: both halves of a pair, normed
  OperandBuffer normed_, attended_, gated_;
  std::vector<int64_t> lengths_;           // KV lengths of the sequences that draft ahead
  RowBuffer last_, last_normed_, logits_;  // [slices with logits, ...]
  OperandBuffer last_inputs_;
};

}  // namespace outrider
