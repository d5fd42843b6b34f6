#include "target_worker/hidden_state_drafter.h"

#include <algorithm>

#include "base/hash.h"
#include "kernels/sampling/penalties.h"

namespace outrider {

HiddenStateDrafter::HiddenStateDrafter(Model& target, std::unique_ptr<Head> head,
                                       HiddenStateDrafterOptions options)
    : head_(std::move(head)),
      options_(std::move(options)),
      drafter_(
          make_head_drafter(*head_, {.max_sequences = options_.max_sequences, .eos_ids = options_.eos_ids})),
      reader_(std::make_unique<HiddenStateReader>(target, head_->projection(),
                                                  static_cast<int64_t>(head_->config().aux_layers.size()))) {}

HiddenStateDrafter::HiddenStateDrafter(std::unique_ptr<HeadDrafter> drafter,
                                       HiddenStateDrafterOptions options)
    : options_(std::move(options)), drafter_(std::move(drafter)) {}

void HiddenStateDrafter::add(HeadTask task, KvHandle kv, Epoch epoch) {
  task.kv = kv;
  task.row_bytes = options_.q_kind == QKind::kSparse ? options_.row_bytes : 0;
  tasks_.push_back(task);
  places_.push_back({kv, epoch});
}

void HiddenStateDrafter::close(SequenceId sequence) {
  drafter_->close(sequence);
  hashes_.erase(sequence);
}

void HiddenStateDrafter::read(SequenceId sequence, int64_t first, FloatRows to) {
  const auto task =
      std::find_if(tasks_.begin(), tasks_.end(), [&](const HeadTask& t) { return t.sequence == sequence; });
  reader_->read(places_[static_cast<size_t>(task - tasks_.begin())].kv, first, to);
}

// The hash of the committed ids. Texts only grow.
uint64_t HiddenStateDrafter::hash_of(const HeadTask& task) {
  Hashed& hashed = hashes_.try_emplace(task.sequence, Hashed{.hash = kEmptyPrefixHash}).first->second;
  for (const TokenId id : task.committed.subspan(hashed.tokens))
    hashed.hash = extend_prefix_hash(hashed.hash, id);
  hashed.tokens = task.committed.size();
  return hashed.hash;
}

void HiddenStateDrafter::draft(std::vector<Draft>& drafts) {
  if (tasks_.empty()) return;
  drafter_->draft(tasks_, *this, drafts_);
  const auto count = static_cast<int64_t>(tasks_.size());
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const HeadTask& task = tasks_[i];
    HeadDraft& made = drafts_[i];
    Draft& draft = drafts.emplace_back();
    draft.sequence = task.sequence;
    draft.epoch = places_[i].epoch;
    draft.round = task.round;
    draft.base = Position(static_cast<int32_t>(task.committed.size()));
    draft.ids.assign(made.ids.begin(), made.ids.end());
    draft.parents.assign(made.parents.begin(), made.parents.end());
    draft.prefix_hash = hash_of(task);
    draft.q_kind = needs_q(effective_rule(*task.sampling)) ? options_.q_kind : QKind::kNone;
    draft.q = std::move(made.q);
    draft.eos = made.eos;
    draft.ingest_ns = drafter_->ingest_ns() / count;
    draft.draft_ns = drafter_->draft_ns() / count;
  }
}

}  // namespace outrider
