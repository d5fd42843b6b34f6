#include "heads/pair_drafter.h"

#include <algorithm>
#include <chrono>

namespace outrider {

PairDrafter::PairDrafter(PairHead& head, HeadDrafterOptions options)
    : head_(head),
      max_sequences_(options.max_sequences),
      draws_(head, std::move(options.eos_ids)),
      inputs_(head.compute().rows(head.max_rows(), head.hidden_size())),
      hidden_states_(head.compute().rows(max_sequences_, head.hidden_size())),
      outputs_(head.compute().rows(max_sequences_ + head.tree_blocks(), head.hidden_size())) {
  constexpr int64_t kRecorded = 16;
  const PairHead::Ahead one{head_.kv().create(), 1};
  if (head_.begin_ahead({&one, 1}))
    draws_.record(*this, std::min<int64_t>({kRecorded, max_sequences_, head_.options().max_sequences}));
  head_.kv().release(one.sequence);
}

PairDrafter::~PairDrafter() {
  while (!sequences_.empty()) close(sequences_.begin()->first);
}

PairDrafter::Sequence& PairDrafter::begin(SequenceId id) {
  const auto [at, is_new] = sequences_.try_emplace(id);
  CHECK(static_cast<int32_t>(sequences_.size()) <= max_sequences_, "{} sequences of {}", sequences_.size(),
        max_sequences_);
  if (is_new) at->second.kv = head_.kv().create();
  return at->second;
}

void PairDrafter::close(SequenceId sequence) {
  const auto at = sequences_.find(sequence);
  if (at == sequences_.end()) return;
  head_.kv().release(at->second.kv);
  sequences_.erase(at);
}

void PairDrafter::draft(std::span<const HeadTask> tasks, HiddenStateSource& hidden_states,
                        std::vector<HeadDraft>& drafts) {
  using SteadyClock = std::chrono::steady_clock;
  const auto start = SteadyClock::now();
  auto first_at = start;
  drafts.resize(tasks.size());
  works_.clear();
  tree_blocks_ = outputs_taken_ = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    HeadDraft& draft = drafts[i];
    draft.clear();
    Sequence& s = begin(tasks[i].sequence);
    const auto pairs = static_cast<int64_t>(tasks[i].committed.size()) - 1;
    CHECK(s.read <= pairs, "{} pairs were read of {}", s.read, pairs);
    // The last one is read for what comes behind it.
    if (tasks[i].gamma > 0) s.read = std::clamp<int64_t>(pairs - 1, 0, s.read);
    head_.kv().truncate(s.kv, s.read);  // what was drafted
    const bool is_possible = pairs >= 1 && pairs <= head_.max_positions();
    const bool has_work = tasks[i].gamma > 0 || s.read < pairs;
    works_.push_back({.task = &tasks[i], .draft = &draft, .sequence = &s, .done = !is_possible || !has_work});
    if (tasks[i].branches() && is_possible) begin_tree(works_.back());
  }
  while (collect(hidden_states)) {
    take_rows(head_.forward(slices_));
    if (first_at == start &&
        std::all_of(works_.begin(), works_.end(), [](const Work& w) { return w.row >= 0 || w.done; }))
      first_at = std::max(start, SteadyClock::now() - std::chrono::nanoseconds(draws_.ns_behind_first()));
  }
  const auto ns = [](SteadyClock::duration d) {
    return static_cast<int64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(d).count());
  };
  if (first_at == start) first_at = SteadyClock::now();
  ingest_ns_ = ns(first_at - start);
  draft_ns_ = ns(SteadyClock::now() - first_at);
}

// The next pairs of all that are not finished, as far as there is room.
bool PairDrafter::collect(HiddenStateSource& hidden_states) {
  slices_.clear();
  parts_.clear();
  nodes_.clear();
  node_tokens_.clear();
  node_tokens_.reserve(static_cast<size_t>(head_.max_logit_rows()));  // slices view it
  rows_ = logit_rows_ = 0;
  for (Work& work : works_) {
    if (work.done || rows_ == head_.max_rows() || logit_rows_ == head_.max_logit_rows()) continue;
    if (work.task->branches() && work.row >= 0)
      add_nodes(work);
    else
      add_pairs(work, hidden_states);
  }
  return !slices_.empty();
}

