// What a pass through a model's first layers computed of consecutive tokens of one sequence, kept aside: this
// rank's keys and values in these layers, and the residual stream behind them. A whole pass takes it up in
// place of computing it again (BatchSlice::exited). It depends on the text up to each token and on nothing
// else, so it stays true whatever becomes of the sequence's cache. One thread, the model's.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/types.h"
#include "transformer/kv/cpu_kv_storage.h"
#include "transformer/model/activations.h"

namespace outrider {

class ExitedTokens {
 public:
  // Forgets all. The next token is the one in slot `first` of its sequence; `most` of them will come.
  void begin(int64_t first, int64_t most);
  // The next token, whose keys and values are in `at`. `residual`: its row behind the first `layers` layers.
  void add(TokenId id, int64_t layers, std::span<const float> residual, const CpuKvStorage& from,
           const KvSlot& at);

  int64_t layers() const { return layers_; }
  // How many of `tokens`, the first of them in slot `first`, are these. What is in front of them must be the
  // same text, too.
  int64_t count_of(int64_t first, std::span<const TokenId> tokens) const;
  std::span<const float> residual(int64_t i) const;
  void restore(int64_t i, CpuKvStorage& to, const KvSlot& at) const;

 private:
  static KvSlot slot(int64_t i) { return {static_cast<int32_t>(i / kBlockTokens), i % kBlockTokens}; }

  int64_t first_ = 0, most_ = 0, layers_ = 0;
  std::vector<TokenId> ids_;
  // Room for so many tokens; made by the first one.
  struct Room {
    int64_t tokens;
    CpuKvStorage keys_and_values;  // of the first layers
    ActivationRows residual;       // [tokens, hidden]
  };
  std::optional<Room> room_;
};

}  // namespace outrider
