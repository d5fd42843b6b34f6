#include "draft_worker/model/outcome_preparation.h"

#include <algorithm>
#include <functional>

#include "base/relax.h"
#include "kernels/cpu/cpu_ops.h"

namespace outrider {
namespace {

constexpr int64_t kMaxPreparedRows = 32;

}  // namespace

int64_t runs_at_a_time(int64_t sequences, int64_t outcomes) {
  return std::max(sequences, std::min(kMaxPreparedRows, sequences * outcomes));
}

int64_t kv_tokens_for_outcomes(int64_t outcomes, int64_t gamma) {
  // A branch copies the KV block it starts in, and its draft may begin anywhere in that block.
  return outcomes * (gamma + 2 * kBlockTokens);
}

void OutcomePreparation::sent(DraftedSequence& s, std::span<const TokenId> ids,
                              std::chrono::steady_clock::time_point now) {
  const Propose& propose = s.job->propose;
  SentBlock& block = s.block.emplace();
  block.key = s.job->strand.key;
  block.base = propose.base;
  block.ids.assign(ids.begin(), ids.end());
  block.pipeline = propose.pipeline;
  block.fanout = propose.fanout;
  block.gamma = propose.gamma;
  block.eos = s.job->strand.eos;
  block.prepare = propose.pipeline == Pipeline::kAuto ? state_.policy.prepare_next()
                                                      : propose.pipeline != Pipeline::kLockstep;
  block.sent_at = now;
}

// ---- after a verdict ------------------------------------------------------------------------------------

bool OutcomePreparation::resume(DraftedSequence& s, const Propose& propose) {
  state_.drop_job(s);
  if (!s.block) return false;
  const auto sent_at = s.block->sent_at;
  const bool was_prepared = s.block->prepare;
  const auto outcome = s.window.committed().subspan(static_cast<size_t>(s.block->base.value()));
  const bool is_next = observe(s, outcome);
  PreparationReport preparation{.looked_up = s.block->pipeline != Pipeline::kLockstep && propose.gamma > 0,
                                .outcomes = static_cast<int32_t>(s.block->branches.size())};
  const StrandKey key{propose.round, propose.q_kind, propose.row_bytes, propose.code_bits};
  const auto branch =
      std::find_if(s.block->branches.begin(), s.block->branches.end(), [&](const PreparedBranch& b) {
        // Match rules do not draw by round, so a draft prepared for another round is the same.
        const bool fits = is_match_rule(s.sampling.rule) || b.strand.key == key;
        return fits && b.strand.length() > 0 && b.strand.outcome_length == outcome.size() &&
               std::equal(outcome.begin(), outcome.end(), b.strand.tokens.begin());
      });
  const bool hit = branch != s.block->branches.end();
  if (hit) {
    adopt(s, *branch, propose);
    preparation.used_tokens = std::min(s.job->strand.length(), propose.gamma);
    state_.wasted_tokens += std::max(0, s.job->strand.length() - propose.gamma);
  } else {
    s.job.emplace();
  }
  preparation.hit = hit && propose.gamma > 0;
  s.job->preparation = preparation;
  if (propose.wants_guess) s.job->guess = prepared_guess(s, outcome);
  if (is_next) s.job->previous_sent_at = sent_at;
  s.job->was_prepared = was_prepared;
  drop(s);
  return hit;
}

// Whether `outcome` is the verdict on the block. There is none where rounds went on without drafts.
bool OutcomePreparation::observe(DraftedSequence& s, std::span<const TokenId> outcome) {
  const SentBlock& block = *s.block;
  const auto common = std::mismatch(block.ids.begin(), block.ids.end(), outcome.begin(), outcome.end()).first;
  const auto accepted = static_cast<size_t>(common - block.ids.begin());
  if (outcome.size() != accepted + 1) return false;
  state_.policy.verdict_took(state_.ns_since(block.sent_at));
  std::optional<int32_t> rank;
  if (accepted < block.guesses.size() && block.guesses[accepted]) {
    TokenGuesses guesses = *block.guesses[accepted];
    if (accepted < block.ids.size()) guesses.remove(block.ids[accepted]);
    rank = guesses.rank_of(outcome.back());
  }
  statistics_of(s).observe(static_cast<int32_t>(block.ids.size()), static_cast<int32_t>(accepted), rank);
  return true;
}

// The guess for the token after the block, if it was prepared and the whole block was accepted; else -1.
TokenId OutcomePreparation::prepared_guess(const DraftedSequence& s, std::span<const TokenId> outcome) {
  const SentBlock& block = *s.block;
  const bool full = outcome.size() == block.ids.size() + 1 &&
                    std::equal(block.ids.begin(), block.ids.end(), outcome.begin());
  const bool known = full && is_match_rule(s.sampling.rule) && block.guesses.size() > block.ids.size() &&
                     block.guesses.back() && !block.guesses.back()->view().empty();
  return known ? block.guesses.back()->view().front() : TokenId(-1);
}

// The branch's KV becomes the sequence's.
void OutcomePreparation::adopt(DraftedSequence& s, PreparedBranch& branch, const Propose& propose) {
  const int64_t shared = s.window.in_read(s.block->base) + branch.outcome.accepted;
  const int64_t fed = state_.model.kv().length(*branch.kv) - shared;
  s.window.kept(shared);
  s.window.fed(std::span<const TokenId>(branch.strand.tokens)
                   .subspan(static_cast<size_t>(branch.outcome.accepted), static_cast<size_t>(fed)));
  state_.model.kv().release(s.kv);
  s.kv = *branch.kv;
  branch.kv.reset();
  DraftJob& job = s.job.emplace();
  job.propose = propose;
  std::swap(job.strand, branch.strand);
  job.strand.settle();
  job.strand.key.round = propose.round;
}

void OutcomePreparation::drop(DraftedSequence& s) {
  if (!s.block) return;
  for (PreparedBranch& branch : s.block->branches) {
    state_.wasted_tokens += branch.strand.length();
    state_.storage.give_back(branch.strand);
    if (branch.kv) state_.model.kv().release(*branch.kv);
  }
  s.block.reset();
}

// ---- during the verification ----------------------------------------------------------------------------

// Computes guesses only now, during the verification: one more pass over the block gives the same bits as
// token by token.
void OutcomePreparation::plan(DraftedSequence& s) {
  SentBlock& block = *s.block;
  block.planned = true;
  const auto gamma = static_cast<int32_t>(block.ids.size());
  auto& outcomes = block.outcomes;
  if (block.pipeline == Pipeline::kAhead)
    outcomes.assign(1, {.accepted = gamma, .rank = 0, .probability = 1});
  else
    statistics_of(s).pick(gamma, block.fanout, outcomes);
  // No guess after an end of sequence, and none beyond the context.
  const bool ends = block.eos || block.base.value() + gamma > state_.model.max_positions();
  std::erase_if(outcomes, [&](const Outcome& o) { return ends && o.accepted == gamma; });
  if (outcomes.empty()) return;
  const auto by_accepted = [](const Outcome& a, const Outcome& b) { return a.accepted < b.accepted; };
  const auto [first, last] = std::minmax_element(outcomes.begin(), outcomes.end(), by_accepted);
  const int32_t first_accepted = first->accepted;
  const int32_t last_accepted =
      std::min(last->accepted, first_accepted + static_cast<int32_t>(max_rows()) - 1);
  std::erase_if(outcomes, [&](const Outcome& o) { return o.accepted > last_accepted; });
  block.first_guess = static_cast<size_t>(first_accepted);
  const TokenId before = s.window.committed()[static_cast<size_t>(block.base.value()) - 1];
  for (int32_t i = first_accepted; i <= last_accepted; ++i)
    block.inputs.push_back(i == 0 ? before : block.ids[static_cast<size_t>(i) - 1]);
}

void OutcomePreparation::add_branch(DraftedSequence& s, const Outcome& outcome) {
  SentBlock& block = *s.block;
  const auto accepted = static_cast<size_t>(outcome.accepted);
  if (!block.guesses[accepted]) return;
  TokenGuesses guesses = *block.guesses[accepted];
  if (accepted < block.ids.size()) guesses.remove(block.ids[accepted]);
  if (outcome.rank >= guesses.count) return;
  const TokenId next = guesses.ids[static_cast<size_t>(outcome.rank)];
  if (state_.is_end(next)) return;
  const Position base = block.base + outcome.accepted + 1;
  const int64_t room = state_.room_behind(s, base);
  if (room <= 0) return;
  Strand strand = state_.storage.take_strand();
  strand.key = block.key;
  strand.key.round = block.key.round + 1;
  strand.base = base;
  strand.tokens.assign(block.ids.begin(), block.ids.begin() + outcome.accepted);
  strand.tokens.push_back(next);
  strand.outcome_length = accepted + 1;
  strand.limit = static_cast<int32_t>(std::min<int64_t>(room, block.gamma));
  block.branches.push_back({.outcome = outcome, .strand = std::move(strand), .kv = {}});
}

int64_t OutcomePreparation::max_rows() const {
  return std::min({kMaxPreparedRows, state_.model.max_rows(), state_.model.max_logit_rows()});
}

void OutcomePreparation::add_part(double probability, DraftedSequence& s, int32_t branch, int32_t rows) {
  parts_.push_back({.probability = probability,
                    .order = static_cast<int32_t>(parts_.size()),
                    .sequence = &s,
                    .branch = branch,
                    .rows = rows});
}

// Collects blocks to compute, and the next token of every unfinished branch; the likeliest first.
void OutcomePreparation::collect_parts() {
  parts_.clear();
  for (auto& [id, s] : state_.sequences) {
    if (s.job || !s.block || !s.block->prepare) continue;
    if (!s.block->planned) plan(s);
    SentBlock& block = *s.block;
    if (!block.outcomes.empty()) {
      double probability = 0;
      for (const Outcome& outcome : block.outcomes) probability += outcome.probability;
      add_part(probability, s, kReadBlock, static_cast<int32_t>(block.inputs.size()));
    }
    for (size_t i = 0; i < block.branches.size(); ++i)
      if (!block.branches[i].strand.complete())
        add_part(block.branches[i].outcome.probability, s, static_cast<int32_t>(i), 1);
  }
  std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.order < b.order;
  });
  int64_t rows = 0;
  const auto has_no_room = [&](const Part& part) { return (rows += part.rows) > max_rows(); };
  parts_.erase(std::find_if(parts_.begin(), parts_.end(), has_no_room), parts_.end());
  limit_parts();
}