void PairDrafter::add_pairs(Work& work, HiddenStateSource& hidden_states) {
  Sequence& s = *work.sequence;
  const auto committed = work.task->committed;
  PairSlice slice{.sequence = s.kv};
  if (work.row >= 0) {  // drafting on from its own output
    const auto to = next_inputs(1);
    head_.compute().copy(hidden_states_.from(work.row, 1), to);
    slice.tokens = std::span(work.draft->ids).last(1);
    slice.hidden_states = to;
    slice.has_logits = true;
    ++rows_;
  } else {
    const auto pairs = static_cast<int64_t>(committed.size()) - 1;
    const int64_t count = std::min(pairs - s.read, head_.max_rows() - rows_);
    const auto rows = next_inputs(count);
    hidden_states.read(work.task->sequence, s.read, rows);
    slice.tokens = committed.subspan(static_cast<size_t>(s.read + 1), static_cast<size_t>(count));
    slice.hidden_states = rows;
    s.read += count;
    slice.has_logits = s.read == pairs && work.task->gamma > 0;
    work.done = s.read == pairs && work.task->gamma == 0;
    rows_ += count;
  }
  logit_rows_ += slice.has_logits;
  slices_.push_back(slice);
  parts_.push_back(&work);
  nodes_.push_back(kTreeRoot);
}

// ---- trees ----------------------------------------------------------------------------------------------

void PairDrafter::begin_tree(const Work& work) {
  Sequence& s = *work.sequence;
  const auto pairs = static_cast<int64_t>(work.task->committed.size()) - 1;
  const int64_t depth = std::min<int64_t>(work.task->gamma, head_.max_positions() - pairs + 1);
  draws_.begin_tree(*work.task, static_cast<int32_t>(depth), s.tree);
  for (auto* list : {&s.kv_of, &s.forks}) list->clear();
  s.extended.clear();
  s.place_of.clear();
}

// A row for each node that this pass looks behind. Each takes a block of the cache at most.
void PairDrafter::add_nodes(Work& work) {
  Sequence& s = *work.sequence;
  TreeGrowth& growth = s.tree.growth;
  const int64_t blocks = head_.tree_blocks() - tree_blocks_;
  if (blocks == 0) growth.stop();
  const int64_t room = std::min(
      {head_.max_rows() - rows_, head_.max_logit_rows() - logit_rows_, std::max<int64_t>(1, blocks)});
  const auto nodes = growth.next(static_cast<size_t>(room));
  if (nodes.empty()) return finish_tree(work);
  s.kv_of.resize(growth.found());
  s.extended.resize(growth.found() + 1);
  for (const int32_t node : nodes) {
    const auto to = next_inputs(1);
    head_.compute().copy(outputs_.from(s.place_of[static_cast<size_t>(growth.parent(node) + 1)], 1), to);
    node_tokens_.push_back(growth.token(node));
    slices_.push_back({.sequence = cache_before(work, node),
                       .tokens = std::span(node_tokens_).last(1),
                       .hidden_states = to,
                       .has_logits = true});
    parts_.push_back(&work);
    nodes_.push_back(node);
    ++rows_, ++logit_rows_, ++tree_blocks_;
  }
}

// The committed pairs and those of the nodes above this one.
KvHandle PairDrafter::cache_before(const Work& work, int32_t node) {
  Sequence& s = *work.sequence;
  KvHandle& kv = s.kv_of[static_cast<size_t>(node)];
  const int32_t parent = s.tree.growth.parent(node);
  const KvHandle above = parent == kTreeRoot ? s.kv : s.kv_of[static_cast<size_t>(parent)];
  if (!std::exchange(s.extended[static_cast<size_t>(parent + 1)], true)) return kv = above;
  kv = head_.kv().fork(above);
  const auto pairs = static_cast<int64_t>(work.task->committed.size()) - 1;
  head_.kv().truncate(kv, pairs + s.tree.growth.depth(node) - 1);
  s.forks.push_back(kv);
  return kv;
}

