#include "coordinator/scheduler/kv_ledger.h"

#include <algorithm>

#include "coordinator/scheduler/live_request.h"

namespace outrider {

void KvLedger::reset(int64_t blocks) {
  index_.clear();
  opened_.clear();
  blocks_ = blocks;
  taken_ = 0;
}

// The blocks that are not shared.
int64_t KvLedger::own(const KvShare& share) const {
  return share.node == PrefixIndex::kNoNode ? 0 : share.blocks - index_.depth(share.node);
}

bool KvLedger::looks_up(const LiveRequest& live) const {
  return keeps_prefixes() && (live.request.prompt_logprobs < 0 || live.recomputes());
}

PrefixIndex::Match KvLedger::find(const LiveRequest& live) const {
  if (!looks_up(live)) return {};
  const auto ids = live.sequence.ids();
  return index_.find(ids.first(ids.size() - 1), live.request.cache_salt);
}

int32_t KvLedger::shared_prompt(const LiveRequest& live, const LiveRequest& other) const {
  if (!looks_up(live) || other.kv.apart || other.request.cache_salt != live.request.cache_salt) return 0;
  const auto ids = live.sequence.ids();
  const auto prompt = other.sequence.ids().first(static_cast<size_t>(other.sequence.prompt_length()));
  const auto end = ids.begin() + static_cast<ptrdiff_t>(std::min(ids.size() - 1, prompt.size()));
  const auto same = static_cast<int32_t>(std::mismatch(ids.begin(), end, prompt.begin()).first - ids.begin());
  return same / static_cast<int32_t>(kBlockTokens) * static_cast<int32_t>(kBlockTokens);
}

bool KvLedger::should_wait_for(const LiveRequest& live, const LiveRequest& other, int32_t known) const {
  const int32_t gain = shared_prompt(live, other) - known;
  return gain > 0 && 2 * gain >= live.sequence.committed() - known;
}

bool KvLedger::try_open(LiveRequest& live, const PrefixIndex::Match& match) {
  const int32_t longest = live.sequence.committed() + static_cast<int32_t>(kBlockTokens);
  live.kv.node = index_.hold(match, live.request.cache_salt);
  live.kv.blocks = index_.depth(live.kv.node);
  // Reserves one block more than the text takes, if there is one, or the sequence could be preempted at once.
  if (make_room(live, longest) || make_room(live, live.sequence.committed())) return true;
  index_.give_back(match, live.kv.node);
  live.kv = {};
  return false;
}

std::optional<PrefixIndex::Match> KvLedger::open(LiveRequest& live, const PrefixIndex::Match& found) {
  if (blocks_ == 0) return PrefixIndex::Match();
  const PrefixIndex::Match whole{
      .node = found.node,
      .length = found.node == PrefixIndex::kNoNode
                    ? 0
                    : index_.depth(found.node) * static_cast<int32_t>(kBlockTokens)};
  const PrefixIndex::Match nothing = index_.find({}, live.request.cache_salt);
  for (const PrefixIndex::Match& match : {found, whole, nothing}) {
    if (!try_open(live, match)) continue;
    opened_.push_back(match);
    return match;
  }
  return std::nullopt;
}

bool KvLedger::has_room(const LiveRequest& live, int64_t more_blocks) const {
  if (blocks_ == 0) return true;
  const int64_t own = kv_blocks_for(live.sequence.committed()) - index_.held_to(find(live).node);
  return index_.held() + taken_ + own + more_blocks <= blocks_;
}

// The matched blocks are held, but the prefix that contains them may have changed since.
void KvLedger::finish(StepPlan& plan) {
  for (size_t i = 0; i < opened_.size(); ++i) {
    if (opened_[i].length == 0) continue;
    plan.opens[i].prefix = index_.prefix_of(opened_[i]);
    plan.opens[i].prefix_length = opened_[i].length;
  }
  opened_.clear();
  plan.prefixes = index_.take_changes();
}

bool KvLedger::make_room(LiveRequest& live, int32_t tokens) {
  if (live.kv.node == PrefixIndex::kNoNode) return true;
  const int32_t before = live.kv.blocks;
  const auto set = [&](int32_t blocks) {
    taken_ -= own(live.kv);
    live.kv.blocks = blocks;
    taken_ += own(live.kv);
  };
  set(std::max(before, static_cast<int32_t>(kv_blocks_for(tokens))));
  if (index_.held() + taken_ > blocks_) {
    set(before);
    return false;
  }
  while (index_.blocks() + taken_ > blocks_) CHECK(index_.forget_one(), "blocks are held that nobody holds");
  return true;
}

void KvLedger::keep_prompt(LiveRequest& live) {
  if (!keeps_prefixes() || live.kv.node == PrefixIndex::kNoNode || live.kv.apart) return;
  const int32_t there = std::min(live.sequence.target.kv_length, live.sequence.prompt_length());
  const auto whole = static_cast<size_t>(there / kBlockTokens * kBlockTokens);
  if (static_cast<size_t>(index_.depth(live.kv.node)) * kBlockTokens == whole) return;
  taken_ -= own(live.kv);
  live.kv.apart = !index_.extend(live.kv.node, live.id(), live.sequence.ids().first(whole));
  taken_ += own(live.kv);
}

// KV entries beyond the text that the client received are not kept.
void KvLedger::close(LiveRequest& live) {
  if (live.kv.node == PrefixIndex::kNoNode) return;
  taken_ -= own(live.kv);
  const auto there = static_cast<size_t>(std::min(live.sequence.target.kv_length, live.sequence.committed()));
  if (keeps_prefixes() && !live.kv.apart)
    index_.extend(live.kv.node, live.id(), live.sequence.ids().first(there));
  index_.let_go(live.kv.node);
  live.kv = {};
}

}  // namespace outrider
