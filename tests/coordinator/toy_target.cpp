#include "toy_target.h"

#include "base/hash.h"
#include "toy_model.h"

namespace outrider {

ModelInfo toy_info() {
  return {
      .name = "toy", .vocab_size = kToyVocab, .vocabulary_fingerprint = 7, .max_context = 96, .isa = "none"};
}

void ToyTarget::check(bool condition, const char* what) {
  if (!condition && error_.empty()) error_ = what;
}

StepResult ToyTarget::handle(const StepPlan& plan, const std::set<SequenceId>& lost) {
  check(plan.step == next_step_++, "steps must count up");
  uint64_t hash = 0;
  for (const auto& [id, held] : sequences_)
    hash += state_hash_term(id, static_cast<int64_t>(held.ids.size()), held.kv_length, held.epoch);
  check(hash == plan.state_hash, "state hash");
  for (const SequenceId id : plan.closes) check(sequences_.erase(id) == 1, "closed what was not open");
  for (const Open& open : plan.opens) {
    check(open.prompt_length == static_cast<int32_t>(open.ids.size()), "opened with generated tokens");
    check(sequences_.emplace(open.sequence, Held{.ids = open.ids, .epoch = {}, .sampling = open.sampling})
              .second,
          "opened twice");
  }
  StepResult result{.step = plan.step, .verdicts = {}, .forward_ns = 1000, .verify_ns = 100, .commit_ns = 10};
  std::set<SequenceId> seen;
  int32_t rows = 0;
  for (const PlanEntry& entry : plan.entries) {
    check(seen.insert(entry.sequence).second, "two entries of one sequence");
    rows += entry.input_count + static_cast<int32_t>(entry.draft.size());
    if (sequences_.contains(entry.sequence))
      handle_entry(entry, lost.contains(entry.sequence), &result);
    else
      check(false, "entry of an unknown sequence");
  }
  check(rows <= max_rows_, "too many rows");
  return result;
}

void ToyTarget::handle_entry(const PlanEntry& entry, bool lost, StepResult* result) {
  Held& held = sequences_.at(entry.sequence);
  const auto committed = static_cast<int32_t>(held.ids.size());
  check(entry.epoch == held.epoch, "epoch");
  check(entry.base == Position(committed), "base");
  check(entry.first_input == Position(held.kv_length), "first input");
  check(entry.input_count > 0 && held.kv_length + entry.input_count <= committed, "input count");
  if (held.kv_length + entry.input_count < committed) {
    check(entry.draft.empty(), "draft in a prefill chunk");
    held.kv_length += entry.input_count;
    return;
  }
  check(int64_t{entry.round.value()} > held.last_round, "a round number came twice");
  held.last_round = entry.round.value();
  check(entry.base.value() + static_cast<int32_t>(entry.draft.size()) < toy_info().max_context,
        "no room for the draft");
  const bool has_q = needs_q(held.sampling.rule) && entry.q_kind != QKind::kSlices;
  check(entry.q.size() == (has_q ? entry.draft.size() : 0), "q rows");
  const auto gamma = lost ? 0 : static_cast<int32_t>(entry.draft.size());
  if (random && std::uniform_real_distribution<>()(*random) < nonfinite_chance) {
    result->verdicts.push_back({.sequence = entry.sequence,
                                .epoch = entry.epoch,
                                .round = entry.round,
                                .base = entry.base,
                                .status = VerdictStatus::kNonFinite,
                                .next = {},
                                .logprobs = {}});
    return;
  }
  check(check_tree(entry.tree(), {}).ok(), "the draft is no tree");
  std::vector<int32_t> path;
  for (int32_t node = kTreeRoot; gamma > 0; path.push_back(node)) {
    node = child_with(entry.tree(), node, toy_next(held.ids));
    if (node == kTreeRoot) break;
    held.ids.push_back(entry.tree().id(node));
  }
  const auto accepted = static_cast<int32_t>(path.size());
  if (entry.parents.empty() || lost) path.clear();
  held.ids.push_back(toy_next(held.ids));
  held.kv_length = static_cast<int32_t>(held.ids.size()) - 1;
  if (accepted < gamma) ++held.epoch;
  result->verdicts.push_back({.sequence = entry.sequence,
                              .epoch = entry.epoch,
                              .round = entry.round,
                              .base = entry.base,
                              .draft_lost = lost,
                              .accepted_count = accepted,
                              .path = path,
                              .next = held.ids.back(),
                              .logprobs = {}});
}

}  // namespace outrider
