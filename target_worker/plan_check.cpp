// Whether a plan can be carried out: a wrong one would end in a failed CHECK, or in memory that is not there.
// All ranks hold the same, so all find the same.
#include <algorithm>
#include <set>

#include "comm/message_check.h"
#include "kernels/sampling/penalties.h"
#include "target_worker/target_worker.h"

namespace outrider {

// States of sequences that are open then, and no more than a result has room for.
Status TargetWorker::check_asks(const StepPlan& plan) const {
  if (plan.hidden_states.empty()) return {};
  if (options_.hidden_state_head == 0) return malformed("asks for states, which no head here reads");
  const auto is_of = [](SequenceId id) { return [id](const auto& item) { return item.sequence == id; }; };
  std::set<SequenceId> asked;
  int64_t rows = 0;
  for (const HiddenStateRequest& ask : plan.hidden_states) {
    const bool is_closed =
        std::find(plan.closes.begin(), plan.closes.end(), ask.sequence) != plan.closes.end();
    const bool is_opened = std::any_of(plan.opens.begin(), plan.opens.end(), is_of(ask.sequence));
    if (!(is_opened || (sequences_.contains(ask.sequence) && !is_closed)) ||
        !asked.insert(ask.sequence).second)
      return malformed(
          fmt::format("asks for states of sequence {}, which is not open, or twice", ask.sequence.value()));
    rows += ask.count;
  }
  const int64_t most = kMaxHiddenStateBytes / (int64_t{options_.hidden_state_width} * 2);
  if (rows > most) return malformed(fmt::format("asks for {} rows of states; at most {}", rows, most));
  return {};
}

// Checks a plan against the sequences that are open, or that it opens.
Status TargetWorker::check_plan(const StepPlan& plan) const {
  const MessageLimits limits{.vocab_size = model_.config().vocab_size, .max_context = model_.max_positions()};
  RETURN_IF_ERROR(check(plan, limits));
  RETURN_IF_ERROR(sequences_.check_prefixes(plan));
  std::set<SequenceId> closed, opened, planned;
  for (const SequenceId id : plan.closes)
    if (!sequences_.contains(id) || !closed.insert(id).second)
      return malformed(fmt::format("closes sequence {}, which is not open", id.value()));
  for (const Open& open : plan.opens)
    if ((sequences_.contains(open.sequence) && !closed.contains(open.sequence)) ||
        !opened.insert(open.sequence).second)
      return malformed(fmt::format("opens sequence {}, which is open", open.sequence.value()));
  const size_t open = sequences_.size() - closed.size() + opened.size();
  if (open > static_cast<size_t>(options_.max_sequences))
    return malformed(fmt::format("leaves {} sequences open; planned {}", open, options_.max_sequences));
  int64_t rows = 0, logit_rows = 0;
  for (const PlanEntry& entry : plan.entries) {
    const SequenceId id = entry.sequence;
    if (!(opened.contains(id) || (sequences_.contains(id) && !closed.contains(id))) ||
        !planned.insert(id).second)
      return malformed(fmt::format("has an entry of sequence {}, which is not open, or another", id.value()));
    RETURN_IF_ERROR(check_entry(entry, plan).in(fmt::format("entry of sequence {}", id.value())));
    rows += entry.input_count + static_cast<int64_t>(entry.draft.size());
    if (entry.first_input + entry.input_count == entry.base)
      logit_rows += static_cast<int64_t>(entry.draft.size()) + 1;
    if (entry.prompt_logprobs >= 0) logit_rows += entry.input_count;
  }
  if (rows > model_.max_rows() || logit_rows > model_.max_logit_rows())
    return malformed(fmt::format("has {} rows, {} of them with logits; planned {} and {}", rows, logit_rows,
                                 model_.max_rows(), model_.max_logit_rows()));
  RETURN_IF_ERROR(check_blocks(plan));
  return check_asks(plan);
}

// Exported sequences are open before the plan, imported ones after it.
Status TargetWorker::check_blocks(const StepPlan& plan) const {
  if (!plan.exports.empty() && !options_.block_sender)
    return malformed("exports blocks, and this group does not send any");
  if (!plan.imports.empty() && !options_.block_inbox)
    return malformed("imports blocks, and this group does not take any");
  for (const BlockExport& blocks : plan.exports) {
    const int64_t there =
        sequences_.contains(blocks.sequence) ? model_.kv().length(sequences_.at(blocks.sequence).kv) : 0;
    if (int64_t{blocks.first.value()} + blocks.count > there)
      return malformed(fmt::format("exports tokens {} to {} of sequence {}, which has {}",
                                   blocks.first.value(), int64_t{blocks.first.value()} + blocks.count,
                                   blocks.sequence.value(), there));
  }
  std::set<SequenceId> busy;
  for (const PlanEntry& entry : plan.entries) busy.insert(entry.sequence);
  for (const BlockImport& blocks : plan.imports) {
    const SequenceId id = blocks.sequence;
    const auto opened = std::find_if(plan.opens.begin(), plan.opens.end(),
                                     [id](const Open& open) { return open.sequence == id; });
    const bool is_new = opened != plan.opens.end();
    const bool is_closed = std::find(plan.closes.begin(), plan.closes.end(), id) != plan.closes.end();
    if (!(is_new || (sequences_.contains(id) && !is_closed)) || !busy.insert(id).second)
      return malformed(
          fmt::format("imports blocks of sequence {}, which is not open, or has an entry", id.value()));
    const TargetSequences::Sequence* const held = is_new ? nullptr : &sequences_.at(id);
    const int64_t kv = is_new ? opened->prefix_length : model_.kv().length(held->kv);
    const auto committed = static_cast<int64_t>(is_new ? opened->ids.size() : held->ids.size());
    if (blocks.first.value() != kv || kv + blocks.count >= committed)
      return malformed(fmt::format("imports tokens {} to {} of sequence {}, which has {} of {}",
                                   blocks.first.value(), int64_t{blocks.first.value()} + blocks.count,
                                   id.value(), kv, committed));
  }
  return {};
}

Status TargetWorker::check_entry(const PlanEntry& entry, const StepPlan& plan) const {
  const auto opened = std::find_if(plan.opens.begin(), plan.opens.end(),
                                   [&](const Open& open) { return open.sequence == entry.sequence; });
  const bool is_new = opened != plan.opens.end();
  const TargetSequences::Sequence* const held = is_new ? nullptr : &sequences_.at(entry.sequence);
  const auto committed = static_cast<int64_t>(is_new ? opened->ids.size() : held->ids.size());
  const int64_t kv = is_new ? opened->prefix_length : model_.kv().length(held->kv);
  const Epoch epoch = is_new ? opened->epoch : held->epoch;
  if (entry.base.value() != committed || entry.first_input.value() != kv || entry.epoch != epoch)
    return malformed(fmt::format("base is {}, first_input {} and epoch {}, not {}, {} and {}",
                                 entry.base.value(), entry.first_input.value(), entry.epoch.value(),
                                 committed, kv, epoch.value()));
  if (entry.q_kind == QKind::kSlices && !options_.slice_inbox)
    return malformed("q_kind is slices, and there is no door");
  if (entry.q_kind == QKind::kHidden && !hidden_rows_)
    return malformed("q_kind is hidden states, and there is no head");
  const Rule rule = effective_rule(is_new ? opened->sampling : held->sampling);
  if (!entry.draft.empty() && needs_q(rule) && entry.q_kind == QKind::kNone)
    return malformed(fmt::format("q_kind is none, which the {} rule needs", rule_name(rule)));
  if (!entry.masks.empty() && !verifier_->takes_masks())
    return malformed("has masks, which made-up verdicts do not take");
  if (entry.next_gamma > 0 && options_.co_located_drafter == 0)
    return malformed(fmt::format("next_gamma is {}, and there is no drafter here", entry.next_gamma));
  const bool may_branch = is_match_rule(rule) || (is_tree_rule(rule) && entry.next_tree.nodes == 0);
  if (!entry.next_tree.is_chain() && (!options_.trees || !may_branch))
    return malformed(
        fmt::format("next_tree asks for a tree of such a shape, under the {} rule", rule_name(rule)));
  if (entry.parents.empty()) return {};
  if (!options_.trees || !(is_match_rule(rule) || is_tree_rule(rule)))
    return malformed(fmt::format("the draft is a tree, under the {} rule", rule_name(rule)));
  return check_tree(entry.tree(), {.equal_siblings = draws_independently(rule)}).in("the draft");
}

}  // namespace outrider