// Under `auto` a pass takes only rows that pay now.
void OutcomePreparation::limit_parts() {
  const auto is_auto = [](const Part& part) { return part.sequence->block->pipeline == Pipeline::kAuto; };
  if (parts_.empty() || !std::all_of(parts_.begin(), parts_.end(), is_auto)) return;
  probabilities_.clear();
  int64_t waited_ns = 0;
  for (const Part& part : parts_) {
    probabilities_.push_back(part.probability);
    waited_ns = std::max(waited_ns, state_.ns_since(part.sequence->block->sent_at));
  }
  parts_.resize(state_.policy.rows_worth(probabilities_, waited_ns));
}

bool OutcomePreparation::prepare() {
  collect_parts();
  if (parts_.empty()) return awaits_verdict();
  const auto start = state_.options.now();
  if (!extend_parts().ok() && !state_.texts.forget_one() && !give_up_branches())
    for (const Part& part : parts_) drop(*part.sequence);
  state_.prepare_ns += state_.ns_since(start);
  return true;
}

// True if no work pays, but a verdict is due: the worker then polls for it rather than sleep.
bool OutcomePreparation::awaits_verdict() const {
  const bool due = std::any_of(state_.sequences.begin(), state_.sequences.end(), [&](const auto& item) {
    const auto& block = item.second.block;
    return block && block->pipeline != Pipeline::kLockstep &&
           state_.policy.verdict_is_due(state_.ns_since(block->sent_at));
  });
  if (due) relax();
  return due;
}

