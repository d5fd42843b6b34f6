#include "heads/medusa_drafter.h"

#include <chrono>
#include <cstring>

namespace outrider {

MedusaDrafter::MedusaDrafter(MedusaHead& head, HeadDrafterOptions options)
    : head_(head),
      draws_(head, std::move(options.eos_ids)),
      states_(options.max_sequences, head.hidden_size()) {}

// The last token is the target's own choice, and its state is not known yet: the branches read the state that
// it was chosen from. A text of one token has none.
void MedusaDrafter::draft(std::span<const HeadTask> tasks, StateSource& states,
                          std::vector<HeadDraft>& drafts) {
  const auto start = std::chrono::steady_clock::now();
  drafts.resize(tasks.size());
  going_.clear();
  const auto row_of = [&](size_t i) {
    return TensorView<float, 2>(states_.data.data() + static_cast<int64_t>(i) * states_.stride,
                                {1, states_.columns}, {states_.stride, 1});
  };
  for (size_t i = 0; i < tasks.size(); ++i) {
    drafts[i].ids.clear();
    drafts[i].q.clear();
    drafts[i].eos = false;
    const auto committed = static_cast<int64_t>(tasks[i].committed.size());
    if (committed < 2 || tasks[i].gamma == 0) continue;
    states.read(tasks[i].sequence, committed - 2, row_of(going_.size()));
    going_.push_back(i);
  }
  for (int64_t branch = 0; branch < head_.heads() && !going_.empty(); ++branch) {
    const auto logits = head_.logits(branch, states_.rows(static_cast<int64_t>(going_.size())));
    size_t kept = 0;
    for (size_t row = 0; row < going_.size(); ++row) {
      const size_t task = going_[row];
      if (!draws_.draw(tasks[task], logits.row(static_cast<int64_t>(row)), drafts[task])) continue;
      const auto from = row_of(row), to = row_of(kept);
      std::memmove(to.data(), from.data(), static_cast<size_t>(states_.columns) * sizeof(float));
      going_[kept++] = task;
    }
    going_.resize(kept);
  }
  draft_ns_ =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace outrider
