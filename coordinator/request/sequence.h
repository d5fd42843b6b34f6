// The committed state of one request: ids, epoch, round, and a mirror of the target group's state. Owned by
// the protocol machine; nothing else may append to it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/types.h"

namespace outrider {

// Every target rank's state of a sequence. Runs ahead of the emitted ids only after an emission cut (end of
// sequence, limits), when the sequence is about to be closed.
struct TargetMirror {
  bool open = false;
  int32_t committed = 0;  // C
  int32_t kv_length = 0;
  Epoch epoch;
};

class Sequence {
 public:
  Sequence(SequenceId id, std::vector<TokenId> prompt);

  SequenceId id() const { return id_; }
  std::span<const TokenId> ids() const { return ids_; }
  std::span<const TokenId> ids_from(int32_t position) const {
    return ids().subspan(static_cast<size_t>(position));
  }
  int32_t prompt_length() const { return prompt_length_; }
  int32_t committed() const { return static_cast<int32_t>(ids_.size()); }  // C
  int32_t emitted() const { return committed() - prompt_length_; }
  Epoch epoch() const { return epoch_; }
  // The prefix hash of all committed ids, kept up to date.
  uint64_t hash() const { return hash_; }
  uint64_t hash_of_first(int32_t count) const;

  // A round number new to this sequence, so no uniform keyed by it was ever drawn.
  Round begin_round() { return Round(next_round_++); }
  // Restarts round numbers at 0, when no round of the sequence was ever answered: no draw was used.
  void restart_rounds() { next_round_ = 0; }

  void append(TokenId id);
  void bump_epoch() { ++epoch_; }

  TargetMirror target;
  // Effects of messages on the target, in one place: Open, a prefill entry, and a verdict (n, next) on an
  // entry of gamma. `kv_length`: tokens that the target has from a prefix.
  void target_opened(int32_t kv_length = 0);
  void target_prefilled(int32_t input_count) { target.kv_length += input_count; }
  void target_verified(int32_t gamma, int32_t accepted_count);
  uint64_t target_hash_term() const;

 private:
  SequenceId id_;
  std::vector<TokenId> ids_;
  int32_t prompt_length_;
  Epoch epoch_;
  uint32_t next_round_ = 0;
  uint64_t hash_;
};

}  // namespace outrider
