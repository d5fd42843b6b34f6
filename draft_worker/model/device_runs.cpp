#include "draft_worker/model/device_runs.h"

#include <algorithm>

#include "draft_worker/model/round_inputs.h"
#include "draft_worker/wire/row_sender.h"

namespace outrider {

// All rounds draw one token at a time while one of them checks each token (a stop rule) or waits for the end
// of its prompt. Rounds that need margins run on the host, because the device returns entropies and
// probabilities only.
bool DeviceRuns::collect_rounds() {
  runs_.clear();
  parts_.clear();
  Model& model = state_.model;
  RowSender* const rows_stay = state_.options.rows;
  int64_t rows = model.max_rows(), logit_rows = model.max_logit_rows();
  bool one_by_one = false;
  for (auto& [id, s] : state_.sequences) {
    if (!s.job || s.job->branches) continue;  // trees: RankedPass, or the host
    const Strand& strand = s.job->strand;
    const BatchSlice slice =
        rows > 0 && logit_rows > 0 ? next_slice(s, model, rows, logit_rows) : BatchSlice{.sequence = s.kv};
    one_by_one |= strand.stop.kind != StopKind::kNone || (strand.limit > 0 && slice.logit_rows == 0);
    if (slice.tokens.empty()) continue;
    rows -= static_cast<int64_t>(slice.tokens.size());
    logit_rows -= slice.logit_rows;
    runs_.push_back(
        {.sequence = s.kv,
         .inputs = slice.tokens,
         .first = next_step(s, strand),
         .count = slice.logit_rows > 0 ? strand.limit - strand.length() : 0,
         .q_stays = rows_stay && strand.key.q_kind == QKind::kSlices && rows_stay->reserve(id, strand.limit),
         .guesses = slice.logit_rows > 1});
    parts_.push_back({.sequence = &s, .drafts_on = strand.length() > 0});
  }
  if (one_by_one)
    for (TokenRun& run : runs_) run.count = std::min(run.count, 1);
  const bool margins = std::any_of(parts_.begin(), parts_.end(),
                                   [](const Part& part) { return stop_of(part) == StopKind::kChances; });
  return !runs_.empty() && !margins && runner_->takes(runs_);
}

Status DeviceRuns::run_rounds() {
  const bool measures = std::any_of(parts_.begin(), parts_.end(),
                                    [](const Part& part) { return stop_of(part) != StopKind::kNone; });
  return runner_->run(runs_, measures);
}

Status DeviceRuns::take_round(size_t run) {
  DraftedSequence& s = sequence(run);
  Strand& strand = s.job->strand;
  const bool measures = strand.stop.kind != StopKind::kNone;
  const auto tokens = runner_->tokens(run);
  s.window.fed(runs_[run].inputs);
  if (runs_[run].guesses) s.job->guess = runner_->guess(run);
  for (size_t i = 0; i < tokens.size() && !strand.complete(); ++i) {
    if (i > 0) s.window.fed(tokens.subspan(i - 1, 1));
    if (!drawing_.add(s, strand, tokens[i], measures ? runner_->confidence(run, i) : DraftConfidence{}))
      break;
    if (strand.key.q_kind != QKind::kNone) take_q(s, strand, run, i);
  }
  state_.model.kv().truncate(s.kv, s.window.cached());
  return runner_->failed(run) && !strand.complete() ? TokenDrawing::not_finite(strand) : Status();
}

void DeviceRuns::take_q(const DraftedSequence& s, Strand& strand, size_t run, size_t token) {
  QRow& q = strand.q.emplace_back(state_.storage.take_row());
  if (!runs_[run].q_stays) return runner_->read_q(run, token, q);
  const DeviceRow row = runner_->device_row(run, token);
  q.ids.clear();
  q.weights.clear();
  q.sum = row.sum;
  q.rest = q.id_end = 0;
  state_.options.rows->keep(s.job->propose.sequence, strand.key.round, strand.q.size() - 1, row);
}

void DeviceRuns::end_rounds(bool ran, int64_t total_ns) {
  if (state_.options.rows) state_.options.rows->settle();
  if (ran) share_time(total_ns);
}

// A round that just began prefills its text with its first token.
void DeviceRuns::share_time(int64_t total_ns) {
  const auto parts = static_cast<int64_t>(parts_.size());
  const auto drawing =
      std::count_if(runs_.begin(), runs_.end(), [](const TokenRun& r) { return r.count > 1; });
  const int64_t first_ns = drawing > 0 ? std::min(runner_->first_ns(), total_ns) : total_ns;
  int32_t steps = 1;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].failed) continue;
    DraftJob& job = *parts_[i].sequence->job;
    (parts_[i].drafts_on ? job.draft_ns : job.ingest_ns) += first_ns / parts;
    if (runs_[i].count > 1) job.draft_ns += (total_ns - first_ns) / drawing;
    steps = std::max(steps, static_cast<int32_t>(runner_->tokens(i).size()));
  }
  const bool one_each =
      std::all_of(runs_.begin(), runs_.end(), [](const TokenRun& run) { return run.inputs.size() == 1; });
  if (one_each) state_.policy.pass_took(parts, total_ns / steps);
}

void DeviceRuns::add_branch(const DraftedSequence& s, const Strand& strand, const BatchSlice& slice) {
  runs_.push_back(
      {.sequence = slice.sequence, .inputs = slice.tokens, .first = next_step(s, strand), .count = 1});
}

size_t DeviceRuns::fit_branches() {
  while (!runs_.empty() && !runner_->takes(runs_)) runs_.pop_back();
  return runs_.size();
}

void DeviceRuns::take_branch(DraftedSequence& s, Strand& strand, size_t run) {
  if (runner_->failed(run)) return strand.cut(0);  // the round will fail when its draft is requested
  drawing_.add(s, strand, runner_->tokens(run)[0], {});
  if (strand.key.q_kind != QKind::kNone)
    runner_->read_q(run, 0, strand.q.emplace_back(state_.storage.take_row()));
}

}  // namespace outrider
