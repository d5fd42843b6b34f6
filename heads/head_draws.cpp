#include "heads/head_draws.h"

#include <algorithm>
#include <limits>
#include <utility>

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
  if (base > 0 && base < task.committed.size())
    tree.growth.observe(task.committed.subspan(base), confidence_[static_cast<size_t>(task.sampling->rule)]);
  tree.growth.begin(*task.tree, depth);
}

void HeadDraws::look_behind(const HeadTask& task, int32_t node, std::span<const float> logits,
                            HeadTree& tree) {
  TreeGrowth& growth = tree.growth;
  spread(logits);
  growth.path(node, path_);
  const Position position = Position(static_cast<int32_t>(task.committed.size())) + growth.depth(node);
  const bool is_finite =
      sampler_
          .process(logits_,
                   {.sampling = task.sampling, .counts = task.counts, .drafted = path_, .position = position})
          .has_value();
  const auto found = static_cast<int32_t>(growth.found());
  growth.add(node,
             is_finite ? guesser_.best(logits_, *task.sampling, position, growth.wanted(node))
                       : std::span<const RankedToken>(),
             confidence_[static_cast<size_t>(task.sampling->rule)]);
  for (int32_t i = found; i < static_cast<int32_t>(growth.found()); ++i)
    if (ends(growth.token(i))) growth.end_at(i);
}

void HeadDraws::take_tree(const HeadTree& tree, HeadDraft& draft) {
  DraftTree grown = tree.growth.take();
  draft.ids.swap(grown.ids);
  draft.parents.swap(grown.parents);
}

}  // namespace outrider