void PairDrafter::take_node(Work& work, int32_t node, FloatRows state, int64_t row) {
  Sequence& s = *work.sequence;
  const auto place = static_cast<size_t>(node + 1);
  s.place_of.resize(std::max(s.place_of.size(), place + 1));
  CHECK(outputs_taken_ < outputs_.capacity, "{} nodes are looked behind", outputs_taken_);
  s.place_of[place] = static_cast<int32_t>(outputs_taken_);
  head_.compute().copy(state, outputs_.from(outputs_taken_++, 1));
  looks_.push_back({.task = work.task, .tree = &s.tree, .node = node, .row = row});
}

void PairDrafter::finish_tree(Work& work) {
  Sequence& s = *work.sequence;
  HeadDraws::take_tree(s.tree, *work.draft);
  for (const KvHandle fork : s.forks) head_.kv().release(fork);
  s.forks.clear();
  work.done = true;
}

// ---- outputs --------------------------------------------------------------------------------------------

void PairDrafter::take_rows(const PairHead::Rows& rows) {
  chains_.clear();
  looks_.clear();
  int64_t row = 0;
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (!slices_[i].has_logits) continue;
    Work& work = *parts_[i];
    work.row = static_cast<int32_t>(&work - works_.data());
    const FloatRows state(rows.hidden_states.data() + row * rows.hidden_states.stride(0),
                          {1, rows.hidden_states.extent(1)});
    if (work.task->branches()) {
      take_node(work, nodes_[i], state, row);
    } else {
      const int64_t wanted = work.task->gamma - static_cast<int64_t>(work.draft->ids.size());
      head_.compute().copy(state, hidden_states_.from(work.row, 1));
      chains_.push_back({.task = work.task,
                         .draft = work.draft,
                         .row = row,
                         .most = static_cast<int32_t>(std::min(wanted, room(work)))});
    }
    ++row;
  }
  draws_.look_behind(looks_, rows.logits);
  draw(rows.logits);
}

void PairDrafter::draw(FloatRows logits) {
  std::sort(chains_.begin(), chains_.end(), [](const HeadDraws::Chain& a, const HeadDraws::Chain& b) {
    return a.most != b.most ? a.most > b.most : a.row < b.row;
  });
  const int32_t tokens = draws_.draw(chains_, logits, this);
  for (size_t i = 0; i < chains_.size(); ++i) {
    Work& work = work_of(chains_[i]);
    work.done = !chains_[i].goes_on || room(work) <= 0;
    if (tokens > 1 && !work.done)
      head_.compute().copy(head_.ahead_hidden_states(static_cast<int64_t>(i), 1),
                           hidden_states_.from(work.row, 1));
  }
}

bool PairDrafter::begin(std::span<const HeadDraws::Chain> chains) {
  ahead_.clear();
  for (const HeadDraws::Chain& chain : chains)
    if (chain.tokens > 1) ahead_.push_back({work_of(chain).sequence->kv, chain.tokens - 1});
  if (!head_.begin_ahead(ahead_)) return false;
  for (size_t i = 0; i < ahead_.size(); ++i)
    head_.compute().copy(hidden_states_.from(work_of(chains[i]).row, 1),
                         head_.ahead_hidden_states(static_cast<int64_t>(i), 1));
  return true;
}

FloatRows PairDrafter::next(std::span<HeadDraws::Chain> chains, HeadSampler& drawn) {
  for (size_t i = 0; i < chains.size(); ++i) chains[i].row = static_cast<int64_t>(i);
  return head_.next_ahead(static_cast<int64_t>(chains.size()), drawn);
}

// How many pairs there may be before one would stand behind the last position.
int64_t PairDrafter::room(const Work& work) const {
  const auto pairs = static_cast<int64_t>(work.task->committed.size()) - 1;
  return head_.max_positions() + 1 - pairs - static_cast<int64_t>(work.draft->ids.size());
}

}  // namespace outrider