BatchSlice OutcomePreparation::slice_of(const Part& part) {
  DraftedSequence& s = *part.sequence;
  SentBlock& block = *s.block;
  if (part.branch == kReadBlock) {
    state_.roll_back(s, s.window.in_read(block.base) + static_cast<int64_t>(block.first_guess) - 1);
    return {.sequence = s.kv,
            .tokens = block.inputs,
            .logit_rows = part.rows,
            .hidden_only = block.key.q_kind == QKind::kHidden};
  }
  PreparedBranch& branch = block.branches[static_cast<size_t>(part.branch)];
  if (!branch.kv) {
    branch.kv = state_.model.kv().fork(s.kv);
    state_.model.kv().truncate(*branch.kv, s.window.in_read(block.base) + branch.outcome.accepted);
  }
  return {.sequence = *branch.kv,
          .tokens = std::span(branch.strand.tokens).last(1),
          .logit_rows = 1,
          .hidden_only = block.key.q_kind == QKind::kHidden};
}

Status OutcomePreparation::extend_parts() {
  if (runs_ && collect_runs()) return run_branches();
  slices_.clear();
  for (const Part& part : parts_) slices_.push_back(slice_of(part));
  RETURN_IF_ERROR(drawing_.run(slices_));
  take_parts();
  return {};
}

