#include "heads/hydra_drafter.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace outrider {

HydraDrafter::HydraDrafter(HydraHead& head, HeadDrafterOptions options)
    : head_(head),
      max_sequences_(options.max_sequences),
      draws_(head, std::move(options.eos_ids)),
      inputs_(max_sequences_, head.input_width(head.heads() - 1)),
      node_inputs_(head.max_input_rows(), head.input_width(head.heads() - 1)),
      prefix_inputs_(head.prefix() ? head.prefix()->max_rows() : 0, head.hidden_size()) {}

HydraDrafter::~HydraDrafter() {
  while (!sequences_.empty()) close(sequences_.begin()->first);
}

HydraDrafter::Sequence& HydraDrafter::begin(SequenceId id) {
  const auto [at, is_new] = sequences_.try_emplace(id);
  CHECK(static_cast<int32_t>(sequences_.size()) <= max_sequences_, "{} sequences of {}", sequences_.size(),
        max_sequences_);
  if (is_new && head_.prefix()) at->second.kv = head_.prefix()->kv().create();
  return at->second;
}

void HydraDrafter::close(SequenceId sequence) {
  const auto at = sequences_.find(sequence);
  if (at == sequences_.end()) return;
  if (head_.prefix()) head_.prefix()->kv().release(at->second.kv);
  sequences_.erase(at);
}

void HydraDrafter::draft(std::span<const HeadTask> tasks, StateSource& states,
                         std::vector<HeadDraft>& drafts) {
  using SteadyClock = std::chrono::steady_clock;
  const auto start = SteadyClock::now();
  drafts.resize(tasks.size());
  works_.clear();
  for (size_t i = 0; i < tasks.size(); ++i) {
    drafts[i].clear();
    Sequence& sequence = begin(tasks[i].sequence);
    if (known(tasks[i]) < 1 || (head_.prefix() && known(tasks[i]) > head_.max_positions())) continue;
    works_.push_back({.task = &tasks[i],
                      .draft = &drafts[i],
                      .sequence = &sequence,
                      .row = static_cast<int64_t>(works_.size())});
  }
  if (head_.prefix())
    read_through_prefix(states);
  else
    read_states(states);
  const auto read_at = SteadyClock::now();
  for (const Work& work : works_)
    if (work.task->branches()) draft_tree(work);
  draft_chains();
  const auto ns = [](SteadyClock::duration d) {
    return static_cast<int64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(d).count());
  };
  ingest_ns_ = ns(read_at - start);
  draft_ns_ = ns(SteadyClock::now() - read_at);
}

// Part 0 of a row of inputs is the state, part i the embedding of the i-th token behind it.
std::span<float> HydraDrafter::input(ActivationRows& rows, int64_t row, int64_t part) const {
  const int64_t hidden = head_.hidden_size();
  return {rows.data.data() + row * rows.stride + part * hidden, static_cast<size_t>(hidden)};
}

// The last token is the target's own choice, and its state is not known yet.
void HydraDrafter::read_states(StateSource& states) {
  for (const Work& work : works_)
    if (work.task->gamma > 0)
      states.read(work.task->sequence, known(*work.task) - 1,
                  {input(inputs_, work.row, 0).data(), {1, head_.hidden_size()}});
}

// What is new of every text goes through the layer, and what comes out for the last position is kept.
void HydraDrafter::read_through_prefix(StateSource& states) {
  PairHead& prefix = *head_.prefix();
  for (const Work& work : works_) {
    Sequence& s = *work.sequence;
    CHECK(s.read <= known(*work.task), "{} positions were read of {}", s.read, known(*work.task));
    if (work.task->gamma > 0) s.read = std::min(s.read, known(*work.task) - 1);  // for what comes out of it
    prefix.kv().truncate(s.kv, s.read);
  }
  while (true) {
    slices_.clear();
    parts_.clear();
    int64_t rows = 0;
    for (Work& work : works_) {
      Sequence& s = *work.sequence;
      const int64_t count = std::min(known(*work.task) - s.read, prefix.max_rows() - rows);
      if (count == 0) continue;
      const TensorView<float, 2> to(prefix_inputs_.data.data() + rows * prefix_inputs_.stride,
                                    {count, prefix_inputs_.columns}, {prefix_inputs_.stride, 1});
      states.read(work.task->sequence, s.read, to);
      rows += count;
      const auto tokens =
          work.task->committed.subspan(static_cast<size_t>(s.read), static_cast<size_t>(count));
      s.read += count;
      slices_.push_back({.sequence = s.kv,
                         .tokens = tokens,
                         .states = to,
                         .has_logits = s.read == known(*work.task) && work.task->gamma > 0});
      parts_.push_back(&work);
    }
    if (slices_.empty()) return;
    const auto out = prefix.forward(slices_).states;
    int64_t row = 0;
    for (size_t i = 0; i < slices_.size(); ++i) {
      if (!slices_[i].has_logits) continue;
      const auto from = out.row(row++);
      std::copy(from.begin(), from.end(), input(inputs_, parts_[i]->row, 0).begin());
    }
  }
}

