#include "heads/head_draws.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/draft_tree.h"
#include "base/random.h"
#include "heads/stop_rule.h"
#include "kernels/sampling/confidence.h"
#include "kernels/sampling/penalties.h"

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
                                       .counted = head.options().kv_tokens,
                                       .looks = head.options().tree_rows()});
}

DraftStep HeadDraws::step_of(const HeadTask& task, const HeadDraft& draft) const {
  return {.sampling = task.sampling,
          .counts = task.counts,
          .drafted = draft.ids,
          .position = Position(static_cast<int32_t>(task.committed.size() + draft.ids.size())),
          .round = task.round,
          .row_bytes = task.row_bytes};
}

int32_t HeadDraws::draw(std::span<Chain> chains, FloatRows logits, Steps* steps) {
  if (chains.empty()) return 0;
  drew_there_ = false;
  ns_behind_first_ = 0;
  if (device_sampler_)
    if (const int32_t tokens = draw_there(chains, logits, steps)) return tokens;
  const FloatRows here = compute_->fetch(logits);
  for (Chain& chain : chains) chain.goes_on = draw(*chain.task, here.row(chain.row), *chain.draft);
  return 1;
}

int32_t HeadDraws::draw_there(std::span<Chain> chains, FloatRows logits, Steps* steps) {
  const int32_t most = plan(chains, steps);
  if (most == 0) return 0;
  const auto any = [&](auto of) { return std::any_of(chains.begin(), chains.end(), of); };
  const bool is_watched = any([](const Chain& c) { return may_stop(c.task->stop); });
  device_sampler_->begin(asked_, is_watched);
  queue_draw(chains, logits);
  int32_t taken = 0;
  for (int32_t number = 1; number < most; ++number) {
    if (is_watched) {
      device_sampler_->wait();
      take_drawn(chains, std::exchange(taken, number), number);
      if (!any([&](const Chain& c) { return c.goes_on && c.tokens > number; })) break;
    }
    const auto end =
        std::find_if(chains.begin(), chains.end(), [&](const Chain& c) { return c.tokens <= number; });
    queue_step(chains.first(static_cast<size_t>(end - chains.begin())), *steps);
  }
  if (taken == 0 || any([&](const Chain& c) { return c.goes_on && c.tokens > taken; })) {
    device_sampler_->wait();
    take_drawn(chains, taken, most);
  }
  drew_there_ = true;
  ns_behind_first_ = device_sampler_->ns_behind_first();
  return most;
}

void HeadDraws::record(Steps& steps, int64_t most_chains) {
  if (!device_sampler_) return;
  std::vector<Chain> chains(static_cast<size_t>(most_chains));
  const SamplingParams greedy{.rule = Rule::kGreedy, .temperature = 0};
  const HeadSampler::Row row{.first = {.sampling = &greedy}};
  device_sampler_->begin({&row, 1}, false);
  // A first launch may load code, which is nothing to be recorded.
  queue_step(std::span(chains).first(1), steps);
  device_sampler_->wait();
  recorded_.resize(chains.size() + 1);
  for (size_t count = 1; count <= chains.size(); ++count)
    recorded_[count] = compute_->record([&] {
      const auto some = std::span(chains).first(count);
      queue_draw(some, steps.next(some, *device_sampler_));
    });
}

// How many tokens each gets. 0: they are the host's.
int32_t HeadDraws::plan(std::span<Chain> chains, Steps* steps) {
  asked_.clear();
  for (Chain& chain : chains) {
    chain.goes_on = true;
    asked_.push_back({step_of(*chain.task, *chain.draft), steps ? chain.most : 1});
  }
  int32_t most = device_sampler_->most_tokens(asked_);
  const auto plan_at_most = [&](int32_t tokens) {
    most = 0;
    for (size_t i = 0; i < chains.size(); ++i) {
      chains[i].tokens = asked_[i].tokens = std::min(asked_[i].tokens, tokens);
      most = std::max(most, asked_[i].tokens);
    }
  };
  plan_at_most(most);
  if (most > 1 && !steps->begin(chains)) plan_at_most(1);
  return most;
}

void HeadDraws::queue_draw(std::span<const Chain> chains, FloatRows logits) {
  row_numbers_.clear();
  for (const Chain& chain : chains) row_numbers_.push_back(static_cast<int32_t>(chain.row));
  device_sampler_->draw(logits, row_numbers_);
}

void HeadDraws::queue_step(std::span<Chain> chains, Steps& steps) {
  if (chains.size() < recorded_.size() && recorded_[chains.size()] && device_sampler_->is_plain())
    return recorded_[chains.size()]->queue();
  queue_draw(chains, steps.next(chains, *device_sampler_));
}

// Takes tokens [first, end) of the chains that go on, as far as each chain got them.
void HeadDraws::take_drawn(std::span<Chain> chains, int32_t first, int32_t end) {
  for (size_t i = 0; i < chains.size(); ++i) {
    auto& [task, draft, row, most, tokens, goes_on] = chains[i];
    for (int32_t number = first; goes_on && number < std::min(tokens, end); ++number) {
      const auto token = device_sampler_->token(i, number);
      if (needs_q(effective_rule(*task->sampling))) {
        QRow& q = draft->q.emplace_back();
        if (token) device_sampler_->read_q(i, number, q);
      }
      const bool is_measured = token && may_stop(task->stop);
      goes_on = take(*task, token, is_measured ? device_sampler_->confidence(i, number) : DraftConfidence(),
                     *draft);
    }
  }
}

