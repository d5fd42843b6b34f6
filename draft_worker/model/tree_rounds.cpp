#include "draft_worker/model/tree_rounds.h"

#include <algorithm>

namespace outrider {

bool TreeRounds::regrow(DraftedSequence& s, const Propose& propose) {
  if (!s.grown || !s.grown->goes_on || propose.tree.nodes == 0) return false;
  GrowingTree& tree = s.grown->tree;
  const auto text = s.window.committed();
  const auto base = static_cast<size_t>(tree.base.value());
  if (text.size() < base) return false;
  int32_t node = kTreeRoot;
  for (const TokenId token : text.subspan(base)) {
    node = tree.growth.child_with(node, token);
    if (node == kTreeRoot) return false;
  }
  const bool has_cache = node == kTreeRoot || (static_cast<size_t>(node) < tree.kv_of.size() &&
                                               tree.kv_of[static_cast<size_t>(node)].index >= 0);
  if (!has_cache || !tree.growth.is_known(node) || !tree.growth.has_child(node)) return false;
  s.kv = tree.become_root(node, s.kv, state_.model.kv());
  tree.base = propose.base;
  tree.growth.path(tree.end_of(s.kv), path_);
  s.window.kept(s.window.in_read(Position(static_cast<int32_t>(base))));
  s.window.fed(text.subspan(base));
  s.window.fed(path_);
  return true;
}

void TreeRounds::begin(DraftedSequence& s, const Propose& propose, bool regrown) {
  DraftJob& job = *s.job;
  job.branches = true;
  if (s.grown) {
    job.previous_sent_at = s.grown->sent_at;
    job.was_prepared = s.grown->prepared;
    job.preparation.looked_up = s.grown->looked_up;
    job.preparation.outcomes = s.grown->later_looks();
  }
  if (regrown) {
    std::swap(job.tree, s.grown->tree);
    job.tree.growth.go_on(propose.tree, job.strand.limit);
    job.preparation.hit = true;
    job.preparation.used_tokens = std::min(static_cast<int32_t>(job.tree.growth.found()), propose.tree.nodes);
  } else {
    job.tree.growth.begin(propose.tree, job.strand.limit);
  }
  s.grown.reset();
  job.tree.base = job.strand.base;
}

void TreeRounds::learn_from_text(DraftedSequence& s) {
  if (!s.grown || s.grown->learnt) return;
  const auto text = s.window.committed();
  const auto from = static_cast<size_t>(s.grown->tree.base.value());
  if (from >= text.size()) return;
  s.grown->learnt = true;
  s.grown->tree.growth.observe(text.subspan(from), confidence_of(s));
}

void TreeRounds::add_looks(DraftedSequence& s, GrowingTree& tree, int64_t rows, int64_t logit_rows,
                           std::vector<BatchSlice>& slices) {
  const auto nodes = tree.growth.next(static_cast<size_t>(std::min(rows, logit_rows)));
  tree.looked.assign(nodes.begin(), nodes.end());
  tree.looked_tokens.clear();
  for (const int32_t node : tree.looked) tree.looked_tokens.push_back(tree.growth.token(node));
  tree.kv_of.resize(tree.growth.found());
  tree.extended.resize(tree.growth.found() + 1);
  for (size_t i = 0; i < tree.looked.size(); ++i)
    slices.push_back({.sequence = cache_before(s, tree, tree.looked[i]),
                      .tokens = std::span(tree.looked_tokens).subspan(i, 1),
                      .logit_rows = 1,
                      .hidden_only = s.job && s.job->strand.key.q_kind == QKind::kHidden});
}

// The cache of the committed text and the node's ancestors.
KvHandle TreeRounds::cache_before(DraftedSequence& s, GrowingTree& tree, int32_t node) {
  KvHandle& kv = tree.kv_of[static_cast<size_t>(node)];
  if (kv.index >= 0) return kv;  // of an earlier pass without room
  const int32_t parent = tree.growth.parent(node);
  const KvHandle above = parent == kTreeRoot ? s.kv : tree.kv_of[static_cast<size_t>(parent)];
  if (!std::exchange(tree.extended[static_cast<size_t>(parent + 1)], true)) return kv = above;
  kv = state_.model.kv().fork(above);
  state_.model.kv().truncate(kv, s.window.in_read(tree.base) + tree.growth.depth(node) - 1);
  tree.forks.push_back(kv);
  return kv;
}

bool TreeRounds::stop_growth(std::span<const PassPart> parts) {
  bool stopped = false;
  for (const PassPart& part : parts) {
    GrowingTree& tree = part.sequence->job->tree;
    if (!tree.begun) continue;
    tree.growth.stop();
    tree.drop_forks(state_.model.kv());
    stopped = true;
  }
  return stopped;
}

Status TreeRounds::take_root(DraftedSequence& s, int64_t row) {
  DraftJob& job = *s.job;
  job.tree.begun = true;
  return look_behind(s, job.tree, job.strand.key, kTreeRoot, row) ? Status()
                                                                  : TokenDrawing::not_finite(s.job->strand);
}

void TreeRounds::take_looks(DraftedSequence& s, GrowingTree& tree, const StrandKey& key, int64_t row) {
  for (size_t i = 0; i < tree.looked.size(); ++i) {
    const int32_t node = tree.looked[i];
    if (tree.kv_of[static_cast<size_t>(node)] == s.kv)
      s.window.fed(std::span(tree.looked_tokens).subspan(i, 1));
    if (!look_behind(s, tree, key, node, row + static_cast<int64_t>(i))) tree.growth.end_at(node);
  }
}

// Valid until the next call.
DraftStep TreeRounds::step_behind(const DraftedSequence& s, const GrowingTree& tree, const StrandKey& key,
                                  int32_t node) {
  tree.growth.path(node, path_);
  return {.sampling = &s.sampling,
          .counts = &s.counts,
          .drafted = path_,
          .position = tree.base + tree.growth.depth(node),
          .round = key.round,
          .row_bytes = key.q_kind == QKind::kSparse ? key.row_bytes : 0};
}

void TreeRounds::rank_root(const DraftedSequence& s, int64_t row, RankedPass& ranked) {
  const DraftJob& job = *s.job;
  ranked.add(step_behind(s, job.tree, job.strand.key, kTreeRoot), row, job.tree.growth.wanted(kTreeRoot));
}

void TreeRounds::rank_looks(const DraftedSequence& s, const GrowingTree& tree, const StrandKey& key,
                            int64_t row, RankedPass& ranked) {
  for (const int32_t node : tree.looked)
    ranked.add(step_behind(s, tree, key, node), row++, tree.growth.wanted(node));
}

// Computes a node's children. False: its logits are not finite.
bool TreeRounds::look_behind(DraftedSequence& s, GrowingTree& tree, const StrandKey& key, int32_t node,
                             int64_t row) {
  TreeGrowth& growth = tree.growth;
  const DraftStep step = step_behind(s, tree, key, node);
  const size_t known = growth.found();
  if (key.q_kind != QKind::kNone) {
    if (!draw_behind(s, tree, key, node, row, step)) return false;
  } else {
    const auto best = drawing_.best(s, step, row, growth.wanted(node));
    if (!best) return false;
    growth.add(node, *best, confidence_of(s));
  }
  for (auto i = static_cast<int32_t>(known); i < static_cast<int32_t>(growth.found()); ++i)
    if (state_.is_end(growth.token(i))) growth.end_at(i);
  return true;
}

// Draws the children of a node under the rules that need q. Each draw is keyed by the child's position and
// its index among the nodes of its depth, so draws are the same on every machine and in every batch.
bool TreeRounds::draw_behind(DraftedSequence& s, GrowingTree& tree, const StrandKey& key, int32_t node,
                             int64_t row, const DraftStep& step) {
  TreeGrowth& growth = tree.growth;
  QRow* q = drawing_.weigh(key, step, row);
  if (!q) return false;
  const bool replaces = !draws_without_replacement(s.sampling.rule);
  std::vector<TokenId> drawn;
  for (size_t i = 0; i < growth.wanted(node); ++i) {
    const uint64_t bits =
        draw_u64(s.sampling.seed, Purpose::kDraft, step.position, step.round, growth.ordinal(node, i));
    const auto token = replaces ? draw_token(*q, bits) : draw_token_without(*q, drawn, bits);
    if (!token) break;
    drawn.push_back(*token);
  }
  growth.add_drawn(node, drawn);
  const auto place = static_cast<size_t>(node + 1);
  if (key.q_kind == QKind::kHidden) {
    tree.hidden_of.resize(std::max(tree.hidden_of.size(), place + 1));
    std::swap(tree.hidden_of[place], drawing_.hidden());
  } else {
    tree.q_of.resize(std::max(tree.q_of.size(), place + 1));
    std::swap(tree.q_of[place] = state_.storage.take_row(), *q);
  }
  return true;
}

// Takes the distributions that children were drawn from, in the order of RowNumbers. order[i]: the grown node
// that became node i of the draft.
void TreeRounds::take_rows(GrowingTree& tree, std::span<const int32_t> order, Draft& draft) {
  draft.q.clear();
  draft.hidden.clear();
  const auto take = [&](int32_t node, int32_t found) {
    if (!has_children(draft.tree(), node)) return;
    const auto place = static_cast<size_t>(found + 1);
    if (draft.q_kind == QKind::kHidden)
      draft.hidden.push_back(std::move(tree.hidden_of[place]));
    else
      draft.q.push_back(std::move(tree.q_of[place]));
  };
  take(kTreeRoot, kTreeRoot);
  for (size_t i = 0; i < order.size(); ++i) take(static_cast<int32_t>(i), order[i]);
}

void TreeRounds::finish(DraftedSequence& s, Draft& draft, std::chrono::steady_clock::time_point now) {
  DraftJob& job = *s.job;
  std::vector<int32_t> order;
  DraftTree drafted = job.tree.growth.take(order);
  draft.ids.swap(drafted.ids);
  draft.parents.swap(drafted.parents);
  if (draft.q_kind != QKind::kNone) return take_rows(job.tree, order, draft);
  const Propose& propose = job.propose;
  GrownTree& grown = s.grown.emplace();
  std::swap(grown.tree, job.tree);
  grown.sent_at = now;
  grown.sent_looks = grown.tree.growth.looks();
  grown.looked_up = propose.pipeline != Pipeline::kLockstep && propose.tree.nodes > 0;
  grown.goes_on = grown.prepared = grown.looked_up && !grown.tree.growth.is_stopped() &&
                                   (propose.pipeline != Pipeline::kAuto || state_.policy.prepare_next());
  if (!grown.goes_on) return grown.tree.drop_forks(state_.model.kv());
  // Room for as many nodes again, for the next tree; no path beyond the context.
  const int64_t room = state_.room_behind(s, propose.base);
  grown.tree.growth.go_on({.nodes = 2 * propose.tree.nodes},
                          static_cast<int32_t>(std::min<int64_t>(room, 2 * int64_t{job.strand.limit} + 1)));
}

void TreeRounds::drop(DraftedSequence& s) {
  if (!s.grown || !s.grown->goes_on) return;
  state_.wasted_tokens += s.grown->later_looks();
  s.grown->tree.drop_forks(state_.model.kv());
  s.grown->goes_on = false;
}

bool TreeRounds::give_up() {
  bool gave_up = false;
  for (auto& [id, s] : state_.sequences) {
    if (!s.grown || !s.grown->goes_on) continue;
    gave_up |= !s.grown->tree.forks.empty();
    drop(s);
  }
  return gave_up;
}

bool TreeRounds::grow_on(int64_t rows, RankedPass* ranked) {
  slices_.clear();
  parts_.clear();
  if (ranked) ranked->begin();
  for (auto& [id, s] : state_.sequences) {
    if (s.job || !s.grown || !s.grown->goes_on || rows == 0) continue;
    const size_t before = slices_.size();
    add_looks(s, s.grown->tree, rows, rows, slices_);
    rows -= static_cast<int64_t>(slices_.size() - before);
    if (slices_.size() > before) parts_.push_back({&s, slices_.size() - before});
    if (ranked) rank_looks(s, s.grown->tree, {}, static_cast<int64_t>(before), *ranked);
  }
  if (slices_.empty()) return false;
  const auto start = state_.options.now();
  if (!drawing_.run(slices_, ranked).ok()) {
    if (!state_.texts.forget_one())
      for (const PassPart& part : parts_) drop(*part.sequence);
    return true;
  }
  int64_t row = 0;
  for (const PassPart& part : parts_) {
    take_looks(*part.sequence, part.sequence->grown->tree, {}, row);
    row += static_cast<int64_t>(part.slices);
  }
  state_.prepare_ns += state_.ns_since(start);
  return true;
}

}  // namespace outrider
