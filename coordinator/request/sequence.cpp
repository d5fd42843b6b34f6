#include "coordinator/request/sequence.h"

#include "base/log.h"

namespace outrider {

Sequence::Sequence(SequenceId id, std::vector<TokenId> prompt)
    : id_(id),
      ids_(std::move(prompt)),
      prompt_length_(static_cast<int32_t>(ids_.size())),
      hash_(prefix_hash(ids_)) {
  CHECK(prompt_length_ > 0, "sequence {} without a prompt", id.value());
}

uint64_t Sequence::hash_of_first(int32_t count) const {
  CHECK(count >= 0 && count <= committed(), "{} of {} ids", count, committed());
  return prefix_hash(ids().first(static_cast<size_t>(count)));
}

void Sequence::append(TokenId id) {
  ids_.push_back(id);
  hash_ = extend_prefix_hash(hash_, id);
}

void Sequence::target_opened(int32_t kv_length) {
  CHECK(!target.open, "sequence {} opened twice", id_.value());
  CHECK(kv_length < committed(), "{} tokens of {} have their KV", kv_length, committed());
  target = {.open = true, .committed = committed(), .kv_length = kv_length, .epoch = epoch_};
}

void Sequence::target_verified(int32_t gamma, int32_t accepted_count) {
  CHECK(accepted_count >= 0 && accepted_count <= gamma, "{} of {} accepted", accepted_count, gamma);
  target.committed += accepted_count + 1;
  target.kv_length = target.committed - 1;  // the next token has no KV yet
  if (accepted_count < gamma) ++target.epoch;
}

uint64_t Sequence::target_hash_term() const {
  return target.open ? state_hash_term(id_, target.committed, target.kv_length, target.epoch) : 0;
}

}  // namespace outrider