bool HeadDraws::draw(const HeadTask& task, std::span<const float> logits, HeadDraft& draft) {
  spread(logits);
  QRow* const q = needs_q(effective_rule(*task.sampling)) ? &draft.q.emplace_back() : nullptr;
  const auto token = sampler_.sample(logits_, step_of(task, draft), q);
  DraftConfidence confidence;
  if (token && may_stop(task.stop)) confidence = confidence_of(logits_, *token);
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

DraftStep HeadDraws::step_behind(const Look& look, std::span<const TokenId> path) const {
  return {.sampling = look.task->sampling,
          .counts = look.task->counts,
          .drafted = path,
          .position =
              Position(static_cast<int32_t>(look.task->committed.size())) + static_cast<int32_t>(path.size()),
          .round = look.task->round,
          .row_bytes = look.task->row_bytes};
}

void HeadDraws::look_behind(std::span<const Look> looks, FloatRows logits, FloatRows& here) {
  looks_.assign(looks.begin(), looks.end());
  const auto drawn = std::stable_partition(looks_.begin(), looks_.end(), [](const Look& look) {
    return !needs_q(effective_rule(*look.task->sampling));
  });
  const auto ranked = static_cast<size_t>(drawn - looks_.begin());
  for (size_t at = 0; at < looks_.size();) {
    const size_t there = at < ranked ? look_there(std::span(looks_).first(ranked).subspan(at), logits) : 0;
    at += there;
    if (there > 0) continue;
    if (!here.data()) here = compute_ ? compute_->fetch(logits) : logits;
    look_here(looks_[at], here.row(looks_[at].row));
    ++at;
  }
}

// How many were ranked where the head computes. Nodes of one depth that ask the same row have the same
// candidates, unless penalties count what is on their paths.
size_t HeadDraws::look_there(std::span<const Look> looks, FloatRows logits) {
  if (!device_sampler_) return 0;
  ranked_.clear();
  ranked_as_.clear();
  paths_.resize(std::max(paths_.size(), looks.size()));
  for (size_t i = 0; i < looks.size(); ++i) {
    const auto& [task, tree, node, row] = looks[i];
    const auto wanted = static_cast<int32_t>(tree->growth.wanted(node));
    tree->growth.path(node, paths_[i]);
    const bool is_asked = i > 0 && looks[i - 1].task == task && looks[i - 1].row == row &&
                          paths_[i - 1].size() == paths_[i].size() && !needs_counts(*task->sampling);
    if (is_asked)
      ranked_.back().count = std::max(ranked_.back().count, wanted);
    else
      ranked_.push_back({.step = step_behind(looks[i], paths_[i]), .row = row, .count = wanted});
    ranked_as_.push_back(ranked_.size() - 1);
  }
  const size_t count = device_sampler_->most_looks(ranked_);
  if (count == 0) return 0;
  device_sampler_->rank(logits, std::span(ranked_).first(count));
  size_t taken = 0;
  for (; taken < looks.size() && ranked_as_[taken] < count; ++taken) {
    const auto best = device_sampler_->best(ranked_as_[taken]);
    const size_t wanted = looks[taken].tree->growth.wanted(looks[taken].node);
    add(looks[taken], best.first(std::min(best.size(), wanted)));
  }
  return taken;
}

void HeadDraws::look_here(const Look& look, std::span<const float> logits) {
  TreeGrowth& growth = look.tree->growth;
  spread(logits);
  growth.path(look.node, path_);
  const DraftStep step = step_behind(look, path_);
  if (needs_q(effective_rule(*step.sampling))) return draw_children(look, step);
  add(look, sampler_.process(logits_, step)
                ? guesser_.best(logits_, *step.sampling, step.position, growth.wanted(look.node))
                : std::span<const RankedToken>());
}

void HeadDraws::add(const Look& look, std::span<const RankedToken> best) {
  TreeGrowth& growth = look.tree->growth;
  const auto found = static_cast<int32_t>(growth.found());
  growth.add(look.node, best, confidence_[static_cast<size_t>(look.task->sampling->rule)]);
  end_texts(*look.tree, found);
}

// Behind the nodes from `first` on that end a text nothing follows.
void HeadDraws::end_texts(HeadTree& tree, int32_t first) {
  for (int32_t i = first; i < static_cast<int32_t>(tree.growth.found()); ++i)
    if (ends(tree.growth.token(i))) tree.growth.end_at(i);
}

// As a draft model draws them: each by its position and its place among the nodes of its depth.
void HeadDraws::draw_children(const Look& look, const DraftStep& step) {
  HeadTree& tree = *look.tree;
  TreeGrowth& growth = tree.growth;
  const SamplingParams& sampling = *step.sampling;
  const auto place = static_cast<size_t>(look.node + 1);
  tree.q_of.resize(std::max(tree.q_of.size(), place + 1));
  QRow& q = tree.q_of[place];
  drawn_.clear();
  const bool is_finite = sampler_.weigh(logits_, step, q);
  for (size_t i = 0; is_finite && i < growth.wanted(look.node); ++i) {
    const uint64_t bits =
        draw_u64(sampling.seed, Purpose::kDraft, step.position, step.round, growth.ordinal(look.node, i));
    const auto token =
        draws_without_replacement(sampling.rule) ? draw_token_without(q, drawn_, bits) : draw_token(q, bits);
    if (!token) break;
    drawn_.push_back(*token);
  }
  const auto found = static_cast<int32_t>(growth.found());
  growth.add_drawn(look.node, drawn_);
  end_texts(tree, found);
}

void HeadDraws::take_tree(HeadTree& tree, HeadDraft& draft) {
  std::vector<int32_t> order;  // by node: its index before the tree was cut
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
