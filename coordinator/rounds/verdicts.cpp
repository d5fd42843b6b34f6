#include "coordinator/rounds/verdicts.h"

#include <algorithm>
#include <limits>

namespace outrider {

namespace {

// min_tokens as SamplingParams counts it, from the beginning of the prompt.
int32_t least_tokens(const Request& request, int32_t prompt_length) {
  return std::max(0, request.sampling.ends_from - prompt_length);
}

TokenId accepted_token(const Draft& draft, const Verdict& verdict, size_t i) {
  return draft.ids[verdict.path.empty() ? i : static_cast<size_t>(verdict.path[i])];
}

}  // namespace

// ---- what the target may answer -------------------------------------------------------------------------

Status Verdicts::check(const PositionLogprobs& at, TokenId token, int32_t most) const {
  const int32_t vocab_size = target_.model().vocab_size;
  const auto is_bad = [&](const TokenLogprob& t) {
    return t.id.value() < 0 || t.id.value() >= vocab_size || t.logprob > std::numeric_limits<float>::max();
  };
  if (at.chosen.id != token || is_bad(at.chosen) || std::any_of(at.top.begin(), at.top.end(), is_bad) ||
      at.top.size() > static_cast<size_t>(most))
    return malformed(fmt::format("brings logprobs of token {} and {} others that cannot be of token {}",
                                 at.chosen.id.value(), at.top.size(), token.value()));
  return {};
}

Status Verdicts::check(const LiveRequest& live, const Verdict& verdict) const {
  const RoundInFlight& round = live.round;
  if (verdict.sequence != live.id() || verdict.epoch != live.sequence.target.epoch ||
      verdict.round != round.number || verdict.base != Position(live.sequence.target.committed))
    return malformed("names another round");
  if (verdict.status != VerdictStatus::kOk) return {};
  const int32_t tested = verdict.draft_lost ? 0 : round.drafted();
  if (verdict.accepted_count < 0 || verdict.accepted_count > tested)
    return malformed(fmt::format("accepts {} of {} tokens", verdict.accepted_count, round.drafted()));
  const bool is_tree = !round.draft.parents.empty() && !verdict.draft_lost;
  if (verdict.path.size() != (is_tree ? static_cast<size_t>(verdict.accepted_count) : 0) ||
      !is_path(round.draft.tree(), verdict.path))
    return malformed(fmt::format("accepts {} nodes that are no path of the draft", verdict.path.size()));
  if (verdict.next.value() < 0 || verdict.next.value() >= target_.model().vocab_size)
    return malformed(fmt::format("next token {} is outside the vocabulary", verdict.next.value()));
  const size_t wanted =
      live.request.sampling.logprobs >= 0 ? static_cast<size_t>(verdict.accepted_count) + 1 : 0;
  if (verdict.logprobs.size() != wanted)
    return malformed(fmt::format("brings {} logprobs instead of {}", verdict.logprobs.size(), wanted));
  const int32_t ranked = round.ranks_rows ? (tested + 1) * kSuccessors : 0;
  const auto is_outside = [&](TokenId id) {
    return id.value() < -1 || id.value() >= target_.model().vocab_size;
  };
  if (verdict.successors.size() != static_cast<size_t>(ranked) ||
      std::any_of(verdict.successors.begin(), verdict.successors.end(), is_outside))
    return malformed(fmt::format("brings {} successors instead of {}, or some outside the vocabulary",
                                 verdict.successors.size(), ranked));
  for (size_t i = 0; i < wanted; ++i) {
    const auto accepted = static_cast<size_t>(verdict.accepted_count);
    const TokenId token = i < accepted ? accepted_token(round.draft, verdict, i) : verdict.next;
    RETURN_IF_ERROR(check(verdict.logprobs[i], token, live.request.sampling.logprobs));
  }
  return {};
}

Status Verdicts::check(const PlannedEntry& entry, const PromptScores& scores) const {
  const LiveRequest& live = *entry.live;
  if (scores.sequence != live.id() || scores.logprobs.size() != static_cast<size_t>(entry.scored))
    return malformed(
        fmt::format("brings {} logprobs of the prompt instead of {}", scores.logprobs.size(), entry.scored));
  const auto tokens = live.sequence.ids_from(entry.first_scored);
  for (size_t i = 0; i < scores.logprobs.size(); ++i)
    RETURN_IF_ERROR(check(scores.logprobs[i], tokens[i], live.request.prompt_logprobs));
  return {};
}

Status Verdicts::check(const StepResult& result, const OutstandingPlan& plan) const {
  if (result.step > plan.step) return malformed("it was never planned");
  size_t at = 0, scored = 0;
  for (const PlannedEntry& entry : plan.entries) {
    if (entry.scored >= 0) {
      if (scored == result.scores.size()) return malformed("logprobs of a prompt are missing");
      RETURN_IF_ERROR(check(entry, result.scores[scored++])
                          .in(fmt::format("prompt of request {}", entry.live->id().value())));
    }
    if (!entry.sampling) continue;
    if (at == result.verdicts.size()) return malformed("verdicts are missing");
    RETURN_IF_ERROR(check(*entry.live, result.verdicts[at])
                        .in(fmt::format("verdict of request {}", entry.live->id().value())));
    ++at;
  }
  if (scored != result.scores.size())
    return malformed("there are logprobs of a prompt that were not asked for");
  return at == result.verdicts.size() ? Status() : malformed("there are too many verdicts");
}

// ---- one verdict ----------------------------------------------------------------------------------------

// A finished request (cancelled during its pass) only tracks the target's state until it is closed there.
std::optional<Verdicts::End> Verdicts::apply(const PlannedEntry& entry, Verdict& verdict,
                                             const StepResult& result, int32_t batch_size, bool prefills,
                                             Turn& turn) {
  LiveRequest& live = *entry.live;
  if (verdict.status == VerdictStatus::kNonFinite) {  // the pass is undone: C, kv and epoch stay
    ++totals_.nonfinite_verdicts;
    if (live.finished()) return std::nullopt;
    if (live.constraint && !live.constraint->status().ok())
      return End{FinishReason::kError, live.constraint->status()};
    // If the request's min_tokens also forbids tokens here, the request is at fault; otherwise the model is
    // (non-finite logits). Retrying cannot help in either case.
    const SamplingParams& asked = live.request.sampling;
    const bool forbids = !asked.ends.empty() && verdict.base.value() < asked.ends_from;
    if (live.constraint && forbids && !live.round.masks.masks.empty() &&
        live.round.masks.masks.front().row == 0)
      return End{FinishReason::kError,
                 invalid_argument(fmt::format("at position {} no token that the grammar allows may be drawn: "
                                              "\"min_tokens\" forbids all of them, or logits are not finite",
                                              verdict.base.value()))};
    return End{FinishReason::kError,
               malformed(fmt::format("the target model gave non-finite logits at position {}",
                                     verdict.base.value()))};
  }
  if (verdict.draft_lost) lose_draft(live, verdict.link_lost);
  live.sequence.target_verified(live.round.drafted(), verdict.accepted_count);
  if (live.finished()) return std::nullopt;
  note_successors(live, verdict);
  const int32_t emitted_before = live.sequence.emitted();
  auto end = commit(live, verdict, turn);
  const int32_t emitted = live.sequence.emitted() - emitted_before;
  if (!entry.first) teach(live, verdict, emitted, batch_size, turn.now());
  probe_drafts_.compare(live);
  record(entry, verdict, emitted, result, prefills, turn);
  if (end) return end;
  CHECK(live.sequence.committed() == live.sequence.target.committed, "C={} but the target holds {}",
        live.sequence.committed(), live.sequence.target.committed);
  live.become(RequestState::kIdle);
  return std::nullopt;
}

// Successors wait for the next Propose to the sequence's worker; the newest ones are kept.
void Verdicts::note_successors(LiveRequest& live, const Verdict& verdict) {
  if (verdict.successors.empty()) return;
  TokenSuccessors& kept = live.link.successors;
  kept.tokens.push_back(live.sequence.ids().back());
  kept.tokens.insert(kept.tokens.end(), live.round.draft.ids.begin(), live.round.draft.ids.end());
  kept.best.insert(kept.best.end(), verdict.successors.begin(), verdict.successors.end());
  totals_.ranked_rows += live.round.drafted() + 1;
  const auto surplus = static_cast<ptrdiff_t>(kept.tokens.size()) - kMaxSuccessorRows;
  if (surplus <= 0) return;
  kept.tokens.erase(kept.tokens.begin(), kept.tokens.begin() + surplus);
  kept.best.erase(kept.best.begin(), kept.best.begin() + surplus * kSuccessors);
}

// The target verified without the draft. After a loss of slices this worker's q rows go through the
// coordinator from now on (after a loss between devices: over its sockets). After bad hidden states the
// worker is not asked for them again. The sequence may have another worker by now.
void Verdicts::lose_draft(LiveRequest& live, bool link_lost) {
  const bool hidden = live.round.draft.q_kind == QKind::kHidden;
  totals_.drafts_used -= live.round.has_draft;
  totals_.drop(hidden ? DropReason::kBadQ : DropReason::kSliceMissing);
  live.round.has_draft = false;
  live.round.draft.ids.clear();
  live.round.draft.parents.clear();
  if (!hidden && link_lost) return;
  pool_.for_each_of(live.round.worker, [hidden](PoolWorker& worker) {
    if (hidden)
      worker.lose_head();
    else
      worker.lose_slices();
  });
}

// Appends accepted tokens and `next` in order, up to the first one that ends the request. Later tokens are
// dropped.
std::optional<Verdicts::End> Verdicts::commit(LiveRequest& live, Verdict& verdict, Turn& turn) {
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < static_cast<size_t>(verdict.accepted_count); ++i)
    tokens.push_back(accepted_token(live.round.draft, verdict, i));
  tokens.push_back(verdict.next);
  if (verdict.accepted_count < live.round.drafted()) live.sequence.bump_epoch();
  Emit emit{.request = live.id(), .ids = {}, .logprobs = {}, .text = {}};
  std::optional<End> end;
  for (size_t i = 0; i < tokens.size() && !end; ++i) {
    if (live.constraint && !live.constraint->commit(tokens[i])) {
      end = End{FinishReason::kError, live.constraint->status()};
      break;
    }
    live.sequence.append(tokens[i]);
    emit.ids.push_back(tokens[i]);
    if (!verdict.logprobs.empty()) emit.logprobs.push_back(std::move(verdict.logprobs[i]));
    if (ends_request(live, tokens[i])) {  // the token is not part of the text
      end = End{FinishReason::kStop, {}};
      break;
    }
    if (live.text)
      emit.text += live.text->append(
          tokens[i], live.sequence.emitted() > least_tokens(live.request, live.sequence.prompt_length()));
    end = end_behind(live);
  }
  if (end && live.text && !live.text->stopped()) emit.text += live.text->flush();
  live.metrics.tokens_emitted(static_cast<int32_t>(emit.ids.size()), turn.now());
  turn.add(std::move(emit));
  return end;
}

