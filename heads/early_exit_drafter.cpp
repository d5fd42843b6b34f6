#include "heads/early_exit_drafter.h"

#include <algorithm>
#include <chrono>

namespace outrider {

EarlyExitDrafter::EarlyExitDrafter(Model& target, Collectives& group, int64_t layers,
                                   HeadDrafterOptions options)
    : target_(target),
      group_(group),
      layers_(layers),
      draws_(target.config().vocab_size, {}, std::move(options.eos_ids)) {}

void EarlyExitDrafter::draft(std::span<const HeadTask> tasks, StateSource&, std::vector<HeadDraft>& drafts) {
  using SteadyClock = std::chrono::steady_clock;
  const auto start = SteadyClock::now();
  auto first_at = start;
  drafts.resize(tasks.size());
  going_.clear();
  const auto known = [](const HeadTask& task) { return static_cast<int64_t>(task.committed.size()) - 1; };
  for (size_t i = 0; i < tasks.size(); ++i) {
    drafts[i].clear();
    CHECK(!tasks[i].branches() && target_.kv().length(tasks[i].kv) == known(tasks[i]),
          "{} of {} tokens are in the cache", target_.kv().length(tasks[i].kv), known(tasks[i]));
    if (tasks[i].gamma == 0 || known(tasks[i]) >= target_.max_positions()) continue;
    exited_[tasks[i].sequence].begin(known(tasks[i]), tasks[i].gamma);
    going_.push_back(i);
  }
  while (!going_.empty() && step(tasks, drafts))
    if (first_at == start) first_at = SteadyClock::now();
  for (const HeadTask& task : tasks) target_.kv().truncate(task.kv, known(task));
  const auto ns = [](SteadyClock::duration d) {
    return static_cast<int64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(d).count());
  };
  ingest_ns_ = ns(first_at - start);
  draft_ns_ = ns(SteadyClock::now() - first_at);
}

// One token for each. False: the cache is full, on every rank alike.
bool EarlyExitDrafter::step(std::span<const HeadTask> tasks, std::vector<HeadDraft>& drafts) {
  slices_.clear();
  keep_.clear();
  const auto most = static_cast<size_t>(std::min(target_.max_rows(), target_.max_logit_rows()));
  going_.resize(std::min(going_.size(), most));
  for (const size_t i : going_) {
    const std::span<const TokenId> ids = drafts[i].ids;
    slices_.push_back({.sequence = tasks[i].kv,
                       .tokens = ids.empty() ? tasks[i].committed.last(1) : ids.last(1),
                       .logit_rows = 1});
    keep_.push_back(&exited_.at(tasks[i].sequence));
  }
  const auto shard = forward_first(target_, slices_, layers_, keep_);
  if (!shard.ok()) {
    CHECK(shard.status().code() == StatusCode::kResourceExhausted, "early exit: {}",
          shard.status().message());
    return false;
  }
  const auto rows = gathered(*shard);
  size_t kept = 0;
  for (size_t row = 0; row < going_.size(); ++row) {
    const size_t i = going_[row];
    if (draws_.draw(tasks[i], rows.row(static_cast<int64_t>(row)), drafts[i]) &&
        target_.kv().length(tasks[i].kv) < target_.max_positions())
      going_[kept++] = i;
  }
  going_.resize(kept);
  return true;
}

const ExitedTokens* EarlyExitDrafter::exited(SequenceId sequence) const {
  const auto at = exited_.find(sequence);
  return at == exited_.end() ? nullptr : &at->second;
}

// Every rank's part of the vocabulary, side by side.
TensorView<const float, 2> EarlyExitDrafter::gathered(const LogitsShard& shard) {
  if (group_.size() == 1) return shard.logits;
  const int64_t rows = shard.logits.extent(0), ranks = group_.size();
  const auto range_of = [&](int64_t rank) {
    return vocab_range(shard.vocab_size, {.tp_rank = static_cast<int>(rank), .tp_size = group_.size()});
  };
  int64_t widest = 0;
  for (int64_t r = 0; r < ranks; ++r) widest = std::max(widest, range_of(r).size());
  mine_.resize(static_cast<size_t>(rows * widest));
  all_.resize(mine_.size() * static_cast<size_t>(ranks));
  rows_.resize(static_cast<size_t>(rows * shard.vocab_size));
  for (int64_t row = 0; row < rows; ++row) {
    const auto from = shard.logits.row(row);
    std::copy(from.begin(), from.end(), mine_.begin() + row * widest);
  }
  group_.all_gather(std::as_bytes(std::span(mine_)), std::as_writable_bytes(std::span(all_)));
  for (int64_t r = 0; r < ranks; ++r)
    for (int64_t row = 0; row < rows; ++row)
      std::copy_n(all_.begin() + (r * rows + row) * widest, range_of(r).size(),
                  rows_.begin() + row * shard.vocab_size + range_of(r).begin);
  return {rows_.data(), {rows, shard.vocab_size}};
}

}  // namespace outrider
