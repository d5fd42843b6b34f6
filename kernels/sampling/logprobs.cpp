#include "kernels/sampling/logprobs.h"

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

// The maximum is needed even if no top tokens are asked for.
size_t list_length(const LogprobQuery& query) { return static_cast<size_t>(std::max(query.top, 1)); }

// Per query: the chosen token (from its owner, else 0), then the best tokens.
size_t slots(const LogprobQuery& query) { return list_length(query) + 1; }

}  // namespace

void ShardLogprobs::gather_best(std::span<const LogprobQuery> queries, Chunks chunks) {
  mine_.clear();
  chunk_max_.resize(static_cast<size_t>(chunks.count()));
  for (const LogprobQuery& query : queries) {
    const size_t begin = mine_.size();
    scale_and_scan(query.raw, chunks, 1.0f, chunk_max_);
    const int64_t local = query.chosen.value() - chunks.range.begin;
    const bool owned = chunks.range.contains(query.chosen.value());
    mine_.push_back(
        owned ? RankedToken::of(query.raw[static_cast<size_t>(local)], query.chosen.value()).packed : 0);
    for (RankedToken token : top_.local(query.raw, chunks, chunk_max_, list_length(query)))
      mine_.push_back(token.packed);
    mine_.resize(begin + slots(query), 0);
  }
  all_.resize(mine_.size() * static_cast<size_t>(group_.size()));
  group_.all_gather(std::as_bytes(std::span(mine_)), std::as_writable_bytes(std::span(all_)));
}

std::span<const RowLogprobs> ShardLogprobs::compute(std::span<const LogprobQuery> queries, Chunks chunks) {
  rows_.resize(queries.size());
  if (queries.empty()) return rows_;
  gather_best(queries, chunks);
  best_.clear();
  chosen_.assign(queries.size(), {});
  sums_.clear();
  const auto ranks = static_cast<size_t>(group_.size());
  size_t offset = 0;
  for (size_t i = 0; i < queries.size(); ++i) {
    for (size_t r = 0; r < ranks; ++r) chosen_[i] = std::max(chosen_[i], {all_[r * mine_.size() + offset]});
    const auto best = top_.merge(all_, offset + 1, mine_.size(), ranks, list_length(queries[i]));
    rows_[i].top.clear();
    for (RankedToken token : best.first(std::min(best.size(), static_cast<size_t>(queries[i].top))))
      rows_[i].top.emplace_back(token.id(), token.value());
    best_.push_back(best.front());
    sums_.push_back(sum_weights(queries[i].raw, best.front().value()));
    offset += slots(queries[i]);
  }
  group_.all_reduce_sum(std::span(sums_));
  for (size_t i = 0; i < queries.size(); ++i) {
    // log-sum-exp of the row; in doubles the rounding to fp32 at the end is the only one that shows.
    const double lse =
        best_[i].value() + std::log(static_cast<double>(sums_[i])) - kWeightBits * std::log(2.0);
    rows_[i].chosen = static_cast<float>(chosen_[i].value() - lse);
    for (auto& [id, logprob] : rows_[i].top) logprob = static_cast<float>(logprob - lse);
  }
  return rows_;
}

}  // namespace outrider