bool Verdicts::ends_text(TokenId id) const {
  return std::find(options_.eos_ids.begin(), options_.eos_ids.end(), id) != options_.eos_ids.end();
}

bool Verdicts::ends_request(const LiveRequest& live, TokenId id) const {
  const auto& stop_ids = live.request.stop_ids;
  return (!live.request.ignore_eos && ends_text(id)) ||
         std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end();
}

// The end after a token that does not end the text by itself.
std::optional<Verdicts::End> Verdicts::end_behind(const LiveRequest& live) const {
  const int32_t emitted = live.sequence.emitted();
  if (live.text && live.text->stopped()) return End{FinishReason::kStop, {}};
  if (live.constraint && live.constraint->is_over()) {
    const int32_t least = least_tokens(live.request, live.sequence.prompt_length());
    if (emitted >= least) return End{FinishReason::kStop, {}};
    return End{
        FinishReason::kError,
        invalid_argument(fmt::format(
            "\"min_tokens\" {}: nothing can follow the text that its form allows, which ends after {} tokens",
            least, emitted))};
  }
  if (emitted >= live.request.max_tokens) return End{FinishReason::kLength, {}};
  if (live.sequence.committed() >= target_.max_context()) return End{FinishReason::kLength, {}};
  return std::nullopt;
}

