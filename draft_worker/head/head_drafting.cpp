#include "draft_worker/head/head_drafting.h"

#include <algorithm>
#include <thread>

#include "kernels/sampling/penalties.h"

namespace outrider {

HeadDrafting::HeadDrafting(Head& head, HeadDraftingOptions options)
    : head_(head),
      options_(std::move(options)),
      drafter_(
          make_head_drafter(head, {.max_sequences = options_.max_sequences, .eos_ids = options_.eos_ids})) {}

// The head's tables end at its own vocabulary, whatever vocabulary the job announces.
Status HeadDrafting::check_ids(std::span<const TokenId> ids) const {
  const auto is_known = [this](TokenId id) { return id.value() < head_.vocab_size(); };
  if (std::all_of(ids.begin(), ids.end(), is_known)) return {};
  return malformed(fmt::format("an id outside the head's vocabulary of {}", head_.vocab_size()));
}

HeadDrafting::~HeadDrafting() {
  if (options_.inbox) options_.inbox->leave();
}

Status HeadDrafting::open(const Open& open) {
  if (const auto at = sequences_.find(open.sequence);
      at != sequences_.end() && at->second.window.knows(open.ids))
    return {};
  close(open.sequence);
  RETURN_IF_ERROR(check_ids(open.ids));
  if (static_cast<int32_t>(sequences_.size()) >= options_.max_sequences)
    return resource_exhausted(fmt::format("the head drafts for {} sequences already", sequences_.size()));
  Sequence s{.window = DraftWindow(open.ids),
             .sampling = open.sampling,
             .counts = {},
             .rows = HeldHiddenStates(head_.compute(), options_.inbox),
             .round = {}};
  if (needs_counts(s.sampling)) {
    const auto prompt = static_cast<size_t>(open.prompt_length);
    s.counts.add_prompt(std::span(open.ids).first(prompt));
    s.counts.add_output(std::span(open.ids).subspan(prompt));
  }
  sequences_.emplace(open.sequence, std::move(s));
  return {};
}

void HeadDrafting::close(SequenceId sequence) {
  if (sequences_.erase(sequence) > 0) drafter_->close(sequence);
}

// Extends the known text to the text that ends at `base` with `ids`; either may be a beginning of the other.
Status HeadDrafting::extend(Sequence& s, Position base, std::span<const TokenId> ids) const {
  RETURN_IF_ERROR(check_ids(ids));
  const auto text = s.window.committed();
  const int64_t first = base.value() - static_cast<int64_t>(ids.size());
  if (base.value() <= static_cast<int64_t>(text.size())) {
    if (first >= 0 && std::equal(ids.begin(), ids.end(), text.begin() + first)) return {};
    return malformed(fmt::format("ids [{}, {}) contradict the known ones", first, base.value()));
  }
  const size_t known = text.size();
  RETURN_IF_ERROR(s.window.advance(base, ids));
  if (needs_counts(s.sampling)) s.counts.add_output(s.window.committed().subspan(known));
  return {};
}

Status HeadDrafting::begin(const Propose& propose) {
  const auto at = sequences_.find(propose.sequence);
  if (at == sequences_.end()) return not_found("sequence is not open");
  Sequence& s = at->second;
  if ((propose.q_kind != QKind::kNone) != needs_q(effective_rule(s.sampling)) ||
      propose.q_kind == QKind::kHidden)
    return unsupported(fmt::format("q of kind {} under the {} rule", static_cast<int>(propose.q_kind),
                                   rule_name(effective_rule(s.sampling))));
  if (!propose.tree.is_chain() && propose.q_kind != QKind::kNone &&
      (propose.tree.nodes > 0 || !is_tree_rule(effective_rule(s.sampling))))
    return unsupported(
        fmt::format("a tree of this shape under the {} rule; its q needs a fixed shape and a "
                    "rule for trees",
                    rule_name(effective_rule(s.sampling))));
  if (propose.base.value() < static_cast<int64_t>(s.window.committed().size()))
    return malformed(fmt::format("a draft behind {} tokens of a text of {}", propose.base.value(),
                                 s.window.committed().size()));
  RETURN_IF_ERROR(extend(s, propose.base, propose.committed));
  // True if the Propose is repeated and its rows should have arrived by now. The inbox has its own deadline
  // for rows from device to device.
  const bool is_late = s.round && s.round->round == propose.round && propose.sent_after_us > 0;
  s.round = propose;
  const int64_t needed = propose.base.value() - 1;
  if (is_late && s.rows.end() < needed)
    return unavailable(fmt::format("rows of states [{}, {}) are missing", s.rows.end(), needed));
  return {};
}

// Rows after a gap are useless: the missing rows and all later ones are sent again.
Status HeadDrafting::take(const HiddenStateRows& rows) {
  const auto at = sequences_.find(rows.sequence);
  if (at == sequences_.end()) return not_found("sequence is not open");
  if (rows.transfer > 0 && !options_.inbox)
    return unavailable("rows of states went by a link that there is not");
  Sequence& s = at->second;
  const auto count = static_cast<int64_t>(rows.ids.size());
  const int64_t first = rows.first.value();
  if (first > s.rows.end())
    return unavailable(fmt::format("rows of states [{}, {}) are missing", s.rows.end(), first));
  RETURN_IF_ERROR(extend(s, rows.first + static_cast<int32_t>(count + 1), rows.ids));
  s.rows.add(rows);
  return {};
}

void HeadDrafting::read(SequenceId sequence, int64_t first, FloatRows to) {
  sequences_.at(sequence).rows.read(first, to);
}

bool HeadDrafting::work(std::vector<DraftAnswer>& answers) {
  const bool any = look(answers) || finish_empty() || draft_rounds(answers) || read_ahead();
  if (any) waits_ = 0;
  return any || awaits_rows();
}

// Polls for arrived rows. Reports sequences with lost rows; the coordinator sends these rows again.
bool HeadDrafting::look(std::vector<DraftAnswer>& answers) {
  if (!options_.inbox || (sequences_.empty() && !options_.inbox->is_ready())) return false;
  options_.inbox->look();
  bool any = false;
  for (auto& [id, s] : sequences_) {
    if (!s.rows.forget_lost()) continue;
    any = true;
    answers.push_back(
        {.status = unavailable(fmt::format("rows of states from {} on were lost", s.rows.end())),
         .draft = {.sequence = id}});
  }
  return any;
}

// There is no wake-up for arrivals on a device, so this polls, and sleeps briefly after some polls.
bool HeadDrafting::awaits_rows() {
  constexpr int kSpins = 200;
  constexpr std::chrono::microseconds kPause{20};
  const auto is_behind = [](const auto& entry) {
    return entry.second.rows.ready() < entry.second.rows.end();
  };
  if (!options_.inbox || std::none_of(sequences_.begin(), sequences_.end(), is_behind)) return false;
  if (++waits_ > kSpins) std::this_thread::sleep_for(kPause);
  return true;
}

// Ends rounds with gamma 0, which get no answer.
bool HeadDrafting::finish_empty() {
  bool any = false;
  for (auto& [id, s] : sequences_) {
    if (!s.round || s.round->gamma > 0) continue;
    s.round.reset();
    any = true;
  }
  return any;
}

bool HeadDrafting::draft_rounds(std::vector<DraftAnswer>& answers) {
  tasks_.clear();
  for (auto& [id, s] : sequences_) {
    if (!s.round || s.rows.ready() < s.round->base.value() - 1) continue;
    if (s.window.committed().size() > static_cast<size_t>(s.round->base.value())) {
      s.round.reset();  // rows of a later round came: the round went on without this draft
      continue;
    }
    tasks_.push_back({.sequence = id,
                      .committed = s.window.committed(),
                      .sampling = &s.sampling,
                      .counts = &s.counts,
                      .round = s.round->round,
                      .gamma = s.round->gamma,
                      .stop = s.round->stop,
                      .row_bytes = s.round->q_kind == QKind::kSparse ? s.round->row_bytes : 0,
                      .tree = &s.round->tree});
  }
  if (tasks_.empty()) return false;
  drafter_->draft(tasks_, *this, drafts_);
  for (size_t i = 0; i < tasks_.size(); ++i) {
    Sequence& s = sequences_.at(tasks_[i].sequence);
    answers.push_back({.status = {}, .draft = draft_of(s, drafts_[i])});
    s.round.reset();
  }
  forget_read();
  return true;
}

Draft HeadDrafting::draft_of(const Sequence& s, HeadDraft& made) const {
  const auto count = static_cast<int64_t>(tasks_.size());
  Draft draft{.sequence = s.round->sequence,
              .epoch = s.round->epoch,
              .round = s.round->round,
              .base = s.round->base,
              .ids = {made.ids.begin(), made.ids.end()},
              .parents = {made.parents.begin(), made.parents.end()},
              .prefix_hash = s.window.hash(),
              .q_kind = s.round->q_kind,
              .q = std::move(made.q),
              .eos = made.eos,
              .sent_after_us = s.round->sent_after_us,
              .ingest_ns = drafter_->ingest_ns() / count,
              .draft_ns = drafter_->draft_ns() / count};
  return draft;
}

// Prefills prompts, and texts that continue without drafts: this keeps few rows, and shortens the next
// prefill.
bool HeadDrafting::read_ahead() {
  tasks_.clear();
  for (auto& [id, s] : sequences_)
    if (s.rows.ready() - s.rows.first() > options_.read_ahead)
      tasks_.push_back({.sequence = id,
                        .committed = s.window.committed().first(static_cast<size_t>(s.rows.ready()) + 1),
                        .sampling = &s.sampling,
                        .counts = &s.counts});
  if (tasks_.empty()) return false;
  drafter_->draft(tasks_, *this, drafts_);
  forget_read();
  return true;
}

// The last pair is kept, because drafts of the same text begin with it.
void HeadDrafting::forget_read() {
  for (const HeadTask& task : tasks_)
    sequences_.at(task.sequence).rows.forget_before(static_cast<int64_t>(task.committed.size()) - 2);
}

Resync HeadDrafting::held(SequenceId sequence) const {
  const auto at = sequences_.find(sequence);
  if (at == sequences_.end()) return {.sequence = sequence};
  const Sequence& s = at->second;
  return {.sequence = sequence,
          .committed = Position(static_cast<int32_t>(s.window.committed().size())),
          .hash = s.window.hash(),
          .hidden_state_rows = static_cast<int32_t>(s.rows.end())};
}

int64_t HeadDrafting::rows_held() const {
  int64_t rows = 0;
  for (const auto& [id, s] : sequences_) rows += s.rows.end() - s.rows.first();
  return rows;
}

}  // namespace outrider
