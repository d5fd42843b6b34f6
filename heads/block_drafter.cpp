#include "heads/block_drafter.h"

#include <algorithm>
#include <chrono>

namespace outrider {

BlockDrafter::BlockDrafter(BlockHead& head, HeadDrafterOptions options)
    : head_(head),
      max_sequences_(options.max_sequences),
      draws_(head, std::move(options.eos_ids)),
      inputs_(head.compute().rows(head.max_rows(), head.hidden_size())) {}

BlockDrafter::~BlockDrafter() {
  while (!sequences_.empty()) close(sequences_.begin()->first);
}

BlockDrafter::Sequence& BlockDrafter::begin(SequenceId id) {
  const auto [at, is_new] = sequences_.try_emplace(id);
  CHECK(static_cast<int32_t>(sequences_.size()) <= max_sequences_, "{} sequences of {}", sequences_.size(),
        max_sequences_);
  if (is_new) at->second.kv = head_.kv().create();
  return at->second;
}

void BlockDrafter::close(SequenceId sequence) {
  const auto at = sequences_.find(sequence);
  if (at == sequences_.end()) return;
  head_.kv().release(at->second.kv);
  sequences_.erase(at);
}

void BlockDrafter::draft(std::span<const HeadTask> tasks, StateSource& states,
                         std::vector<HeadDraft>& drafts) {
  using SteadyClock = std::chrono::steady_clock;
  const auto start = SteadyClock::now();
  drafts.resize(tasks.size());
  works_.clear();
  for (size_t i = 0; i < tasks.size(); ++i) {
    drafts[i].clear();
    Work& work = works_.emplace_back(
        Work{.task = &tasks[i], .draft = &drafts[i], .sequence = &begin(tasks[i].sequence)});
    const int64_t read = head_.kv().length(work.sequence->kv), known = known_states(work);
    CHECK(read <= known, "{} states were read of {}", read, known);
    work.done = known > head_.max_positions() || (tasks[i].gamma == 0 && read == known);
  }
  std::chrono::nanoseconds in_passes{0};
  for (auto begun = start; collect(states); begun = SteadyClock::now()) {
    const auto logits = head_.forward(slices_);
    in_passes += SteadyClock::now() - begun;
    take(logits);
  }
  ingest_ns_ = static_cast<int64_t>(in_passes.count());
  const std::chrono::nanoseconds all = SteadyClock::now() - start;
  draft_ns_ = static_cast<int64_t>(all.count()) - ingest_ns_;
}

// States that were not read and blocks of all that are not finished, as far as there is room.
bool BlockDrafter::collect(StateSource& states) {
  slices_.clear();
  parts_.clear();
  rows_ = state_rows_ = blocks_ = 0;
  for (Work& work : works_)
    if (!work.done) add(work, states);
  return !slices_.empty();
}

void BlockDrafter::add(Work& work, StateSource& states) {
  const int64_t read = head_.kv().length(work.sequence->kv), left = known_states(work) - read;
  const int64_t count = std::min(left, head_.max_rows() - rows_);
  const bool is_drafted = work.task->gamma > 0 && count == left && blocks_ < head_.max_blocks() &&
                          rows_ + count + head_.block_rows() <= head_.max_rows();
  if (count == 0 && !is_drafted) return;
  const FloatRows to = inputs_.from(state_rows_, count);
  if (count > 0) states.read(work.task->sequence, read, to);
  BlockSlice slice{.sequence = work.sequence->kv, .states = to, .last = {}};
  if (is_drafted) {
    slice.last = work.task->committed.back();
    slice.tokens = wanted(*work.task);
  }
  slices_.push_back(slice);
  parts_.push_back(&work);
  work.done = is_drafted || (work.task->gamma == 0 && count == left);
  rows_ += count + (is_drafted ? head_.block_rows() : 0);
  state_rows_ += count;
  blocks_ += is_drafted;
}

void BlockDrafter::take(TensorView<float, 2> logits) {
  int64_t row = 0;
  for (size_t i = 0; i < slices_.size(); ++i) {
    const int64_t tokens = slices_[i].tokens;
    if (tokens == 0) continue;
    const TensorView<float, 2> of_block(logits.row(row).data(), {tokens, logits.extent(1)},
                                        {logits.stride(0), 1});
    if (parts_[i]->task->branches())
      grow(*parts_[i], of_block);
    else
      draw(*parts_[i], of_block);
    row += tokens;
  }
}

void BlockDrafter::draw(const Work& work, TensorView<float, 2> logits) {
  TokenId before = work.task->committed.back();
  for (int64_t i = 0; i < logits.extent(0); ++i) {
    if (!draws_.draw(*work.task, head_.behind(before, logits.row(i)), *work.draft)) return;
    before = work.draft->ids.back();
  }
}

// A node's candidates are those of its depth, and of DSpark also what tends to follow the node.
void BlockDrafter::grow(const Work& work, TensorView<float, 2> logits) {
  HeadTree& tree = work.sequence->tree;
  draws_.begin_tree(*work.task, static_cast<int32_t>(logits.extent(0)), tree);
  while (true) {
    const auto next = tree.growth.next(SIZE_MAX);
    if (next.empty()) break;
    nodes_.assign(next.begin(), next.end());
    for (const int32_t node : nodes_) {
      const TokenId before = node == kTreeRoot ? work.task->committed.back() : tree.growth.token(node);
      draws_.look_behind(*work.task, node, head_.behind(before, logits.row(tree.growth.depth(node))), tree);
    }
  }
  HeadDraws::take_tree(tree, *work.draft);
}

}  // namespace outrider