// ---- what is learnt -------------------------------------------------------------------------------------

void Verdicts::learn_pass(const StepResult& result, const OutstandingPlan& plan, Clock::time_point now) {
  if (plan.entries.empty()) return;
  target_.times.observe_step(now - plan.sent_at, plan.rows, plan.prefills);
  const double drafting = static_cast<double>(reported_ns(result.draft_ns)) * 1e-9;
  target_.place.pass_over(drafting);
  const double all = std::chrono::duration<double>(now - plan.sent_at).count();
  target_.costs.pass_over(all);
  if (!plan.prefills) {
    const bool beside_probe_draft = std::any_of(
        plan.entries.begin(), plan.entries.end(),
        [](const auto& entry) { return entry.live->link.probe_draft && !entry.live->link.probe_draft->ids; });
    target_.costs.observe_verify(plan.rows, plan.context, std::max(0.0, all - drafting), beside_probe_draft);
    learn_own_drafts(result, drafting);
  }
  totals_.forward_ns += reported_ns(result.forward_ns);
  totals_.verify_ns += reported_ns(result.verify_ns);
  totals_.commit_ns += reported_ns(result.commit_ns);
}

// A target that drafts itself drafts for all sequences together.
void Verdicts::learn_own_drafts(const StepResult& result, double seconds) {
  if (!target_.drafts() || result.drafts.empty()) return;
  int32_t longest = 0, total = 0;
  for (const Draft& draft : result.drafts) {
    longest = std::max(longest, tree_depth(draft.tree()));  // passes of the drafter
    total += static_cast<int32_t>(draft.ids.size());
  }
  if (total > 0) target_.costs.observe_own(target_.own_kind(), longest, total, seconds);
}

