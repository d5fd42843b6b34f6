#include "heads/pair_drafter.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace outrider {

PairDrafter::PairDrafter(PairHead& head, HeadDrafterOptions options)
    : head_(head),
      max_sequences_(options.max_sequences),
      draws_(head, std::move(options.eos_ids)),
      inputs_(head.max_rows(), head.hidden_size()),
      states_(max_sequences_, head.hidden_size()) {}

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

void PairDrafter::draft(std::span<const HeadTask> tasks, StateSource& states,
                        std::vector<HeadDraft>& drafts) {
  using SteadyClock = std::chrono::steady_clock;
  const auto start = SteadyClock::now();
  auto first_at = start;
  drafts.resize(tasks.size());
  works_.clear();
  for (size_t i = 0; i < tasks.size(); ++i) {
    HeadDraft& draft = drafts[i];
    draft.ids.clear();
    draft.q.clear();
    draft.eos = false;
    Sequence& s = begin(tasks[i].sequence);
    const auto pairs = static_cast<int64_t>(tasks[i].committed.size()) - 1;
    CHECK(s.read <= pairs, "{} pairs were read of {}", s.read, pairs);
    // The last one is read for what comes behind it.
    if (tasks[i].gamma > 0) s.read = std::clamp<int64_t>(pairs - 1, 0, s.read);
    head_.kv().truncate(s.kv, s.read);  // what was drafted
    const bool is_possible = pairs >= 1 && pairs <= head_.max_positions();
    const bool has_work = tasks[i].gamma > 0 || s.read < pairs;
    works_.push_back({.task = &tasks[i], .draft = &draft, .sequence = &s, .done = !is_possible || !has_work});
  }
  while (collect(states)) {
    take_rows(head_.forward(slices_));
    if (first_at == start &&
        std::all_of(works_.begin(), works_.end(), [](const Work& w) { return w.row >= 0 || w.done; }))
      first_at = SteadyClock::now();
  }
  const auto ns = [](SteadyClock::duration d) {
    return static_cast<int64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(d).count());
  };
  if (first_at == start) first_at = SteadyClock::now();
  ingest_ns_ = ns(first_at - start);
  draft_ns_ = ns(SteadyClock::now() - first_at);
}

// The next pairs of all that are not finished, as far as there is room.
bool PairDrafter::collect(StateSource& states) {
  slices_.clear();
  parts_.clear();
  rows_ = 0;
  for (Work& work : works_)
    if (!work.done && rows_ < head_.max_rows()) add_pairs(work, states);
  return !slices_.empty();
}

void PairDrafter::add_pairs(Work& work, StateSource& states) {
  Sequence& s = *work.sequence;
  const auto committed = work.task->committed;
  PairSlice slice{.sequence = s.kv};
  const auto rows_from = [&](int64_t count) {
    return TensorView<float, 2>(inputs_.data.data() + rows_ * inputs_.stride, {count, inputs_.columns},
                                {inputs_.stride, 1});
  };
  if (work.row >= 0) {  // drafting on from its own output
    const auto from = states_.rows(max_sequences_).row(work.row);
    const auto to = rows_from(1);
    std::memcpy(to.data(), from.data(), from.size_bytes());
    slice.tokens = std::span(work.draft->ids).last(1);
    slice.states = to;
    slice.has_logits = true;
    ++rows_;
  } else {
    const auto pairs = static_cast<int64_t>(committed.size()) - 1;
    const int64_t count = std::min(pairs - s.read, head_.max_rows() - rows_);
    const auto rows = rows_from(count);
    states.read(work.task->sequence, s.read, rows);
    slice.tokens = committed.subspan(static_cast<size_t>(s.read + 1), static_cast<size_t>(count));
    slice.states = rows;
    s.read += count;
    slice.has_logits = s.read == pairs && work.task->gamma > 0;
    work.done = s.read == pairs && work.task->gamma == 0;
    rows_ += count;
  }
  slices_.push_back(slice);
  parts_.push_back(&work);
}

void PairDrafter::take_rows(const PairHead::Rows& rows) {
  int64_t row = 0;
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (!slices_[i].has_logits) continue;
    Work& work = *parts_[i];
    work.row = static_cast<int32_t>(&work - works_.data());
    const auto state = rows.states.row(row);
    std::memcpy(states_.rows(max_sequences_).row(work.row).data(), state.data(), state.size_bytes());
    work.done = !draws_.draw(*work.task, rows.logits.row(row), *work.draft) || !has_room(work);
    ++row;
  }
}

// Or the next pair would stand behind the last position.
bool PairDrafter::has_room(const Work& work) const {
  const auto pairs = static_cast<int64_t>(work.task->committed.size()) - 1;
  return pairs + static_cast<int64_t>(work.draft->ids.size()) - 1 < head_.max_positions();
}

}  // namespace outrider