void OutcomePreparation::take_parts() {
  int64_t row = 0;
  for (const Part& part : parts_) {
    DraftedSequence& s = *part.sequence;
    if (part.branch == kReadBlock) {
      s.window.fed(s.block->inputs);
      take_guesses(s, row);
    } else if (Strand& strand = strand_of(part); !drawing_.draw(s, strand, row).ok()) {
      strand.cut(0);  // the branch will fail if it is used
    }
    row += part.rows;
  }
}

// Keeps the branches of a preparing pass that the device can extend. False: blocks must be computed first,
// for the host's guesses, or these branches run on the host.
bool OutcomePreparation::collect_runs() {
  const auto reads = [](const Part& part) { return part.branch == kReadBlock; };
  if (std::any_of(parts_.begin(), parts_.end(), reads)) {
    std::erase_if(parts_, std::not_fn(reads));
    return false;
  }
  runs_->begin_branches();
  for (const Part& part : parts_) {
    const BatchSlice slice = slice_of(part);
    runs_->add_branch(*part.sequence, strand_of(part), slice);
  }
  const size_t fitting = runs_->fit_branches();  // the likeliest come first
  if (fitting == 0) return false;
  parts_.resize(fitting);
  return true;
}

Status OutcomePreparation::run_branches() {
  RETURN_IF_ERROR(runs_->run_branches());
  for (size_t i = 0; i < parts_.size(); ++i) runs_->take_branch(*parts_[i].sequence, strand_of(parts_[i]), i);
  return {};
}

// Takes guesses from the rows of the block's inputs. A row that is not finite ends them: the round will fail,
// too.
void OutcomePreparation::take_guesses(DraftedSequence& s, int64_t row) {
  SentBlock& block = *s.block;
  outcomes_.swap(block.outcomes);
  block.outcomes.clear();
  block.guesses.resize(block.ids.size() + 1);
  for (size_t i = block.first_guess; i < block.first_guess + block.inputs.size(); ++i) {
    const DraftStep step{.sampling = &s.sampling,
                         .counts = &s.counts,
                         .drafted = std::span(block.ids).first(i),
                         .position = block.base + static_cast<int32_t>(i),
                         .round = block.key.round,
                         .row_bytes = 0};
    const bool draws_bonus = i == block.ids.size() && block.key.q_kind != QKind::kNone;
    const auto guesses = drawing_.guesses(s, block.key, step, row++, draws_bonus);
    if (!guesses) return;
    block.guesses[i] = guesses;
  }
  for (const Outcome& outcome : outcomes_) add_branch(s, outcome);
}

bool OutcomePreparation::give_up_branches() {
  bool gave_up = trees_.give_up();
  for (auto& [id, s] : state_.sequences) {
    if (!s.block) continue;
    for (const PreparedBranch& branch : s.block->branches) gave_up |= branch.kv.has_value();
    drop(s);
  }
  return gave_up;
}

}  // namespace outrider
