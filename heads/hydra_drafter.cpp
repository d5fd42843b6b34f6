#include "heads/hydra_drafter.h"

#include <algorithm>
#include <chrono>

namespace outrider {

HydraDrafter::HydraDrafter(HydraHead& head, HeadDrafterOptions options)
    : head_(head),
      max_sequences_(options.max_sequences),
      draws_(head, std::move(options.eos_ids)),
      inputs_(head.compute().rows(max_sequences_, head.input_width(head.heads() - 1))),
      node_inputs_(head.compute().rows(head.max_input_rows(), head.input_width(head.heads() - 1))),
      prefix_inputs_(head.compute().rows(head.prefix() ? head.prefix()->max_rows() : 0, head.hidden_size())) {
}

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

void HydraDrafter::draft(std::span<const HeadTask> tasks, HiddenStateSource& hidden_states,
                         std::vector<HeadDraft>& drafts) {
  using SteadyClock = std::chrono::steady_clock;
  const auto start = SteadyClock::now();
  drafts.resize(tasks.size());
  works_.clear();
  for (size_t i = 0; i < tasks.size(); ++i) {
    drafts[i].clear();
    Sequence& sequence = begin(tasks[i].sequence);
    if (known(tasks[i]) < 1 || (head_.prefix() && known(tasks[i]) > head_.max_positions())) continue;
    works_.push_back({.task = &tasks[i], .draft = &drafts[i], .sequence = &sequence, .row = 0});
  }
  std::sort(works_.begin(), works_.end(), [&](const Work& a, const Work& b) {
    const int64_t of_a = wanted(*a.task), of_b = wanted(*b.task);
    return of_a != of_b ? of_a > of_b : a.task < b.task;
  });
  for (size_t i = 0; i < works_.size(); ++i) works_[i].row = static_cast<int64_t>(i);
  if (head_.prefix())
    read_through_prefix(hidden_states);
  else
    read_hidden_states(hidden_states);
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
FloatRows HydraDrafter::input(const RowBuffer& rows, int64_t row, int64_t part, int64_t count) const {
  const int64_t hidden = head_.hidden_size();
  return {rows.data + row * rows.stride + part * hidden, {1, count * hidden}, {rows.stride, 1}};
}

// The last token is the target's own choice, and its state is not known yet.
void HydraDrafter::read_hidden_states(HiddenStateSource& hidden_states) {
  for (const Work& work : works_)
    if (work.task->gamma > 0)
      hidden_states.read(work.task->sequence, known(*work.task) - 1, input(inputs_, work.row, 0));
}

// Runs the new positions of every text through the prefix layer, and keeps the output of the last position.
void HydraDrafter::read_through_prefix(HiddenStateSource& hidden_states) {
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
      const FloatRows to = prefix_inputs_.from(rows, count);
      hidden_states.read(work.task->sequence, s.read, to);
      rows += count;
      const auto tokens =
          work.task->committed.subspan(static_cast<size_t>(s.read), static_cast<size_t>(count));
      s.read += count;
      slices_.push_back({.sequence = s.kv,
                         .tokens = tokens,
                         .hidden_states = to,
                         .has_logits = s.read == known(*work.task) && work.task->gamma > 0});
      parts_.push_back(&work);
    }
    if (slices_.empty()) return;
    const auto out = prefix.forward(slices_).hidden_states;
    int64_t row = 0;
    for (size_t i = 0; i < slices_.size(); ++i) {
      if (!slices_[i].has_logits) continue;
      const FloatRows from(out.data() + row++ * out.stride(0), {1, out.extent(1)});
      head_.compute().copy(from, input(inputs_, parts_[i]->row, 0));
    }
  }
}

