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

bool HeadDraws::draw(const HeadTask& task, std::span<const float> logits, HeadDraft& draft) {
  spread(logits);
  const bool sends_q = needs_q(effective_rule(*task.sampling));
  QRow* const q = sends_q ? &draft.q.emplace_back() : nullptr;
  const auto drafted = static_cast<int32_t>(draft.ids.size());
  const auto token =
      sampler_.sample(logits_,
                      {.sampling = task.sampling,
                       .counts = task.counts,
                       .drafted = draft.ids,
                       .position = Position(static_cast<int32_t>(task.committed.size()) + drafted),
                       .round = task.round,
                       .row_bytes = task.row_bytes},
                      q);
  DraftConfidence confidence;
  if (token && task.stop.kind != StopKind::kNone) confidence = confidence_of(logits_, *token);
  // A draw is a function of its key: to forget it and not to have drawn are the same.
  if (!token || (drafted > 0 && stops_before(task.stop, confidence.entropy))) {
    if (sends_q) draft.q.pop_back();
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
