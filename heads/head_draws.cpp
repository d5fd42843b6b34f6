#include "heads/head_draws.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/draft_tree.h"
#include "base/random.h"
#include "heads/stop_rule.h"
#include "transformer/sampling/confidence.h"
#include "transformer/sampling/penalties.h"

namespace outrider {

HeadDraws::HeadDraws(int64_t vocab_size, std::span<const TokenId> target_ids, std::vector<TokenId> eos_ids)
    : target_ids_(target_ids),
      eos_ids_(std::move(eos_ids)),
      single_(make_single_collectives()),
      sampler_(*single_),
      logits_(static_cast<size_t>(vocab_size)) {}

// Tokens that the head does not know are impossible, and everything else is as in any draft: noise is that of
// the target's ids.
void HeadDraws::spread(std::span<const float> logits) {
  if (target_ids_.empty()) {
    std::copy(logits.begin(), logits.end(), logits_.begin());
  } else {
    std::fill(logits_.begin(), logits_.end(), -std::numeric_limits<float>::infinity());
    for (size_t i = 0; i < target_ids_.size(); ++i)
      logits_[static_cast<size_t>(target_ids_[i].value())] = logits[i];
  }
}

bool HeadDraws::ends(TokenId id) const {
  return std::find(eos_ids_.begin(), eos_ids_.end(), id) != eos_ids_.end();
}

HeadDraws::HeadDraws(const Head& head, std::vector<TokenId> eos_ids)
    : HeadDraws(head.vocab_size(), head.target_ids(), std::move(eos_ids)) {
  compute_ = &head.compute();
  device_sampler_ = compute_->sampler({.rows = head.options().max_sequences,
                                       .vocab_size = head.vocab_size(),
                                       .target_ids = target_ids_,
                                       .counted = head.options().kv_tokens});
}

DraftStep HeadDraws::step_of(const HeadTask& task, const HeadDraft& draft) const {
  return {.sampling = task.sampling,
          .counts = task.counts,
          .drafted = draft.ids,
          .position = Position(static_cast<int32_t>(task.committed.size() + draft.ids.size())),
          .round = task.round,
          .row_bytes = task.row_bytes};
}

void HeadDraws::draw(std::span<Chain> chains, FloatRows logits) {
  if (chains.empty()) return;
  asked_.clear();
  bool measures = false;
  for (const Chain& chain : chains) {
    asked_.push_back({chain.row, step_of(*chain.task, *chain.draft)});
    measures |= chain.task->stop.kind != StopKind::kNone;
  }
  if (device_sampler_ && device_sampler_->draw(logits, asked_, measures)) {
    for (size_t i = 0; i < chains.size(); ++i) {
      const auto& [task, draft, row, goes_on] = chains[i];
      const auto token = device_sampler_->token(i);
      if (needs_q(effective_rule(*task->sampling))) {
        QRow& q = draft->q.emplace_back();
        if (token) device_sampler_->read_q(i, q);
      }
      const bool is_measured = token && task->stop.kind != StopKind::kNone;
      chains[i].goes_on =
          take(*task, token, is_measured ? device_sampler_->confidence(i) : DraftConfidence(), *draft);
    }
    return;
  }
  const FloatRows here = compute_->fetch(logits);
  for (Chain& chain : chains) chain.goes_on = draw(*chain.task, here.row(chain.row), *chain.draft);
}

bool HeadDraws::draw(const HeadTask& task, std::span<const float> logits, HeadDraft& draft) {
  spread(logits);
  QRow* const q = needs_q(effective_rule(*task.sampling)) ? &draft.q.emplace_back() : nullptr;
  const auto token = sampler_.sample(logits_, step_of(task, draft), q);
  DraftConfidence confidence;
  if (token && task.stop.kind != StopKind::kNone) confidence = confidence_of(logits_, *token);
  return take(task, token, confidence, draft);
}

bool HeadDraws::take(const HeadTask& task, std::optional<TokenId> token, const DraftConfidence& confidence,
                     HeadDraft& draft) const {
  const auto drafted = static_cast<int32_t>(draft.ids.size());
  // A draw is a function of its key: to forget it and not to have drawn are the same.
  if (!token || (drafted > 0 && stops_before(task.stop, confidence.entropy))) {
    if (needs_q(effective_rule(*task.sampling))) draft.q.pop_back();
    return false;
  }
  draft.ids.push_back(*token);
  draft.eos = ends(*token);
  return !draft.eos && drafted + 1 < task.gamma && !stops_after(task.stop, confidence.probability);
}

void HeadDraws::begin_tree(const HeadTask& task, int32_t depth, HeadTree& tree) {
  const size_t base = std::exchange(tree.base, task.committed.size());
  tree.q_of.clear();
  if (base > 0 && base < task.committed.size() && !needs_q(effective_rule(*task.sampling)))
    tree.growth.observe(task.committed.subspan(base), confidence_[static_cast<size_t>(task.sampling->rule)]);
  tree.growth.begin(*task.tree, depth);
}

void HeadDraws::look_behind(const HeadTask& task, int32_t node, std::span<const float> logits,
                            HeadTree& tree) {
  TreeGrowth& growth = tree.growth;
  spread(logits);
  growth.path(node, path_);
  const Position position = Position(static_cast<int32_t>(task.committed.size())) + growth.depth(node);
  const DraftStep step{.sampling = task.sampling,
                       .counts = task.counts,
                       .drafted = path_,
                       .position = position,
                       .round = task.round,
                       .row_bytes = task.row_bytes};
  const auto found = static_cast<int32_t>(growth.found());
  if (needs_q(effective_rule(*task.sampling)))
    draw_children(task, node, step, tree);
  else
    growth.add(node,
               sampler_.process(logits_, step)
                   ? guesser_.best(logits_, *task.sampling, position, growth.wanted(node))
                   : std::span<const RankedToken>(),
               confidence_[static_cast<size_t>(task.sampling->rule)]);
  for (int32_t i = found; i < static_cast<int32_t>(growth.found()); ++i)
    if (ends(growth.token(i))) growth.end_at(i);
}

// As a draft model draws them: each by its position and its place among the nodes of its depth.
void HeadDraws::draw_children(const HeadTask& task, int32_t node, const DraftStep& step, HeadTree& tree) {
  TreeGrowth& growth = tree.growth;
  const auto place = static_cast<size_t>(node + 1);
  tree.q_of.resize(std::max(tree.q_of.size(), place + 1));
  QRow& q = tree.q_of[place];
  drawn_.clear();
  const bool is_finite = sampler_.weigh(logits_, step, q);
  for (size_t i = 0; is_finite && i < growth.wanted(node); ++i) {
    const uint64_t bits =
        draw_u64(task.sampling->seed, Purpose::kDraft, step.position, step.round, growth.ordinal(node, i));
    const auto token = draws_without_replacement(task.sampling->rule) ? draw_token_without(q, drawn_, bits)
                                                                      : draw_token(q, bits);
    if (!token) break;
    drawn_.push_back(*token);
  }
  growth.add_drawn(node, drawn_);
}

void HeadDraws::take_tree(HeadTree& tree, HeadDraft& draft) {
  std::vector<int32_t> order;  // by node: which of those that were found
  DraftTree grown = tree.growth.take(order);
  draft.ids.swap(grown.ids);
  draft.parents.swap(grown.parents);
  if (tree.q_of.empty()) return;
  const DraftTreeView nodes(draft.ids, draft.parents);
  if (has_children(nodes, kTreeRoot)) draft.q.push_back(std::move(tree.q_of.front()));
  for (size_t i = 0; i < order.size(); ++i)
    if (has_children(nodes, static_cast<int32_t>(i)))
      draft.q.push_back(std::move(tree.q_of[static_cast<size_t>(order[i] + 1)]));
}

}  // namespace outrider
