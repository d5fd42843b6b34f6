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
                       .logit_rows = 1});
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
  const DraftStep step{.sampling = &s.sampling,
                       .counts = &s.counts,
                       .drafted = path_,
                       .position = job.strand.base + growth.depth(node),
                       .round = job.strand.key.round};
  const auto logits = logits_row(row);
  if (!sampler_.process(logits, step)) return false;
  const size_t known = growth.found();
  growth.add(node, guesser_.best(logits, s.sampling, step.position, growth.wanted(node)),
             branch_confidence_[static_cast<size_t>(s.sampling.rule)]);
  const auto& eos = options_.eos_ids;
  for (auto i = static_cast<int32_t>(known); i < static_cast<int32_t>(growth.found()); ++i)
    if (std::find(eos.begin(), eos.end(), growth.token(i)) != eos.end()) growth.end_at(i);
  return true;
}

void ModelDrafter::finish_tree(Sequence& s, Draft& draft) {
  Job& job = *s.job;
  DraftTree tree = job.growth.take();
  draft.ids.swap(tree.ids);
  draft.parents.swap(tree.parents);
  std::swap(s.grown, job.growth);
  s.grown_at = job.strand.base;
  s.awaits_growth = true;
}

}  // namespace outrider
