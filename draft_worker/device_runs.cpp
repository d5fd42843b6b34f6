// The half of the model drafter for models that draw tokens where they compute: rounds advance by as many
// tokens at a time as nobody has to look at, branches by one, so that a Propose waits for no more.
#include <algorithm>
#include <functional>

#include "draft_worker/model_drafter.h"
#include "draft_worker/row_sender.h"
#include "heads/stop_rule.h"

namespace outrider {

// What is left of every round that is under way, or a part of a prompt. False: nothing is, or these rounds
// are the host's. Those are whose margins are asked for: the device tells entropies and probabilities only.
bool ModelDrafter::run_jobs(std::vector<DraftAnswer>& answers) {
  collect_runs();
  const bool margins = std::any_of(run_parts_.begin(), run_parts_.end(), [](const RunPart& part) {
    return part.sequence->job->strand.stop.kind == StopKind::kChances;
  });
  if (runs_.empty() || margins || !runner_->takes(runs_)) return false;
  const auto start = options_.now();
  const bool measures = std::any_of(runs_.begin(), runs_.end(), [&](const TokenRun& run) {
    return run_parts_[static_cast<size_t>(&run - runs_.data())].sequence->job->strand.stop.kind !=
           StopKind::kNone;
  });
  const Status ran = runner_->run(runs_, measures);
  if (!ran.ok() && (texts_.forget_one() || give_up_branches())) return true;  // room for another try
  for (size_t i = 0; i < runs_.size(); ++i) {
    const Status status = ran.ok() ? take_run(*run_parts_[i].sequence, i) : ran;
    run_parts_[i].failed = !status.ok();
    if (!status.ok()) answers.push_back(finish(*run_parts_[i].sequence, status));
  }
  if (options_.rows) options_.rows->settle();  // the next run overwrites what was read
  if (ran.ok()) share_time(ns_since(start));
  return true;
}

// Everybody draws one token at a time while somebody looks at it, or waits for the end of its prompt.
void ModelDrafter::collect_runs() {
  runs_.clear();
  run_parts_.clear();
  int64_t rows = model_.max_rows(), logit_rows = model_.max_logit_rows();
  bool one_by_one = false;
  for (auto& [id, s] : sequences_) {
    if (!s.job || s.job->branches) continue;  // trees are the host's
    const Strand& strand = s.job->strand;
    const BatchSlice slice =
        rows > 0 && logit_rows > 0 ? next_slice(s, rows, logit_rows) : BatchSlice{.sequence = s.kv};
    one_by_one |= strand.stop.kind != StopKind::kNone || (strand.limit > 0 && slice.logit_rows == 0);
    if (slice.tokens.empty()) continue;
    rows -= static_cast<int64_t>(slice.tokens.size());
    logit_rows -= slice.logit_rows;
    runs_.push_back({.sequence = s.kv,
                     .inputs = slice.tokens,
                     .first = next_step(s, strand),
                     .count = slice.logit_rows > 0 ? strand.limit - strand.length() : 0,
                     .q_stays = options_.rows && strand.key.q_kind == QKind::kSlices &&
                                options_.rows->reserve(id, strand.limit),
                     .guesses = slice.logit_rows > 1});
    run_parts_.push_back({.sequence = &s, .drafts_on = strand.length() > 0});
  }
  if (!one_by_one) return;
  for (TokenRun& run : runs_) run.count = std::min(run.count, 1);
}

// The tokens up to where the round is complete; what is beyond leaves no trace.
Status ModelDrafter::take_run(Sequence& s, size_t run) {
  Strand& strand = s.job->strand;
  const bool measures = strand.stop.kind != StopKind::kNone;
  const auto tokens = runner_->tokens(run);
  s.window.fed(runs_[run].inputs);
  if (runs_[run].guesses) s.job->guess = runner_->guess(run);
  for (size_t i = 0; i < tokens.size() && !strand.complete(); ++i) {
    if (i > 0) s.window.fed(tokens.subspan(i - 1, 1));
    if (!add_token(s, strand, tokens[i], measures ? runner_->confidence(run, i) : DraftConfidence{})) break;
    if (strand.key.q_kind != QKind::kNone) take_q(s, strand, run, i);
  }
  model_.kv().truncate(s.kv, s.window.cached());
  return runner_->failed(run) && !strand.complete() ? not_finite(strand) : Status();
}

void ModelDrafter::take_q(const Sequence& s, Strand& strand, size_t run, size_t token) {
  QRow& q = strand.q.emplace_back(storage_.take_row());
  if (!runs_[run].q_stays) return runner_->read_q(run, token, q);
  const DeviceRow row = runner_->device_row(run, token);
  q.ids.clear();
  q.weights.clear();
  q.sum = row.sum;
  q.rest = q.id_end = 0;
  options_.rows->keep(s.job->propose.sequence, strand.key.round, strand.q.size() - 1, row);
}

// A round that just began reads its text up to the first token.
void ModelDrafter::share_time(int64_t total_ns) {
  const auto parts = static_cast<int64_t>(run_parts_.size());
  const auto drawing =
      std::count_if(runs_.begin(), runs_.end(), [](const TokenRun& r) { return r.count > 1; });
  const int64_t first_ns = drawing > 0 ? std::min(runner_->first_ns(), total_ns) : total_ns;
  int32_t steps = 1;
  for (size_t i = 0; i < run_parts_.size(); ++i) {
    if (run_parts_[i].failed) continue;
    Job& job = *run_parts_[i].sequence->job;
    (run_parts_[i].drafts_on ? job.draft_ns : job.ingest_ns) += first_ns / parts;
    if (runs_[i].count > 1) job.draft_ns += (total_ns - first_ns) / drawing;
    steps = std::max(steps, static_cast<int32_t>(runner_->tokens(i).size()));
  }
  const bool one_each =
      std::all_of(runs_.begin(), runs_.end(), [](const TokenRun& run) { return run.inputs.size() == 1; });
  if (one_each) policy_.pass_took(parts, total_ns / steps);
}

// Keeps of a preparing pass the branches the device can extend. False: blocks are to be read first, whose
// guesses the host makes, or these branches are the host's.
bool ModelDrafter::collect_branch_runs() {
  const auto reads = [](const PreparationPart& part) { return part.branch == kReadBlock; };
  if (std::any_of(parts_.begin(), parts_.end(), reads)) {
    std::erase_if(parts_, std::not_fn(reads));
    return false;
  }
  runs_.clear();
  for (const PreparationPart& part : parts_) {
    const BatchSlice slice = slice_of(part);
    const Sequence& s = *part.sequence;
    const Strand& strand = s.block->branches[static_cast<size_t>(part.branch)].strand;
    runs_.push_back(
        {.sequence = slice.sequence, .inputs = slice.tokens, .first = next_step(s, strand), .count = 1});
  }
  while (!runs_.empty() && !runner_->takes(runs_)) runs_.pop_back();  // the likeliest are in front
  if (runs_.empty()) return false;
  parts_.resize(runs_.size());
  return true;
}

Status ModelDrafter::run_branches() {
  RETURN_IF_ERROR(runner_->run(runs_, false));
  for (size_t i = 0; i < parts_.size(); ++i) {
    Sequence& s = *parts_[i].sequence;
    Strand& strand = s.block->branches[static_cast<size_t>(parts_[i].branch)].strand;
    if (runner_->failed(i)) {
      strand.cut(0);  // it will fail when it is asked for
      continue;
    }
    add_token(s, strand, runner_->tokens(i)[0], {});
    if (strand.key.q_kind != QKind::kNone) runner_->read_q(i, 0, strand.q.emplace_back(storage_.take_row()));
  }
  return {};
}

}  // namespace outrider
