// Results of a pass through a model's first layers for consecutive tokens of one sequence: this rank's keys
// and values in these layers, and the residual stream behind the last of these layers. A whole pass continues
// from them instead of computing them again (BatchSlice::exited). They depend only on the text up to each
// token, so they stay valid when the sequence's KV cache changes. Used by the model's thread only.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/types.h"
#include "model/activations.h"
#include "model/kv/cpu_kv_storage.h"

namespace outrider {

class ExitedTokens {
 public:
  // Forgets all tokens. The next token is the one in slot `first` of its sequence; at most `most` tokens
  // follow.
  void begin(int64_t first, int64_t most);
  // The next token, whose keys and values are in `at`. `residual`: its row behind the first `layers` layers.
  void add(TokenId id, int64_t layers, std::span<const float> residual, const CpuKvStorage& from,
           const KvSlot& at);

  int64_t layers() const { return layers_; }
  // How many of `tokens`, beginning in slot `first`, match the stored ones. The text in front must be the
  // same, too.
  int64_t count_of(int64_t first, std::span<const TokenId> tokens) const;
  std::span<const float> residual(int64_t i) const;
  void restore(int64_t i, CpuKvStorage& to, const KvSlot& at) const;

 private:
  static KvSlot slot(int64_t i) { return {static_cast<int32_t>(i / kBlockTokens), i % kBlockTokens}; }

  int64_t first_ = 0, most_ = 0, layers_ = 0;
  std::vector<TokenId> ids_;
  // Storage for `tokens` tokens; created with the first one.
  struct Room {
    int64_t tokens;
    CpuKvStorage keys_and_values;  // of the first layers
    ActivationRows residual;       // [tokens, hidden]
  };
  std::optional<Room> room_;
};

}  // namespace outrider
