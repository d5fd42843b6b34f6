// DFlash (2602.06036): a few layers that fill a block of masked tokens in one pass. Rows of the target's
// projected hidden states are the keys and values of every layer, at their own positions; nothing else of a
// text is cached. The block comes behind them: the last token, whose hidden state does not exist yet, and
// masks. Rows of a block attend to each other in both directions, so a block of another length has other
// logits: the head fixes the length, and short drafts are cut. DSpark (2607.05147) adds to a row's logits a
// score for tokens that often follow the token before. docs/heads.md has the equations. One thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "heads/block_weights.h"
#include "heads/head.h"

namespace outrider {

// One sequence in one pass.
struct BlockSlice {
  KvHandle sequence;
  FloatRows hidden_states;      // [rows, hidden_size()]: committed_hidden_states() of its next positions
  std::optional<TokenId> last;  // the token behind all states: a block is filled; none: states are read
  int64_t tokens = 0;           // of the block, whose logits are wanted
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

  // Logits of the wanted tokens of all blocks, in order, where the head computes: [tokens, own vocabulary].
  // The states stay in the cache, and blocks do not. Valid until the next call; may be overwritten.
  FloatRows forward(std::span<const BlockSlice> batch);
  // For DSpark: adds transition scores to rows of the logits of forward(); for DFlash 2: leaves a
  // row's candidates, scored by the token before the row. Row rows[i] gets the scores behind
  // token i, or behind the token that row i of `drawn` drew last. At most max_blocks() rows.
  void add_behind(std::span<const TokenId> tokens, FloatRows logits, std::span<const int64_t> rows);
  void add_behind(HeadSampler& drawn, FloatRows logits, std::span<const int64_t> rows);
  // Whether add_behind() can take `drawn`.
  bool knows_drawn() const { return !selector_ && (!weights_.markov_of || weights_.markov_of->there()); }
  // For DSpark and DFlash 2, whose rows depend on the token before them: returns rows where the head
  // computes, valid until the next call. Row i is row rows[i] of `logits` behind token i. At most
  // most_behind() rows, which is meant for trees.
  bool knows_tokens() const { return weights_.markov_of.has_value() || selector_.has_value(); }
  FloatRows behind(std::span<const TokenId> tokens, FloatRows logits, std::span<const int64_t> rows);
  int64_t most_behind() const { return behind_.capacity; }

  KvCache& kv() { return attention_->kv(); }

 private:
  BlockHead(HeadConfig config, const HeadOptions& options, BlockWeights weights, int64_t kv_blocks,
            int64_t max_blocks);

  struct Rows {
    int64_t hidden_states = 0, blocks = 0;
  };
  Rows append(std::span<const BlockSlice> batch);
  void read(std::span<const BlockSlice> batch, Rows rows);
  void attend(int64_t layer, Rows rows);
  void mlp(const BlockLayer& layer, Rows rows);
  void convolve(FloatRows x, const HeadVector& base, bool is_behind, FloatRows to);
  void convolve_inputs(const BlockConvolutions& w, const HeadVector& norm, Operand to);
  void add_output(FloatRows partial, const BlockConvolutions& w, const HeadVector& bias);
  FloatRows logits(std::span<const BlockSlice> batch);
  void read_transitions(std::span<const TokenId> tokens);
  FloatRows transitions(int64_t count);
  void add_transitions(FloatRows logits, std::span<const int64_t> rows);

  const BlockWeights weights_;
  std::unique_ptr<HeadAttention> attention_;
  const int64_t max_blocks_;
  std::vector<HeadAttention::Row> places_;      // of states, then of blocks
  RowBuffer hidden_states_;                     // [rows of hidden states, hidden]
  OperandBuffer inputs_;                        // [rows, hidden]: of states, then of blocks
  RowBuffer kv_rows_;                           // [rows, keys and values]: the same
  RowBuffer residual_, q_, partial_, gate_up_;  // [rows of blocks, ...]
  OperandBuffer attended_, normed_, gated_;     // the same
  RowBuffer last_, logits_;                     // [wanted tokens, ...]
  OperandBuffer last_inputs_;                   // the same
  RowBuffer transition_from_, transition_;      // [blocks or nodes, rank], [the same, own vocabulary]
  OperandBuffer transition_inputs_;             // [the same, rank]
  RowBuffer behind_;                            // [nodes, own vocabulary]
  RowBuffer conv_inputs_, conv_outputs_;        // of DFlash 2: [rows of blocks, hidden]
  RowBuffer coefficients_;                      // [rows of blocks, 2 * taps * groups]
  std::optional<CandidateSelector> selector_;
};

}  // namespace outrider