void Verdicts::learn_round(const PlannedEntry& entry, bool prefills, Clock::time_point now) {
  const RoundInFlight& round = entry.live->round;
  if (round.drafted() > 0) target_.times.observe_round(now - round.begun_at, !prefills && !round.read_prompt);
}

// Tokens beyond the end of the request were never requested, so their tests do not count.
void Verdicts::teach(LiveRequest& live, const Verdict& verdict, int32_t emitted, int32_t batch_size,
                     Clock::time_point now) {
  const RoundInFlight& round = live.round;
  const bool is_tree = !round.draft.parents.empty();
  // Tokens that a grammar appended to a draft do not count, only the drafter's do. A draft token that the
  // grammar refused has failed its test.
  int32_t drafted = is_tree ? levels_tested(round.draft.tree(), verdict.path) : round.drafted_by_drafter();
  const int32_t accepted = std::min(verdict.accepted_count, drafted);
  const bool cut = emitted <= accepted;
  if (round.masks.refused && !cut && accepted == drafted) ++drafted;
  if (!live.round.tree.is_chain()) teach_ranks(live, verdict);
  std::span<const float> margins = round.draft.margins;
  if (is_tree || margins.size() < static_cast<size_t>(drafted)) margins = {};
  margins = margins.first(std::min(margins.size(), static_cast<size_t>(cut ? emitted : drafted)));
  // Drafts found in the text do not train the length policy, which governs the draft model's drafts only.
  const bool of_model = !round.from_text();
  live.gamma->update({.proposed = of_model ? round.asked() : 0,
                      .drafted = !of_model ? 0
                                 : cut     ? emitted
                                           : drafted,
                      .accepted = !of_model ? 0
                                  : cut     ? emitted
                                            : accepted,
                      .round_ns = std::chrono::nanoseconds(now - round.begun_at).count(),
                      .batch_size = batch_size,
                      .cost = &target_.costs.of(round.kind),
                      .margins = margins,
                      .found = round.found() && round.has_draft});
  if (round.kind == 0) return;
  if (of_model && round.has_draft && !round.own && round.gamma > 0) {
    const int32_t tested = round.found() ? std::max(1, drafted) : drafted;
    target_.costs.observe_acceptance(round.kind, cut ? emitted : tested, cut ? emitted : accepted);
  }
  if (!of_model && round.drafted() > 0) {
    ++totals_.text_rounds;
    totals_.text_drafted += round.drafted();
    totals_.text_accepted += verdict.accepted_count;
  }
  if (round.has_draft && !round.read_prompt)
    target_.trees.observe(round.tree_wanted, emitted,
                          std::chrono::duration<double>(now - round.begun_at).count());
  DrafterTotals& drafter = totals_.drafters[round.kind];
  const double seconds = std::chrono::duration<double>(now - round.begun_at).count();
  ++drafter.rounds;
  drafter.drafted += round.drafted();
  drafter.accepted += verdict.accepted_count;
  drafter.emitted += emitted;
  drafter.round_seconds += seconds;
  count_place(live);
  if (target_.has_two_places() && !round.read_prompt) target_.place.observe(!round.own, emitted, seconds);
  if (round.read_prompt) return;  // once for every sequence and drafter; no measure of later rounds
  live.choice.add(round.kind, emitted, seconds);
  pool_.add_goodput(round.kind, emitted, seconds);
}

