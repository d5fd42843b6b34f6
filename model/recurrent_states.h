// States of the gated delta nets of all sequences of a model. A state holds what a text's first tokens left.
// All of it follows from the rows that the KV cache keeps of these tokens, so a state is only ever a
// shortcut: one that does not fit the text any more, or is not there (a prefix that was found again), is
// computed anew from the rows, with the same bits. A fork begins with a copy of its parent's. Used by the
// model's thread only.
#pragma once

#include <span>
#include <vector>

#include "base/buffer.h"
#include "kernels/cpu/delta_net.h"
#include "model/batch.h"
#include "model_files/model_config.h"

namespace outrider {

class RecurrentStates {
 public:
  RecurrentStates(const ModelConfig& config, const DeltaNetShape& shape);

  // Plans a pass over a batch that has its KV slots. Its states take in the tokens that no rejected draft
  // will take back, as far as that can be known; without `takes_in` they stay as they are.
  void begin(std::span<const BatchSlice> batch, KvCache& kv, bool takes_in);
  // All sequences of the pass in one layer. rows: the slices whose rows go through this layer, in order.
  std::span<const DeltaNetSequence> in_layer(int64_t layer, std::span<const BatchSlice> rows,
                                             const KvCache& kv);
  // Every layer has been computed.
  void end(KvCache& kv);

 private:
  struct State {
    int64_t held = 0;       // tokens
    uint64_t mark = 0;      // KvCache::settle_mark of their sequence; 0: the state is of no use
    Buffer<float> numbers;  // [layers with a gated delta net][shape.state_size()]
  };
  struct Planned {
    KvHandle sequence;
    int64_t held = 0, hold = 0;
  };
  // Tokens that the state of a sequence holds rightly; 0 if none.
  int64_t usable(KvHandle sequence, const KvCache& kv);

  const int64_t layer_size_;
  std::vector<int64_t> index_;  // by layer: among those with a gated delta net
  int64_t layers_ = 0;
  std::vector<State> states_;  // by KvHandle::index
  std::vector<Planned> planned_;
  std::vector<DeltaNetSequence> sequences_;
  // How many of the last tokens states leave out. It grows where tokens were taken back that a state held, as
  // those of a draft model are, which passes them one by one.
  int64_t left_out_ = 0;
};

}  // namespace outrider
