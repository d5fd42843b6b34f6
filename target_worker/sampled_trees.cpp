#include "target_worker/sampled_trees.h"

#include <algorithm>
#include <cmath>

#include "kernels/sampling/penalties.h"
#include "target_worker/rules/sharded_tree_rows.h"

namespace outrider {
namespace {

size_t row_of(int32_t node) { return static_cast<size_t>(node + 1); }

}  // namespace

SampledTrees::SampledTrees(Collectives& group)
    : group_(group), filters_(group), sampler_(group), logprobs_(group) {}

void SampledTrees::verify(const VerifyRequest& request, const LogitsShard& logits, VerifyResult& result) {
  result = {};
  process_rows(request, logits);
  if (!best_.front().is_finite()) {
    result.status = VerdictStatus::kNonFinite;
    return;
  }
  leave_out_unknown({request.draft, request.parents});
  weigh(request);
  const SamplingParams& params = *request.sampling;
  ShardedTreeRows rows(group_, sampler_, tested_, weights_, q_drafted_,
                       {.seed = params.seed, .round = request.round, .base = request.base});
  const TreeOutcome outcome = decide_tree(effective_rule(params), tested_, rows);
  fallbacks_ += static_cast<uint64_t>(rows.fallbacks());
  for (const int32_t node : outcome.path) result.path.push_back(node_of_[static_cast<size_t>(node)]);
  result.next = outcome.next;
  if (result.next == ShardedTreeRows::kNoToken) {  // its last token stands, and nothing is known behind it
    result.next = request.draft[static_cast<size_t>(result.path.back())];
    result.path.pop_back();
  }
  result.accepted_count = static_cast<int>(result.path.size());
  if (params.logprobs >= 0) report_logprobs(request, result);
}

// Penalties, bias, temperature and filters, and the best token of every row.
void SampledTrees::process_rows(const VerifyRequest& request, const LogitsShard& logits) {
  const DraftTreeView tree(request.draft, request.parents);
  const SamplingParams& params = *request.sampling;
  const Chunks chunks{logits.vocab_range};
  const auto chunk_count = static_cast<size_t>(chunks.count());
  const size_t count = request.draft.size() + 1;
  rows_.clear();
  best_.clear();
  raw_.clear();
  chunk_max_.resize(count * chunk_count);
  std::vector<TokenId> drafted;
  for (int32_t node = kTreeRoot; node < tree.size(); ++node) {
    const auto row = logits.logits.row(request.first_row + node + 1);
    if (params.logprobs >= 0) raw_.insert(raw_.end(), row.begin(), row.end());
    path_to(tree, node, path_);
    drafted.clear();
    for (const int32_t of_path : path_) drafted.push_back(tree.id(of_path));
    ShardRow& placed = rows_.emplace_back(
        ShardRow{.logits = row,
                 .chunks = chunks,
                 .chunk_max = std::span(chunk_max_).subspan(row_of(node) * chunk_count, chunk_count),
                 .params = &params});
    apply_penalties(row, chunks.range, params, request.counts, drafted);
    forbid_ends(row, chunks.range, params, request.base + static_cast<int32_t>(drafted.size()));
    if (const TokenSet* const allowed = allowed_at(request, node + 1))
      forbid_others(row, chunks.range, *allowed);
    const bool nan = scale_and_scan(row, chunks, inverse_temperature(params), placed.chunk_max);
    best_.push_back(best_logit(placed, nan));
  }
  group_.all_reduce_max(std::span(&best_.front().packed, best_.size()));
  std::vector<ShardRow*> filtered;
  for (size_t i = 0; i < count; ++i) {
    rows_[i].max = best_[i].value();
    if (best_[i].is_finite() && has_filters(params)) filtered.push_back(&rows_[i]);
  }
  filters_.apply(filtered);
}

// As in a chain, a row that is not finite matters only if the text comes to it. Nothing is tested behind it.
void SampledTrees::leave_out_unknown(DraftTreeView tree) {
  constexpr int32_t kLeftOut = -2;
  std::vector<int32_t> place(tree.ids.size(), kLeftOut);
  tested_.clear();
  node_of_.clear();
  for (int32_t node = 0; node < tree.size(); ++node) {
    const int32_t parent = tree.parent(node);
    const int32_t above = parent == kTreeRoot ? kTreeRoot : place[static_cast<size_t>(parent)];
    if (above == kLeftOut || !best_[row_of(parent)].is_finite()) continue;
    place[static_cast<size_t>(node)] = static_cast<int32_t>(node_of_.size());
    tested_.ids.push_back(tree.id(node));
    tested_.parents.push_back(above);
    node_of_.push_back(node);
  }
}

void SampledTrees::weigh(const VerifyRequest& request) {
  const RowNumbers numbers({request.draft, request.parents});
  weights_.clear();
  q_drafted_.clear();
  const auto add = [&](int32_t node) {
    const ShardRow& row = rows_[row_of(node)];
    weights_.push_back({.logits = row.logits, .range = row.chunks.range, .max = row.max});
    if (!best_[row_of(node)].is_finite()) weights_.back().max = NAN;
  };
  add(kTreeRoot);
  for (const int32_t node : node_of_) add(node);
  for (size_t i = 0; i < node_of_.size(); ++i) {
    const auto node = static_cast<size_t>(node_of_[i]);
    const bool is_sliced = request.q_kind == QKind::kSlices;
    const QRow& q = request.q[numbers.of(node)];
    q_drafted_.push_back(is_sliced ? request.q_drafted[node] : weight_in(q, request.draft[node]));
    RowWeights& parent = weights_[row_of(tested_.parents[i])];
    parent.q = {q.ids, q.weights, q.sum, is_sliced ? parent.range.begin : 0, q.rest, q.id_end};
  }
}

void SampledTrees::report_logprobs(const VerifyRequest& request, VerifyResult& result) {
  const size_t width = rows_.front().logits.size();
  std::vector<LogprobQuery> queries;
  for (size_t i = 0; i <= result.path.size(); ++i) {
    const int32_t behind = i == 0 ? kTreeRoot : result.path[i - 1];
    const bool last = i == result.path.size();
    queries.push_back({.raw = std::span(raw_).subspan(row_of(behind) * width, width),
                       .chosen = last ? result.next : request.draft[static_cast<size_t>(result.path[i])],
                       .top = request.sampling->logprobs});
  }
  const auto rows = logprobs_.compute(queries, rows_.front().chunks);
  for (size_t i = 0; i < queries.size(); ++i) {
    PositionLogprobs& position = result.logprobs.emplace_back();
    position.chosen = {queries[i].chosen, rows[i].chosen};
    for (const auto& [id, logprob] : rows[i].top) position.top.push_back({id, logprob});
  }
}

}  // namespace outrider