void HydraDrafter::draft_chains() {
  going_.clear();
  for (size_t i = 0; i < works_.size(); ++i)
    if (wanted(*works_[i].task) > 0) going_.push_back(i);
  for (branch_ = 0; branch_ < head_.heads() && !going_.empty(); ++branch_) {
    chains_.clear();
    for (size_t row = 0; row < going_.size(); ++row) {
      Work& work = works_[going_[row]];
      const auto to = static_cast<int64_t>(row);
      if (work.row != to) head_.compute().copy(inputs_.from(work.row, 1), inputs_.from(to, 1));
      work.row = to;
      chains_.push_back({.task = work.task,
                         .draft = work.draft,
                         .row = to,
                         .most = static_cast<int32_t>(wanted(*work.task) - branch_)});
    }
    if (head_.config().grounded) embed_last();
    const FloatRows logits = head_.logits(branch_, inputs_.rows(static_cast<int64_t>(going_.size())));
    draws_.draw(chains_, logits, this);
    size_t kept = 0;
    for (size_t row = 0; row < going_.size(); ++row)
      if (chains_[row].goes_on) going_[kept++] = going_[row];
    going_.resize(kept);
  }
}

// Appends the embeddings of the last tokens, for drafts that are not finished, to the branch's inputs.
void HydraDrafter::embed_last() {
  const FloatRows to = embeddings(static_cast<int64_t>(going_.size()));
  const FloatRows written = head_.compute().open(to);
  for (size_t row = 0; row < going_.size(); ++row) {
    const Work& work = works_[going_[row]];
    head_.embed(branch_ == 0 ? work.task->committed.back() : work.draft->ids.back(),
                written.row(static_cast<int64_t>(row)));
  }
  head_.compute().close(to);
}

FloatRows HydraDrafter::embeddings(int64_t rows) const {
  return inputs_.slice(rows, (branch_ + 1) * head_.hidden_size(), head_.hidden_size());
}

bool HydraDrafter::begin(std::span<const HeadDraws::Chain>) {
  return !head_.config().grounded || head_.embeddings_there();
}

// The inputs of the next branch are those of the last one, and what was drawn from it.
FloatRows HydraDrafter::next(std::span<HeadDraws::Chain> chains, HeadSampler& drawn) {
  ++branch_;
  const auto count = static_cast<int64_t>(chains.size());
  if (head_.config().grounded) drawn.read_drawn(head_.embeddings_there(), embeddings(count));
  return head_.logits(branch_, inputs_.rows(count));
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

// The last token and those on the way to each node, behind the states.
void HydraDrafter::embed_paths(const Work& work, std::span<const int32_t> nodes) {
  const TreeGrowth& growth = work.sequence->tree.growth;
  const auto hidden = static_cast<size_t>(head_.hidden_size());
  const FloatRows to = node_inputs_.slice(static_cast<int64_t>(nodes.size()), head_.hidden_size(),
                                          (growth.depth(nodes.front()) + 1) * head_.hidden_size());
  const FloatRows written = head_.compute().open(to);
  for (size_t i = 0; i < nodes.size(); ++i) {
    growth.path(nodes[i], path_);
    path_.insert(path_.begin(), work.task->committed.back());
    const auto row = written.row(static_cast<int64_t>(i));
    for (size_t at = 0; at < path_.size(); ++at) head_.embed(path_[at], row.subspan(at * hidden, hidden));
  }
  head_.compute().close(to);
}

void HydraDrafter::look_behind(const Work& work, std::span<const int32_t> nodes) {
  HeadTree& tree = work.sequence->tree;
  const auto count = static_cast<int64_t>(nodes.size());
  for (int64_t row = 0; row < count; ++row)
    head_.compute().copy(input(inputs_, work.row, 0), input(node_inputs_, row, 0));
  if (head_.config().grounded) embed_paths(work, nodes);
  looks_.clear();
  for (int64_t row = 0; row < count; ++row)
    looks_.push_back({.task = work.task, .tree = &tree, .node = nodes[static_cast<size_t>(row)], .row = row});
  draws_.look_behind(looks_, head_.logits(tree.growth.depth(nodes.front()), node_inputs_.rows(count)));
}

}  // namespace outrider