void HydraDrafter::draft_chains() {
  going_.clear();
  for (size_t i = 0; i < works_.size(); ++i)
    if (works_[i].task->gamma > 0 && !works_[i].task->branches()) going_.push_back(i);
  const bool is_grounded = head_.config().grounded;
  for (int64_t branch = 0; branch < head_.heads() && !going_.empty(); ++branch) {
    for (size_t row = 0; row < going_.size(); ++row) {
      const Work& work = works_[going_[row]];
      const auto from = inputs_.rows(max_sequences_).row(work.row);
      const auto to = inputs_.rows(max_sequences_).row(static_cast<int64_t>(row));
      if (from.data() != to.data()) std::memcpy(to.data(), from.data(), from.size_bytes());
      works_[going_[row]].row = static_cast<int64_t>(row);
      const TokenId last = branch == 0 ? work.task->committed.back() : work.draft->ids.back();
      if (is_grounded) head_.embed(last, input(inputs_, static_cast<int64_t>(row), branch + 1));
    }
    const auto logits = head_.logits(branch, inputs_.rows(static_cast<int64_t>(going_.size())));
    size_t kept = 0;
    for (size_t row = 0; row < going_.size(); ++row) {
      const Work& work = works_[going_[row]];
      if (draws_.draw(*work.task, logits.row(static_cast<int64_t>(row)), *work.draft))
        going_[kept++] = going_[row];
    }
    going_.resize(kept);
  }
}

void HydraDrafter::draft_tree(const Work& work) {
  HeadTree& tree = work.sequence->tree;
  draws_.begin_tree(*work.task, static_cast<int32_t>(std::min<int64_t>(work.task->gamma, head_.heads())),
                    tree);
  while (true) {
    const auto next = tree.growth.next(static_cast<size_t>(head_.max_input_rows()));
    if (next.empty()) break;
    nodes_.assign(next.begin(), next.end());
    // Those of one depth ask the same branch.
    for (size_t begin = 0, end = 0; begin < nodes_.size(); begin = end) {
      const int32_t depth = tree.growth.depth(nodes_[begin]);
      while (end < nodes_.size() && tree.growth.depth(nodes_[end]) == depth) ++end;
      look_behind(work, std::span(nodes_).subspan(begin, end - begin));
    }
  }
  HeadDraws::take_tree(tree, *work.draft);
}

void HydraDrafter::look_behind(const Work& work, std::span<const int32_t> nodes) {
  HeadTree& tree = work.sequence->tree;
  const auto count = static_cast<int64_t>(nodes.size());
  for (int64_t row = 0; row < count; ++row) {
    const auto state = input(inputs_, work.row, 0);
    std::copy(state.begin(), state.end(), input(node_inputs_, row, 0).begin());
    if (!head_.config().grounded) continue;
    tree.growth.path(nodes[static_cast<size_t>(row)], path_);
    head_.embed(work.task->committed.back(), input(node_inputs_, row, 1));
    for (size_t i = 0; i < path_.size(); ++i)
      head_.embed(path_[i], input(node_inputs_, row, static_cast<int64_t>(i) + 2));
  }
  const auto logits = head_.logits(tree.growth.depth(nodes.front()), node_inputs_.rows(count));
  for (int64_t row = 0; row < count; ++row)
    draws_.look_behind(*work.task, nodes[static_cast<size_t>(row)], logits.row(row), tree);
}

}  // namespace outrider
