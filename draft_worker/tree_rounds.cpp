// The half of the model drafter for drafts that branch: every pass looks behind those nodes of the tree that
// are to have children. A node's cache is a copy-on-write fork of its parent's, or, for the first child that
// is looked behind, that cache itself; so the sequence's own follows the likeliest path.
#include <algorithm>

#include "draft_worker/model_drafter.h"

namespace outrider {

void ModelDrafter::begin_tree(Sequence& s, const Propose& propose) {
  Job& job = *s.job;
  job.branches = true;
  job.growth.begin(propose.tree, job.strand.limit);
}

// What the last tree was good for is known now.
void ModelDrafter::learn_from_text(Sequence& s) {
  const auto text = s.window.committed();
  const auto from = static_cast<size_t>(s.grown_at.value());
  if (!s.awaits_growth || from >= text.size()) return;
  s.awaits_growth = false;
  s.grown.observe(text.subspan(from), branch_confidence_[static_cast<size_t>(s.sampling.rule)]);
}

// A row for each node that this pass looks behind.
void ModelDrafter::add_looks(Sequence& s, int64_t rows, int64_t logit_rows) {
  Job& job = *s.job;
  const auto nodes = job.growth.next(static_cast<size_t>(std::min(rows, logit_rows)));
  job.looked.assign(nodes.begin(), nodes.end());
  job.looked_tokens.clear();
  for (const int32_t node : job.looked) job.looked_tokens.push_back(job.growth.token(node));
  for (size_t i = 0; i < job.looked.size(); ++i)
    slices_.push_back({.sequence = cache_before(s, job.growth, job.caches, job.strand.base, job.looked[i]),
                       .tokens = std::span(job.looked_tokens).subspan(i, 1),
                       .logit_rows = 1,
                       .hidden_only = job.strand.key.q_kind == QKind::kHidden});
}

// The committed text and the nodes above this one.
KvHandle ModelDrafter::cache_before(Sequence& s, const TreeGrowth& growth, TreeCaches& caches, Position base,
                                    int32_t node) {
  caches.of.resize(growth.found());
  caches.extended.resize(growth.found() + 1);
  KvHandle& kv = caches.of[static_cast<size_t>(node)];
  if (kv.index >= 0) return kv;  // of a pass for which there was no room
  const int32_t parent = growth.parent(node);
  const KvHandle above = parent == kTreeRoot ? s.kv : caches.of[static_cast<size_t>(parent)];
  if (!std::exchange(caches.extended[static_cast<size_t>(parent + 1)], true)) return kv = above;
  kv = model_.kv().fork(above);
  model_.kv().truncate(kv, base.value() + growth.depth(node) - 1);
  caches.forks.push_back(kv);
  return kv;
}

void ModelDrafter::drop_forks(TreeCaches& caches) {
  for (const KvHandle kv : caches.forks) model_.kv().release(kv);
  caches.forks.clear();
  caches.clear();
}

// Trees are drafted as far as they got. False: there was none that grows.
bool ModelDrafter::stop_growth() {
  bool stopped = false;
  for (const JobPart& part : job_parts_) {
    Job& job = *part.sequence->job;
    if (!job.growth_begun) continue;
    job.growth.stop();
    drop_forks(job.caches);
    stopped = true;
  }
  return stopped;
}

Status ModelDrafter::take_root(Sequence& s, int64_t row) {
  Job& job = *s.job;
  job.growth_begun = true;
  return look_behind(s, job.growth, job.strand.key, job.strand.base, kTreeRoot, row) ? Status()
                                                                                     : not_finite(job.strand);
}

void ModelDrafter::take_looks(Sequence& s, int64_t row) {
  Job& job = *s.job;
  for (size_t i = 0; i < job.looked.size(); ++i) {
    const int32_t node = job.looked[i];
    if (job.caches.of[static_cast<size_t>(node)] == s.kv)
      s.window.fed(std::span(job.looked_tokens).subspan(i, 1));
    if (!look_behind(s, job.growth, job.strand.key, job.strand.base, node, row + static_cast<int64_t>(i)))
      job.growth.end_at(node);
  }
}

// False: its logits are not finite.
bool ModelDrafter::look_behind(Sequence& s, TreeGrowth& growth, const StrandKey& key, Position base,
                               int32_t node, int64_t row) {
  growth.path(node, path_);
  const DraftStep step{.sampling = &s.sampling,
                       .counts = &s.counts,
                       .drafted = path_,
                       .position = base + growth.depth(node),
                       .round = key.round,
                       .row_bytes = key.q_kind == QKind::kSparse ? key.row_bytes : 0};
  const size_t known = growth.found();
  if (key.q_kind != QKind::kNone) {
    if (!draw_behind(s, node, row, step)) return false;
  } else {
    const auto logits = logits_row(row);
    if (!sampler_.process(logits, step)) return false;
    growth.add(node, guesser_.best(logits, s.sampling, step.position, growth.wanted(node)),
               branch_confidence_[static_cast<size_t>(s.sampling.rule)]);
  }
  const auto& eos = options_.eos_ids;
  for (auto i = static_cast<int32_t>(known); i < static_cast<int32_t>(growth.found()); ++i)
    if (std::find(eos.begin(), eos.end(), growth.token(i)) != eos.end()) growth.end_at(i);
  return true;
}

// The children of a node under the rules that need q. Each has a draw of its own, keyed by its position and
// by its place among the nodes of its depth, so they are the same on every machine and in every batch.
bool ModelDrafter::draw_behind(Sequence& s, int32_t node, int64_t row, const DraftStep& step) {
  Job& job = *s.job;
  TreeGrowth& growth = job.growth;
  if (!sampler_.weigh(logits_row(job.strand.key, row), step, q_)) return false;
  const bool replaces = !draws_without_replacement(s.sampling.rule);
  std::vector<TokenId> drawn;
  for (size_t i = 0; i < growth.wanted(node); ++i) {
    const uint64_t bits =
        draw_u64(s.sampling.seed, Purpose::kDraft, step.position, step.round, growth.ordinal(node, i));
    const auto token = replaces ? draw_token(q_, bits) : draw_token_without(q_, drawn, bits);
    if (!token) break;
    drawn.push_back(*token);
  }
  growth.add_drawn(node, drawn);
  const auto place = static_cast<size_t>(node + 1);
  if (job.strand.key.q_kind == QKind::kHidden) {
    hidden_.max = sampler_.max();
    job.hidden_of.resize(std::max(job.hidden_of.size(), place + 1));
    std::swap(job.hidden_of[place], hidden_);
  } else {
    job.q_of.resize(std::max(job.q_of.size(), place + 1));
    std::swap(job.q_of[place] = storage_.take_row(), q_);
  }
  return true;
}

// What children were drawn from, in the order of RowNumbers. order[i]: which found node is node i.
void ModelDrafter::take_rows(Job& job, std::span<const int32_t> order, Draft& draft) {
  draft.q.clear();
  draft.hidden.clear();
  const auto take = [&](int32_t node, int32_t found) {
    if (!has_children(draft.tree(), node)) return;
    const auto place = static_cast<size_t>(found + 1);
    if (draft.q_kind == QKind::kHidden)
      draft.hidden.push_back(std::move(job.hidden_of[place]));
    else
      draft.q.push_back(std::move(job.q_of[place]));
  };
  take(kTreeRoot, kTreeRoot);
  for (size_t i = 0; i < order.size(); ++i) take(static_cast<int32_t>(i), order[i]);
}

void ModelDrafter::finish_tree(Sequence& s, Draft& draft) {
  Job& job = *s.job;
  std::vector<int32_t> order;
  DraftTree tree = job.growth.take(order);
  draft.ids.swap(tree.ids);
  draft.parents.swap(tree.parents);
  if (draft.q_kind != QKind::kNone) return take_rows(job, order, draft);
  draft.preparation.used_tokens =
      static_cast<int32_t>(std::count_if(order.begin(), order.end(), [&](int32_t node) {
        return static_cast<size_t>(node) < job.found_before;
      }));
  std::swap(s.grown, job.growth);
  s.grown_at = job.strand.base;
  s.awaits_growth = true;
}

// ---- while the target verifies --------------------------------------------------------------------------

// A tree that is chosen by what its nodes are goes on growing, where the verdict may come to. What it finds
// there depends on the text alone, as before. Fixed shapes find what they were asked for and no more.
void ModelDrafter::keep_tree(Sequence& s, std::chrono::steady_clock::time_point now) {
  Job& job = *s.job;
  const Propose& propose = job.propose;
  if (propose.pipeline == Pipeline::kLockstep || propose.tree.nodes == 0 || propose.q_kind != QKind::kNone)
    return;
  s.grows_ahead = true;
  std::swap(s.ahead.caches, job.caches);
  s.ahead.key = job.strand.key;
  s.ahead.base = job.strand.base;
  s.ahead.pipeline = propose.pipeline;
  s.ahead.prepare = propose.pipeline != Pipeline::kAuto || policy_.prepare_next();
  s.ahead.sent_at = now;
  s.ahead.looks = 0;
  s.ahead.looks_left = static_cast<int32_t>(looks_for_outcomes(propose.fanout));
}

void ModelDrafter::drop_ahead(Sequence& s) {
  if (!std::exchange(s.grows_ahead, false)) return;
  wasted_tokens_ += s.ahead.looks;
  drop_forks(s.ahead.caches);
}

void ModelDrafter::add_looks_ahead(Sequence& s) {
  const auto depth = static_cast<int32_t>(model_.max_positions() - s.ahead.base.value());
  const auto nodes = s.grown.next_ahead(static_cast<size_t>(s.ahead.looks_left), depth);
  for (const int32_t node : nodes) {
    PreparationPart& part = add_part(s.grown.chance(node), s, kLookBehind, 1);
    part.node = node;
    part.token = s.grown.token(node);
  }
}

void ModelDrafter::take_look_ahead(const PreparationPart& part, int64_t row) {
  Sequence& s = *part.sequence;
  ++s.ahead.looks;
  --s.ahead.looks_left;
  if (s.ahead.caches.of[static_cast<size_t>(part.node)] == s.kv) s.window.fed({&part.token, 1});
  if (!look_behind(s, s.grown, s.ahead.key, s.ahead.base, part.node, row)) s.grown.end_at(part.node);
}

// The verdict is known. Where the tree went on behind the place that the text came to, the next one begins
// with what was found. False: it did not, and nothing of it is left.
bool ModelDrafter::grow_on(Sequence& s, const Propose& propose) {
  const auto outcome = s.window.committed().subspan(static_cast<size_t>(s.ahead.base.value()));
  if (!outcome.empty()) policy_.verdict_took(ns_since(s.ahead.sent_at));
  const int32_t node = s.grown.known_node(outcome);
  TreeCaches& old = s.ahead.caches;
  old.of.resize(s.grown.found());
  old.extended.resize(s.grown.found() + 1);
  const bool is_cached = node != kTreeRoot && old.of[static_cast<size_t>(node)].index >= 0;
  const int64_t room = model_.max_positions() - propose.base.value() + 1;
  const auto limit = static_cast<int32_t>(std::min<int64_t>(propose.gamma, room));
  if (!is_cached || propose.tree.nodes == 0 || limit <= 0 || propose.wants_guess) {
    drop_ahead(s);
    return false;
  }
  adopt_cache(s, node);
  Job& job = s.job.emplace();
  job.propose = propose;
  job.strand = storage_.take_strand();
  job.strand.key = {propose.round, propose.q_kind, propose.row_bytes, propose.code_bits};
  job.strand.base = propose.base;
  job.strand.cut(limit);
  job.branches = job.growth_begun = true;
  std::swap(job.growth, s.grown);
  std::vector<int32_t> place;
  job.growth.grow_on(node, propose.tree, limit, place);
  // Caches of what is left go with it.
  job.caches.of.assign(job.growth.found(), {});
  job.caches.extended.assign(job.growth.found() + 1, false);
  job.caches.extended[0] = old.extended[static_cast<size_t>(node) + 1];
  for (size_t i = 0; i < place.size(); ++i) {
    if (place[i] == TreeGrowth::kGone) continue;
    job.caches.of[static_cast<size_t>(place[i])] = old.of[i];
    job.caches.extended[static_cast<size_t>(place[i]) + 1] = old.extended[i + 1];
  }
  for (const KvHandle kv : old.forks) {
    const auto& of = job.caches.of;
    if (std::find(of.begin(), of.end(), kv) != of.end())
      job.caches.forks.push_back(kv);
    else
      model_.kv().release(kv);
  }
  old.forks.clear();
  old.clear();
  s.grows_ahead = false;
  job.found_before = job.growth.found();
  job.preparation.hit = true;
  return true;
}

// That of the committed text, which ends in this node, becomes the sequence's; it may go on behind it.
void ModelDrafter::adopt_cache(Sequence& s, int32_t node) {
  const TreeCaches& caches = s.ahead.caches;
  const KvHandle kv = caches.of[static_cast<size_t>(node)];
  if (kv == s.kv) return;
  model_.kv().release(s.kv);
  s.kv = kv;
  std::erase(s.ahead.caches.forks, kv);
  s.window.kept(s.ahead.base.value());
  s.grown.path(node, path_);
  for (int32_t i = node + 1; i < static_cast<int32_t>(caches.of.size()); ++i) {
    if (s.grown.parent(i) != node || !(caches.of[static_cast<size_t>(i)] == kv)) continue;
    path_.push_back(s.grown.token(i));
    node = i;
  }
  s.window.fed(path_);
}

}  // namespace outrider