void Verdicts::count_place(const LiveRequest& live) {
  const PoolWorker* worker = pool_.of(live);
  totals_.head_rounds_at_target += live.round.own;
  totals_.head_rounds_at_worker += !live.round.own && worker && worker->needs_hidden_states();
}

// Tokens beyond the end of a request were accepted all the same.
void Verdicts::teach_ranks(LiveRequest& live, const Verdict& verdict) {
  const Draft& draft = live.round.draft;
  std::vector<int32_t> path = verdict.path;
  if (draft.parents.empty())
    for (int32_t i = 0; i < verdict.accepted_count; ++i) path.push_back(i);
  (is_match_rule(live.request.sampling.rule) ? target_.ranks : live.ranks).observe(draft.tree(), path);
}

void Verdicts::record(const PlannedEntry& entry, const Verdict& verdict, int32_t emitted,
                      const StepResult& result, bool prefills, Turn& turn) {
  LiveRequest& live = *entry.live;
  const RoundInFlight& round = live.round;
  RoundSums sums;
  const DraftTreeView tree = round.draft.tree();
  const bool branches = !round.draft.parents.empty();
  const int32_t tested =
      branches ? levels_tested(tree, verdict.path) : std::min(round.drafted(), verdict.accepted_count + 1);
  sums.add_round(round.drafted(), verdict.accepted_count, emitted, entry.first, tested);
  if (branches) totals_.trees.add_round(tree, verdict.path);
  const PhaseTimes phases{.draft_wait = round.decided_at - round.begun_at,
                          .plan_wait = round.planned_at - round.decided_at,
                          .verify = turn.now() - round.planned_at};
  live.metrics.rounds.add(sums);
  if (round.drafted() > 0) {
    live.metrics.step_drafted.push_back(round.drafted());
    live.metrics.step_accepted.push_back(verdict.accepted_count);
  }
  live.metrics.phases.add(phases);
  if (round.has_draft)
    pool_.for_each_of(round.worker, [&](PoolWorker& worker) {
      const int32_t own = round.drafted_by_drafter();
      worker.add_verified(own, std::min(tested, own), std::min(verdict.accepted_count, own));
    });
  if (PoolWorker* worker = entry.first ? nullptr : pool_.of(live))
    worker->round_over(round.drafted() > 0 && !round.own);
  totals_.rounds.add(sums);
  totals_.phases.add(phases);
  if (!prefills) totals_.decoding.add({.rounds = 1, .emitted = emitted, .phases = phases});
  totals_.masks += round.masks.computed;
  totals_.mask_ns += round.masks.ns;
  totals_.mask_cut_tokens += round.masks.cut;
  totals_.forced_tokens += round.masks.forced;
  const TokenId guess = round.draft.guess;
  std::optional<bool> guess_was_right;
  if (guess.value() >= 0 && verdict.base.value() > live.sequence.prompt_length())
    guess_was_right = guess == live.sequence.ids()[static_cast<size_t>(verdict.base.value()) - 1];
  turn.add(RoundDone{.request = live.id(),
                     .round = round.number,
                     .base = verdict.base,
                     .group = target_.index,
                     .step = result.step,
                     .gamma = std::max(round.asked(), round.depth()),
                     .drafted = round.drafted(),
                     .tested = tested,
                     .parents = round.draft.parents,
                     .path = verdict.path,
                     .accepted_count = verdict.accepted_count,
                     .emitted = emitted,
                     .eos = round.draft.eos,
                     .own = round.own,
                     .margins = round.draft.margins,
                     .guess_was_right = guess_was_right,
                     .guess_was_eos = ends_text(guess),
                     .draft_ns = round.draft.ingest_ns + round.draft.draft_ns,
                     .prepare_ns = reported_ns(round.draft.preparation.busy_ns),
                     .target_ns = reported_ns(result.forward_ns) + reported_ns(result.verify_ns) +
                                  reported_ns(result.commit_ns),
                     .commit_ns = reported_ns(result.commit_ns),
                     .begun_at = round.begun_at,
                     .decided_at = round.decided_at,
                     .planned_at = round.planned_at,
                     .done_at = turn.now()});
}

}  // namespace outrider
