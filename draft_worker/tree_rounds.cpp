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
  job.kv_of.resize(job.growth.found());
  job.extended.resize(job.growth.found() + 1);
  for (size_t i = 0; i < job.looked.size(); ++i)
    slices_.push_back({.sequence = cache_before(s, job.looked[i]),
                       .tokens = std::span(job.looked_tokens).subspan(i, 1),
                       .logit_rows = 1,
                       .hidden_only = job.strand.key.q_kind == QKind::kHidden});
}

// The committed text and the nodes above this one.
KvHandle ModelDrafter::cache_before(Sequence& s, int32_t node) {
  Job& job = *s.job;
  KvHandle& kv = job.kv_of[static_cast<size_t>(node)];
  if (kv.index >= 0) return kv;  // of a pass for which there was no room
  const int32_t parent = job.growth.parent(node);
  const KvHandle above = parent == kTreeRoot ? s.kv : job.kv_of[static_cast<size_t>(parent)];
  if (!std::exchange(job.extended[static_cast<size_t>(parent + 1)], true)) return kv = above;
  kv = model_.kv().fork(above);
  model_.kv().truncate(kv, job.strand.base.value() + job.growth.depth(node) - 1);
  job.forks.push_back(kv);
  return kv;
}

void ModelDrafter::drop_forks(Job& job) {
  for (const KvHandle kv : job.forks) model_.kv().release(kv);
  job.forks.clear();
}

// Trees are drafted as far as they got. False: there was none that grows.
bool ModelDrafter::stop_growth() {
  bool stopped = false;
  for (const JobPart& part : job_parts_) {
    Job& job = *part.sequence->job;
    if (!job.growth_begun) continue;
    job.growth.stop();
    drop_forks(job);
    stopped = true;
  }
  return stopped;
}

Status ModelDrafter::take_root(Sequence& s, int64_t row) {
  s.job->growth_begun = true;
  return look_behind(s, kTreeRoot, row) ? Status() : not_finite(s.job->strand);
}

void ModelDrafter::take_looks(Sequence& s, int64_t row) {
  Job& job = *s.job;
  for (size_t i = 0; i < job.looked.size(); ++i) {
    const int32_t node = job.looked[i];
    if (job.kv_of[static_cast<size_t>(node)] == s.kv)
      s.window.fed(std::span(job.looked_tokens).subspan(i, 1));
    if (!look_behind(s, node, row + static_cast<int64_t>(i))) job.growth.end_at(node);
  }
}

// False: its logits are not finite.
bool ModelDrafter::look_behind(Sequence& s, int32_t node, int64_t row) {
  Job& job = *s.job;
  TreeGrowth& growth = job.growth;
  growth.path(node, path_);
  const StrandKey& key = job.strand.key;
  const DraftStep step{.sampling = &s.sampling,
                       .counts = &s.counts,
                       .drafted = path_,
                       .position = job.strand.base + growth.depth(node),
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
  std::swap(s.grown, job.growth);
  s.grown_at = job.strand.base;
  s.awaits_growth = true;
}

}  // namespace outrider
