#include "heads/block_drafter.h"

#include <algorithm>
#include <chrono>

namespace outrider {
namespace {

int64_t ns_since(std::chrono::steady_clock::time_point begun) {
  const std::chrono::nanoseconds all = std::chrono::steady_clock::now() - begun;
  return static_cast<int64_t>(all.count());
}

}  // namespace

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

void BlockDrafter::draft(std::span<const HeadTask> tasks, HiddenStateSource& hidden_states,
                         std::vector<HeadDraft>& drafts) {
  const auto start = std::chrono::steady_clock::now();
  drafts.resize(tasks.size());
  works_.clear();
  for (size_t i = 0; i < tasks.size(); ++i) {
    drafts[i].clear();
    Work& work = works_.emplace_back(
        Work{.task = &tasks[i], .draft = &drafts[i], .sequence = &begin(tasks[i].sequence)});
    const int64_t read = head_.kv().length(work.sequence->kv), known = known_hidden_states(work);
    CHECK(read <= known, "{} states were read of {}", read, known);
    work.done = known > head_.max_positions() || (tasks[i].gamma == 0 && read == known);
  }
  draft_ns_ = 0;
  while (collect(hidden_states)) take(head_.forward(slices_));
  ingest_ns_ = ns_since(start) - draft_ns_;
}

// States that were not read and blocks of all that are not finished, as far as there is room.
bool BlockDrafter::collect(HiddenStateSource& hidden_states) {
  slices_.clear();
  parts_.clear();
  rows_ = hidden_state_rows_ = blocks_ = 0;
  for (Work& work : works_)
    if (!work.done) add(work, hidden_states);
  return !slices_.empty();
}

void BlockDrafter::add(Work& work, HiddenStateSource& hidden_states) {
  const int64_t read = head_.kv().length(work.sequence->kv), left = known_hidden_states(work) - read;
  const int64_t count = std::min(left, head_.max_rows() - rows_);
  const bool is_drafted = work.task->gamma > 0 && count == left && blocks_ < head_.max_blocks() &&
                          rows_ + count + head_.block_rows() <= head_.max_rows();
  if (count == 0 && !is_drafted) return;
  const FloatRows to = inputs_.from(hidden_state_rows_, count);
  if (count > 0) hidden_states.read(work.task->sequence, read, to);
  BlockSlice slice{.sequence = work.sequence->kv, .hidden_states = to, .last = {}};
  if (is_drafted) {
    slice.last = work.task->committed.back();
    slice.tokens = wanted(*work.task);
  }
  slices_.push_back(slice);
  parts_.push_back(&work);
  work.done = is_drafted || (work.task->gamma == 0 && count == left);
  rows_ += count + (is_drafted ? head_.block_rows() : 0);
  hidden_state_rows_ += count;
  blocks_ += is_drafted;
}

void BlockDrafter::take(FloatRows logits) {
  chains_.clear();
  trees_.clear();
  int64_t row = 0;
  for (size_t i = 0; i < slices_.size(); ++i) {
    const int64_t tokens = slices_[i].tokens;
    if (tokens == 0) continue;
    if (!parts_[i]->task->branches()) {
      chains_.push_back({.task = parts_[i]->task,
                         .draft = parts_[i]->draft,
                         .row = row,
                         .most = static_cast<int32_t>(tokens)});
    } else {
      draws_.begin_tree(*parts_[i]->task, static_cast<int32_t>(tokens), parts_[i]->sequence->tree);
      trees_.push_back({.work = parts_[i], .row = row});
    }
    row += tokens;
  }
  const auto begun = std::chrono::steady_clock::now();
  grow(logits);
  if (!trees_.empty()) draft_ns_ += ns_since(begun);
  std::sort(chains_.begin(), chains_.end(), [](const HeadDraws::Chain& a, const HeadDraws::Chain& b) {
    return a.most != b.most ? a.most > b.most : a.row < b.row;
  });
  draw_chains(logits);
}

void BlockDrafter::draw_chains(FloatRows logits) {
  logits_ = logits;
  while (!chains_.empty()) {
    const auto begun = std::chrono::steady_clock::now();
    before_.clear();
    before_rows_.clear();
    for (const HeadDraws::Chain& chain : chains_) {
      before_.push_back(chain.draft->ids.empty() ? chain.task->committed.back() : chain.draft->ids.back());
      before_rows_.push_back(chain.row);
    }
    head_.add_behind(before_, logits, before_rows_);
    const int32_t tokens = draws_.draw(chains_, logits, this);
    // Where a device draws, the first token is there when the pass is.
    draft_ns_ += draws_.drew_there() ? draws_.ns_behind_first() : ns_since(begun);
    for (HeadDraws::Chain& chain : chains_) {
      ++chain.row;
      chain.most -= tokens;
    }
    std::erase_if(chains_, [](const HeadDraws::Chain& chain) { return !chain.goes_on || chain.most <= 0; });
  }
}

FloatRows BlockDrafter::next(std::span<HeadDraws::Chain> chains, HeadSampler& drawn) {
  before_rows_.clear();
  for (HeadDraws::Chain& chain : chains) before_rows_.push_back(++chain.row);
  head_.add_behind(drawn, logits_, before_rows_);
  return logits_;
}

void BlockDrafter::grow(FloatRows logits) {
  FloatRows here;
  while (!trees_.empty()) {
    looks_.clear();
    for (const Tree& of : trees_) {
      HeadTree& tree = of.work->sequence->tree;
      for (const int32_t node : tree.growth.next(SIZE_MAX))
        looks_.push_back(
            {.task = of.work->task, .tree = &tree, .node = node, .row = of.row + tree.growth.depth(node)});
    }
    if (looks_.empty()) break;
    look_behind(logits, here);
  }
  for (const Tree& of : trees_) HeadDraws::take_tree(of.work->sequence->tree, *of.work->draft);
}

// A node's candidates are those of its depth, and of DSpark also what tends to follow the node.
void BlockDrafter::look_behind(FloatRows logits, FloatRows& here) {
  if (!head_.knows_tokens()) return draws_.look_behind(looks_, logits, here);
  for (std::span<HeadDraws::Look> left = looks_; !left.empty();) {
    const auto some = left.first(std::min(left.size(), static_cast<size_t>(head_.most_behind())));
    left = left.subspan(some.size());
    before_.clear();
    before_rows_.clear();
    for (HeadDraws::Look& look : some) {
      before_.push_back(look.node == kTreeRoot ? look.task->committed.back()
                                               : look.tree->growth.token(look.node));
      before_rows_.push_back(look.row);
      look.row = static_cast<int64_t>(before_.size()) - 1;
    }
    draws_.look_behind(some, head_.behind(before_, logits, before_rows_));
  }
}

}  // namespace outrider
