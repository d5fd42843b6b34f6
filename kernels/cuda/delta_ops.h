// Gated delta nets on a device (kernels/cpu/delta_net.h has the semantics; DeltaNetConfig has the equations),
// for a layer that keeps the row [q | k | v | b | a] of each token as the key of its only head.
#pragma once

#include "kernels/cuda/cuda_ops.h"

namespace outrider::cuda {

// One sequence in a pass. Its state holds positions [0, held), and [0, hold) afterwards. Its first
// `chain_rows` rows end in front of position `chain_end`; the others are nodes of a tree whose first node has
// position `tree_begin`, and whose paths are not in place. held <= hold <= tree_begin <= chain_end where
// there are any.
struct DeltaSequence {
  int32_t place = -1;  // of its state; -1: none is read or written, and `hold` is 0
  int32_t held = 0, hold = 0;
  int32_t first_row = 0, rows = 0;  // of the pass; no rows: this and later ones are no sequences
  int32_t chain_rows = 0, chain_end = 0;
  int32_t tree_begin = 0;

  OUTRIDER_SHARED_CODE bool has_tree() const { return chain_rows < rows; }
};
constexpr int64_t kDeltaSequenceInts = sizeof(DeltaSequence) / sizeof(int32_t);

// One token updates the states of its sequence.
struct DeltaStep {
  int32_t position = 0;
  int32_t path = -1;      // row whose path finds the token's slot and those in front; -1: slots are positions
  int32_t out_row = -1;   // row of the pass that the output belongs to; -1: there is none
  bool saves = false;     // the state before the token is what branches begin with
  bool restarts = false;  // the token begins with that state
  bool commits = false;   // the state behind the token is kept for later passes
};

// The tokens of a sequence in the order in which states take them: those that the state lacks, the rows of
// the chain, and for each node of a tree its path from the top. A node whose parent is the row before it goes
// on from there.
class DeltaWalk {
 public:
  OUTRIDER_SHARED_CODE explicit DeltaWalk(const DeltaSequence& sequence)
      : sequence_(sequence), position_(sequence.held), row_(sequence.first_row + sequence.chain_rows) {}

  // position_of(row): of a row. follows(row): whether the parent of a row that is not in place is the row
  // before it. Returns false when there are no more.
  template <class PositionOf, class Follows>
  OUTRIDER_SHARED_CODE bool next(DeltaStep& step, PositionOf position_of, Follows follows) {
    const DeltaSequence& s = sequence_;
    step = {};
    if (!in_tree_ && position_ < s.chain_end) {
      const int32_t row = position_ - (s.chain_end - s.chain_rows);
      step.position = position_;
      step.out_row = row >= 0 ? s.first_row + row : -1;
      step.saves = s.has_tree() && position_ == s.tree_begin;
      step.commits = position_ + 1 == s.hold;
      ++position_;
      return true;
    }
    if (row_ == s.first_row + s.rows) return false;
    if (!in_node_) {
      const bool is_first = row_ == s.first_row + s.chain_rows;
      last_ = position_of(row_);
      const bool goes_on = !is_first && last_ > s.tree_begin && follows(row_);
      position_ = goes_on ? last_ : s.tree_begin;
      step.saves = is_first && s.tree_begin == s.chain_end;
      step.restarts = !goes_on && !step.saves;
      in_tree_ = in_node_ = true;
    }
    step.position = position_;
    step.path = row_;
    if (position_ == last_) {
      step.out_row = row_++;
      in_node_ = false;
    }
    ++position_;
    return true;
  }

 private:
  const DeltaSequence sequence_;
  int32_t position_, row_, last_ = 0;
  bool in_tree_ = false, in_node_ = false;
};

struct DeltaNetArguments {
  // [rows, stride]: what is kept of every row, then its gate, [value_heads * value_dim]. The outputs
  // of the states overwrite what is kept.
  float* projected = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int32_t key_heads = 0, value_heads = 0;  // of this rank
  int32_t key_dim = 0, value_dim = 0;
  int32_t taps = 0;
  float epsilon = 0;               // of the norm of outputs
  const int32_t* keys = nullptr;   // [value_heads]: the key head of each
  const float* conv = nullptr;     // [taps, channels], the oldest row's first
  const float* rate = nullptr;     // [value_heads]: -exp(A_log)
  const float* dt_bias = nullptr;  // [value_heads]
  const float* norm = nullptr;     // [value_dim]
  float* states = nullptr;         // of this layer: of place i at i * state_stride
  int64_t state_stride = 0;
  void* out = nullptr;  // [rows, value_heads * value_dim] of `type`
  WeightType type = WeightType::kFloat32;
  int multiprocessors = 1;  // no bit depends on it

  OUTRIDER_SHARED_CODE int32_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  OUTRIDER_SHARED_CODE int32_t kept() const { return channels() + 2 * value_heads; }
};

constexpr int64_t kMostDeltaKeyDim = 256;
// Floats of a sequence's state in one layer, in an order that is the kernel's own.
int64_t delta_state_floats(int64_t value_heads, int64_t key_dim, int64_t value_dim);
// Once per device: raises what a block may have of shared memory.
void prepare_delta_nets();

// Stores the kept row of every token in the cache.
void store_delta_rows(StreamView stream, const DeviceBatch& batch, const KvLayer& layer,
                      const DeltaNetArguments& arguments);
// The tokens of batch.sequences update their states, after all rows are stored. projected[m, :value_heads *
// value_dim] = outputs of row m's token.
void update_delta_states(StreamView stream, const DeviceBatch& batch, const KvLayer& layer,
                         const DeltaNetArguments& arguments);
// out[m, head, :] = norm * rms(outputs of row m) * silu(gate[m, head, :]), rounded.
void gate_delta_outputs(StreamView stream, const DeltaNetArguments& arguments);

}  // namespace outrider::cuda
