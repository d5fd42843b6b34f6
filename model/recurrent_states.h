// Which tokens the states of gated delta nets hold, for all sequences of a model; the numbers lie with who
// computes (host_states.h, cuda/device_states.h). A state holds what a text's first tokens left. All of it
// follows from the rows that the KV cache keeps of these tokens, so a state is only ever a shortcut: one that
// does not fit the text any more, or is not there (a prefix that was found again), is computed anew from the
// rows, with the same bits. A fork begins with a copy of its parent's. Used by the model's thread only.
#pragma once

#include <span>
#include <vector>

#include "model/batch.h"

namespace outrider {

class RecurrentStates {
 public:
  // There is memory for `most` states. With fewer than the sequences that are open, the one that was not used
  // for longest gives way.
  explicit RecurrentStates(int64_t most) : most_(most) {}

  // One sequence in a pass: its state holds the first `held` tokens before, and `hold` behind it.
  struct Planned {
    KvHandle sequence;
    int32_t place = -1;  // of its state; -1: there is no room, and all its tokens are computed anew
    int64_t held = 0, hold = 0;
  };
  struct Copy {
    int32_t from = 0, to = 0;  // places
  };

  // Plans a pass over a batch that has its KV slots. Its states take in the tokens that no rejected draft
  // will take back, as far as that can be known; without `takes_in` they stay as they are.
  void begin(std::span<const BatchSlice> batch, KvCache& kv, bool takes_in);
  // To be made in this order before the pass.
  std::span<const Copy> copies() const { return copies_; }
  std::span<const Planned> planned() const { return planned_; }
  int64_t places() const { return static_cast<int64_t>(states_.size()); }  // in use so far
  // Every layer has been computed, or will be before anything else.
  void end(KvCache& kv);

 private:
  struct State {
    int32_t owner = -1;  // KvHandle::index
    int64_t held = 0;    // tokens
    uint64_t mark = 0;   // KvCache::settle_mark of their sequence; 0: the state is of no use
    uint64_t last_pass = 0;
  };
  int32_t place_for(KvHandle sequence);
  // Tokens that the state of a sequence holds rightly; 0 if none.
  int64_t usable(KvHandle sequence, int32_t place, const KvCache& kv);

  const int64_t most_;
  std::vector<State> states_;      // by place
  std::vector<int32_t> place_of_;  // by KvHandle::index; -1: none
  std::vector<Planned> planned_;
  std::vector<Copy> copies_;
  uint64_t pass_ = 0;
  // How many of the last tokens states leave out. It grows where tokens were taken back that a state held, as
  // those of a draft model are, which passes them one by one.
  int64_t left_out_ = 0;
};

}  // namespace outrider
