#include "heads/medusa_drafter.h"

#include <algorithm>
#include <chrono>

namespace outrider {

MedusaDrafter::MedusaDrafter(MedusaHead& head, HeadDrafterOptions options)
    : head_(head),
      draws_(head, std::move(options.eos_ids)),
      hidden_states_(head.compute().rows(options.max_sequences, head.hidden_size())) {
  if (head.options().tree_nodes > 0)
    marginals_ = head.compute().rows(options.max_sequences * head.heads(), head.own_vocab());
}

// The last token is the target's own choice, and its state is not known yet: the branches read the state that
// it was chosen from. A text of one token has none.
void MedusaDrafter::draft(std::span<const HeadTask> tasks, HiddenStateSource& hidden_states,
                          std::vector<HeadDraft>& drafts) {
  const auto start = std::chrono::steady_clock::now();
  drafts.resize(tasks.size());
  going_.clear();
  branching_.clear();
  for (size_t i = 0; i < tasks.size(); ++i) {
    drafts[i].clear();
    if (tasks[i].committed.size() < 2 || tasks[i].gamma == 0) continue;
    going_.push_back(i);
    if (tasks[i].branches()) branching_.push_back(i);
  }
  std::sort(going_.begin(), going_.end(), [&](size_t a, size_t b) {
    const int64_t of_a = wanted(tasks[a]), of_b = wanted(tasks[b]);
    return of_a != of_b ? of_a > of_b : a < b;
  });
  const auto row_of = [&](size_t i) { return hidden_states_.from(static_cast<int64_t>(i), 1); };
  for (size_t row = 0; row < going_.size(); ++row) {
    const HeadTask& task = tasks[going_[row]];
    hidden_states.read(task.sequence, static_cast<int64_t>(task.committed.size()) - 2, row_of(row));
  }
  const auto trees = static_cast<int64_t>(branching_.size());
  if (trees * head_.heads() > marginals_.capacity)  // a job that asks for more than was planned
    marginals_ = head_.compute().rows(trees * head_.heads(), head_.own_vocab());
  for (branch_ = 0; branch_ < head_.heads() && !going_.empty(); ++branch_) {
    const FloatRows logits = head_.logits(branch_, hidden_states_.rows(static_cast<int64_t>(going_.size())));
    chains_.clear();
    for (size_t row = 0; row < going_.size(); ++row) {
      const size_t task = going_[row];
      if (tasks[task].branches())
        keep_marginals(task, {logits.data() + static_cast<int64_t>(row) * logits.stride(0),
                              {1, logits.extent(1)},
                              {logits.stride(0), 1}});
      else
        chains_.push_back({.task = &tasks[task],
                           .draft = &drafts[task],
                           .row = static_cast<int64_t>(row),
                           .most = static_cast<int32_t>(wanted(tasks[task]) - branch_)});
    }
    // The branches of trees are read here one by one.
    draws_.draw(chains_, logits, branching_.empty() ? this : nullptr);
    size_t kept = 0;
    auto chain = chains_.begin();
    for (size_t row = 0; row < going_.size(); ++row) {
      const HeadTask& task = tasks[going_[row]];
      if (task.branches() ? branch_ + 1 >= task.gamma : !(chain++)->goes_on) continue;
      if (kept != row) head_.compute().copy(row_of(row), row_of(kept));
      going_[kept++] = going_[row];
    }
    going_.resize(kept);
  }
  grow(tasks, drafts);
  draft_ns_ =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
}

// Rows are those of the states.
FloatRows MedusaDrafter::next(std::span<HeadDraws::Chain> chains, HeadSampler&) {
  return head_.logits(++branch_, hidden_states_.rows(static_cast<int64_t>(chains.size())));
}

void MedusaDrafter::keep_marginals(size_t task, FloatRows logits) {
  const auto slot =
      static_cast<size_t>(std::find(branching_.begin(), branching_.end(), task) - branching_.begin());
  head_.compute().copy(logits, marginals_.from(marginal(slot, branch_), 1));
}

// All nodes of a depth have the same candidates: no branch knows what stands before it.
void MedusaDrafter::grow(std::span<const HeadTask> tasks, std::vector<HeadDraft>& drafts) {
  for (const size_t i : branching_)
    draws_.begin_tree(tasks[i], static_cast<int32_t>(std::min<int64_t>(tasks[i].gamma, head_.heads())),
                      trees_[tasks[i].sequence]);
  FloatRows here;
  while (true) {
    looks_.clear();
    for (size_t slot = 0; slot < branching_.size(); ++slot) {
      const HeadTask& task = tasks[branching_[slot]];
      HeadTree& tree = trees_[task.sequence];
      for (const int32_t node : tree.growth.next(SIZE_MAX))
        looks_.push_back(
            {.task = &task, .tree = &tree, .node = node, .row = marginal(slot, tree.growth.depth(node))});
    }
    if (looks_.empty()) break;
    draws_.look_behind(looks_, marginals_.rows(marginal(branching_.size(), 0)), here);
  }
  for (const size_t i : branching_) HeadDraws::take_tree(trees_[tasks[i].sequence], drafts[i]);
}

}  // namespace outrider
