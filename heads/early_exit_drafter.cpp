#include "heads/early_exit_drafter.h"

#include <algorithm>
#include <chrono>

#include "heads/stop_rule.h"
#include "kernels/sampling/penalties.h"

namespace outrider {
namespace {

// Committed tokens that are in the cache.
int64_t cached_tokens(const HeadTask& task) { return static_cast<int64_t>(task.committed.size()) - 1; }

// Read next.
std::span<const TokenId> last_token(const HeadTask& task, const HeadDraft& draft) {
  return draft.ids.empty() ? task.committed.last(1) : std::span<const TokenId>(draft.ids).last(1);
}

}  // namespace

EarlyExitDrafter::EarlyExitDrafter(Model& target, Collectives& group, int64_t layers,
                                   HeadDrafterOptions options)
    : target_(target),
      group_(group),
      gathering_(group, target.config().vocab_size),
      layers_(layers),
      draws_(target.config().vocab_size, {}, std::move(options.eos_ids)),
      runner_(target.make_runner(target.config().vocab_size)) {}

void EarlyExitDrafter::draft(std::span<const HeadTask> tasks, HiddenStateSource&,
                             std::vector<HeadDraft>& drafts) {
  using SteadyClock = std::chrono::steady_clock;
  const auto start = SteadyClock::now();
  const auto ns = [&] {
    return static_cast<int64_t>(std::chrono::nanoseconds(SteadyClock::now() - start).count());
  };
  drafts.resize(tasks.size());
  going_.clear();
  for (size_t i = 0; i < tasks.size(); ++i) {
    drafts[i].clear();
    CHECK(!tasks[i].branches() && target_.kv().length(tasks[i].kv) == cached_tokens(tasks[i]),
          "{} of {} tokens are in the cache", target_.kv().length(tasks[i].kv), cached_tokens(tasks[i]));
    if (tasks[i].gamma == 0 || cached_tokens(tasks[i]) >= target_.max_positions()) continue;
    exited_[tasks[i].sequence].begin(cached_tokens(tasks[i]), tasks[i].gamma);
    going_.push_back(i);
  }
  const auto most = static_cast<size_t>(std::min(target_.max_rows(), target_.max_logit_rows()));
  going_.resize(std::min(going_.size(), most));
  ingest_ns_ = 0;
  for (bool ran = true; !going_.empty();) {
    ran = ran && run(tasks, drafts);  // what the cache had no room for once it has none for in this draft
    if (!ran && !step(tasks, drafts)) break;
    if (ingest_ns_ == 0) ingest_ns_ = ran ? runner_->first_ns() : ns();
  }
  for (const HeadTask& task : tasks) target_.kv().truncate(task.kv, cached_tokens(task));
  draft_ns_ = ns() - ingest_ns_;
}

template <class GoesOn>
void EarlyExitDrafter::keep_going(std::span<const HeadTask> tasks, GoesOn goes_on) {
  size_t kept = 0;
  for (size_t place = 0; place < going_.size(); ++place) {
    const size_t i = going_[place];
    if (goes_on(place) && target_.kv().length(tasks[i].kv) < target_.max_positions()) going_[kept++] = i;
  }
  going_.resize(kept);
}

// Drafts several tokens for each sequence where the model computes, or one token that may be the last. False:
// the host must draw the tokens, or the cache has no room.
bool EarlyExitDrafter::run(std::span<const HeadTask> tasks, std::vector<HeadDraft>& drafts) {
  if (!runner_) return false;
  const bool is_watched =
      std::any_of(going_.begin(), going_.end(), [&](size_t i) { return may_stop(tasks[i].stop); });
  runs_.clear();
  for (const size_t i : going_) {
    const HeadTask& task = tasks[i];
    const auto left = task.gamma - static_cast<int64_t>(drafts[i].ids.size());
    const int64_t room = target_.max_positions() - target_.kv().length(task.kv);
    runs_.push_back({.sequence = task.kv,
                     .inputs = last_token(task, drafts[i]),
                     .first = draws_.step_of(task, drafts[i]),
                     .count = is_watched ? 1 : static_cast<int32_t>(std::min(left, room))});
  }
  if (!runner_->takes(runs_)) return false;
  if (const Status status = runner_->run(runs_, is_watched); !status.ok()) {
    CHECK(status.code() == StatusCode::kResourceExhausted, "early exit: {}", status.message());
    return false;
  }
  keep_going(tasks, [&](size_t place) {
    const size_t i = going_[place];
    return take_run(place, is_watched, tasks[i], drafts[i]);
  });
  return true;
}

bool EarlyExitDrafter::take_run(size_t run, bool is_watched, const HeadTask& task, HeadDraft& draft) {
  const auto tokens = runner_->tokens(run);
  for (size_t n = 0; n < tokens.size(); ++n) {
    if (needs_q(effective_rule(*task.sampling))) runner_->read_q(run, n, draft.q.emplace_back());
    const auto confidence = is_watched ? runner_->confidence(run, n) : DraftConfidence();
    if (!draws_.take(task, tokens[n], confidence, draft)) return false;
  }
  return !runner_->failed(run);
}

// One token for each. False: the cache is full, on every rank alike.
bool EarlyExitDrafter::step(std::span<const HeadTask> tasks, std::vector<HeadDraft>& drafts) {
  slices_.clear();
  keep_.clear();
  for (const size_t i : going_) {
    slices_.push_back({.sequence = tasks[i].kv, .tokens = last_token(tasks[i], drafts[i]), .logit_rows = 1});
    keep_.push_back(&exited_.at(tasks[i].sequence));
  }
  const auto shard = target_.forward_first(slices_, layers_, keep_);
  if (!shard.ok()) {
    CHECK(shard.status().code() == StatusCode::kResourceExhausted, "early exit: {}",
          shard.status().message());
    return false;
  }
  auto rows = shard->logits;
  if (group_.size() > 1) {
    gathering_.exchange(*shard);
    rows = gathering_.rows();
  }
  keep_going(tasks, [&](size_t place) {
    const size_t i = going_[place];
    return draws_.draw(tasks[i], rows.row(static_cast<int64_t>(place)), drafts[i]);
  });
  return true;
}

const ExitedTokens* EarlyExitDrafter::exited(SequenceId sequence) const {
  const auto at = exited_.find(sequence);
  return at == exited_.end() ? nullptr : &at->second;
}

}  // namespace outrider
