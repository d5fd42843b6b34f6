// A drafter beside the target: a head that reads the states which this rank's model keeps, or the model's own
// first layers, drafts for the rounds behind a pass as soon as the pass is committed. One thread, the rank's.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "comm/messages/drafting.h"
#include "heads/head_drafter.h"
#include "target_worker/hidden_state_reader.h"

namespace outrider {

struct HiddenStateDrafterOptions {
  int32_t max_sequences = 16;
  std::vector<TokenId> eos_ids;   // each of these ids ends a draft
  QKind q_kind = QKind::kSparse;  // for rules that need q; kSparse or kDense
  int32_t row_bytes = 1024;       // with kSparse
};

class HiddenStateDrafter final : private HiddenStateSource {
 public:
  // `target` was loaded with the head's aux layers. It must outlive the drafter.
  HiddenStateDrafter(Model& target, std::unique_ptr<Head> head, HiddenStateDrafterOptions options);
  // With a drafter that reads no states.
  HiddenStateDrafter(std::unique_ptr<HeadDrafter> drafter, HiddenStateDrafterOptions options);

  // begin(), what is to be drafted for, draft(). Sequences are those of the target: `kv` is in its cache, and
  // the ids in `task` stay where they are until draft().
  void begin() { tasks_.clear(), places_.clear(); }
  void add(HeadTask task, KvHandle kv, Epoch epoch);
  // Appends a draft for each, as a draft worker would have sent it.
  void draft(std::vector<Draft>& drafts);
  void close(SequenceId sequence);
  const ExitedTokens* exited(SequenceId sequence) const { return drafter_->exited(sequence); }

 private:
  struct Place {
    KvHandle kv;
    Epoch epoch;
  };
  void read(SequenceId sequence, int64_t first, FloatRows to) override;
  uint64_t hash_of(const HeadTask& task);

  const std::unique_ptr<Head> head_;  // null where no states are read, as is reader_
  HiddenStateDrafterOptions options_;
  const std::unique_ptr<HeadDrafter> drafter_;
  const std::unique_ptr<HiddenStateReader> reader_;

  // The hash of the first `tokens` of a text.
  struct Hashed {
    size_t tokens = 0;
    uint64_t hash;
  };
  std::map<SequenceId, Hashed> hashes_;

  // Scratch of one draft().
  std::vector<HeadTask> tasks_;
  std::vector<Place> places_;  // of tasks_
  std::vector<HeadDraft> drafts_;
};

}  // namespace outrider
