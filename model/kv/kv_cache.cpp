#include "model/kv/kv_cache.h"

#include <algorithm>

#include "base/log.h"

namespace outrider {

KvCache::KvCache(std::unique_ptr<KvStorage> storage, int64_t num_blocks)
    : storage_(std::move(storage)),
      references_(static_cast<size_t>(num_blocks), 0),
      users_{{.most = num_blocks}},
      taken_by_(static_cast<size_t>(num_blocks), 0) {
  free_.reserve(static_cast<size_t>(num_blocks));
  for (int64_t b = num_blocks; b-- > 0;) free_.push_back(static_cast<int32_t>(b));
}

void KvCache::divide(std::vector<int64_t> blocks_of_users) {
  CHECK(free_blocks() == num_blocks(), "a cache in use is divided");
  CHECK(!blocks_of_users.empty() && blocks_of_users.size() <= 256, "{} users", blocks_of_users.size());
  users_.clear();
  for (const int64_t blocks : blocks_of_users) users_.push_back({.most = blocks});
  user_ = 0;
}

void KvCache::use_as(size_t user) {
  CHECK(user < users_.size(), "user {} of {}", user, users_.size());
  user_ = user;
}

KvCache::Sequence& KvCache::sequence(KvHandle handle) {
  CHECK(handle.index >= 0 && handle.index < static_cast<int32_t>(sequences_.size()) &&
            sequences_[static_cast<size_t>(handle.index)].open,
        "KV handle {} is not open", handle.index);
  return sequences_[static_cast<size_t>(handle.index)];
}
const KvCache::Sequence& KvCache::sequence(KvHandle handle) const {
  return const_cast<KvCache*>(this)->sequence(handle);
}

KvHandle KvCache::create() {
  note({.kind = KvCall::Kind::kCreate});
  return open_sequence();
}

KvHandle KvCache::open_sequence() {
  for (size_t i = 0; i < sequences_.size(); ++i)
    if (!sequences_[i].open) {
      sequences_[i].open = true;
      sequences_[i].user = user_;
      sequences_[i].settled = 0;
      sequences_[i].settle_mark = 0;
      return {static_cast<int32_t>(i)};
    }
  sequences_.push_back({.blocks = {}, .length = 0, .open = true, .user = user_});
  sequences_.back().blocks.reserve(references_.size());  // growing with the text it never allocates
  return {static_cast<int32_t>(sequences_.size() - 1)};
}

KvHandle KvCache::fork(KvHandle parent) {
  note({.kind = KvCall::Kind::kFork, .handle = parent});
  const KvHandle child = open_sequence();
  Sequence& to = sequence(child);
  const Sequence& from = sequence(parent);
  to.blocks = from.blocks;
  to.length = from.length;
  to.user = from.user;
  to.settled = from.settled;
  to.settle_mark = from.settle_mark;
  for (int32_t block : to.blocks) ++references_[static_cast<size_t>(block)];
  return child;
}

const KvCache::Kept& KvCache::kept(KvPrefix prefix) const {
  CHECK(prefix.index >= 0 && prefix.index < static_cast<int32_t>(kept_.size()) &&
            kept_[static_cast<size_t>(prefix.index)].length > 0,
        "KV prefix {} is not kept", prefix.index);
  return kept_[static_cast<size_t>(prefix.index)];
}

KvPrefix KvCache::keep(KvHandle handle, int64_t length) {
  CHECK(!calls_, "prefixes are not recorded");
  const Sequence& from = sequence(handle);
  CHECK(length > 0 && length <= from.length, "keep {} of {}", length, from.length);
  if (free_kept_.empty()) {
    free_kept_.push_back(static_cast<int32_t>(kept_.size()));
    kept_.emplace_back();
  }
  const KvPrefix prefix{free_kept_.back()};
  free_kept_.pop_back();
  const auto end = from.blocks.begin() + kv_blocks_for(length);
  kept_[static_cast<size_t>(prefix.index)] = {.blocks = {from.blocks.begin(), end}, .length = length};
  for (auto block = from.blocks.begin(); block != end; ++block) ++references_[static_cast<size_t>(*block)];
  return prefix;
}

void KvCache::cut(KvPrefix prefix, int64_t length) {
  CHECK(length >= 0 && length <= kept(prefix).length, "cut to {} of {}", length, kept(prefix).length);
  Kept& k = kept_[static_cast<size_t>(prefix.index)];
  drop_blocks_behind(k.blocks, length);
  k.length = length;
  if (length > 0) return;
  k.blocks = {};
  free_kept_.push_back(prefix.index);
}

KvHandle KvCache::create(KvPrefix prefix, int64_t length) {
  const KvHandle handle = open_sequence();
  const Kept& from = kept(prefix);
  CHECK(length >= 0 && length <= from.length, "{} tokens of a prefix of {}", length, from.length);
  Sequence& s = sequence(handle);
  s.blocks.assign(from.blocks.begin(), from.blocks.begin() + kv_blocks_for(length));
  s.length = length;
  for (const int32_t block : s.blocks) ++references_[static_cast<size_t>(block)];
  return handle;
}

void KvCache::release(KvHandle handle) {
  note({.kind = KvCall::Kind::kRelease, .handle = handle});
  shorten(handle, 0);
  sequence(handle).open = false;
}

int32_t KvCache::take_block(size_t user) {
  const int32_t block = free_.back();
  free_.pop_back();
  ++users_[user].used;
  taken_by_[static_cast<size_t>(block)] = static_cast<uint8_t>(user);
  references_[static_cast<size_t>(block)] = 1;
  return block;
}

void KvCache::drop_block(int32_t block) {
  int32_t& count = references_[static_cast<size_t>(block)];
  CHECK(count > 0, "block {} is free", block);
  if (--count > 0) return;
  free_.push_back(block);
  --users_[taken_by_[static_cast<size_t>(block)]].used;
}

void KvCache::drop_blocks_behind(std::vector<int32_t>& blocks, int64_t length) {
  while (static_cast<int64_t>(blocks.size()) > kv_blocks_for(length)) {
    drop_block(blocks.back());
    blocks.pop_back();
  }
}

Status KvCache::check_free(size_t user, int64_t needed) const {
  const auto [most, used] = users_[user];
  const int64_t free = std::min(free_blocks(), most - used);
  if (needed <= free) return {};
  return resource_exhausted(fmt::format("KV cache: {} blocks of {} tokens needed, {} of {} free", needed,
                                        kBlockTokens, free, most));
}

void KvCache::make_own(size_t user, int32_t& block) {
  const int32_t own = take_block(user);
  storage_->copy_block(block, own);
  drop_block(block);
  block = own;
}

Status KvCache::append(KvHandle handle, int64_t count) {
  Sequence& s = sequence(handle);
  const int64_t have = static_cast<int64_t>(s.blocks.size());
  const bool shared_tail = s.length % kBlockTokens != 0 && count > 0 &&
                           is_shared(s.blocks[static_cast<size_t>(s.length / kBlockTokens)]);
  const int64_t needed = std::max<int64_t>(0, kv_blocks_for(s.length + count) - have) + (shared_tail ? 1 : 0);
  RETURN_IF_ERROR(check_free(s.user, needed));
  if (shared_tail) make_own(s.user, s.blocks[static_cast<size_t>(s.length / kBlockTokens)]);
  while (static_cast<int64_t>(s.blocks.size()) < kv_blocks_for(s.length + count))
    s.blocks.push_back(take_block(s.user));
  s.length += count;
  return {};
}

void KvCache::truncate(KvHandle handle, int64_t length) {
  if (length != sequence(handle).length)
    note({.kind = KvCall::Kind::kTruncate, .handle = handle, .length = length});
  shorten(handle, length);
}

void KvCache::replay(const KvCall& call) {
  switch (call.kind) {
    case KvCall::Kind::kCreate:
      (void)create();
      return;
    case KvCall::Kind::kFork:
      (void)fork(call.handle);
      return;
    case KvCall::Kind::kRelease:
      return release(call.handle);
    case KvCall::Kind::kTruncate:
      return truncate(call.handle, call.length);
  }
}

void KvCache::shorten(KvHandle handle, int64_t length) {
  Sequence& s = sequence(handle);
  CHECK(length >= 0 && length <= s.length, "truncate to {} of {}", length, s.length);
  drop_blocks_behind(s.blocks, length);
  s.length = length;
  s.settled = std::min(s.settled, length);
}

uint64_t KvCache::settle(KvHandle handle, int64_t length) {
  Sequence& s = sequence(handle);
  CHECK(length >= 0 && length <= s.length, "{} of {} tokens are settled", length, s.length);
  s.settled = length;
  return s.settle_mark = ++settle_calls_;
}

Status KvCache::keep_path(KvHandle handle, int64_t base, std::span<const int32_t> nodes) {
  CHECK(!calls_, "paths are not recorded");
  Sequence& s = sequence(handle);
  const auto kept = static_cast<int64_t>(nodes.size());
  CHECK(base >= 0 && base + kept <= s.length, "{} nodes from {} of {}", kept, base, s.length);
  const auto node = [&](int64_t i) { return nodes[static_cast<size_t>(i)]; };
  int64_t first = 0;  // that is out of place; then all behind it are, too
  while (first < kept && node(first) == first) ++first;
  for (int64_t i = first; i < kept; ++i)
    CHECK(node(i) >= i && (i == 0 || node(i) > node(i - 1)) && base + node(i) < s.length,
          "node {} of a tree at {} of {}", node(i), base, s.length);
  if (first < kept) {
    const auto begin = s.blocks.begin() + (base + first) / kBlockTokens,
               end = s.blocks.begin() + kv_blocks_for(base + kept);
    RETURN_IF_ERROR(
        check_free(s.user, std::count_if(begin, end, [&](int32_t block) { return is_shared(block); })));
    for (auto block = begin; block != end; ++block)
      if (is_shared(*block)) make_own(s.user, *block);
    moves_.clear();
    for (int64_t i = first; i < kept; ++i)
      moves_.push_back({slot(handle, base + node(i)), slot(handle, base + i)});
    storage_->copy_slots(moves_);
    s.settled = std::min(s.settled, base + first);
  }
  shorten(handle, base + kept);
  return {};
}

void KvCache::read_blocks(KvHandle handle, int64_t first, std::span<std::byte> to) const {
  const Sequence& s = sequence(handle);
  const auto size = static_cast<size_t>(block_bytes());
  const auto count = static_cast<int64_t>(to.size() / size);
  CHECK(first >= 0 && (first + count) * kBlockTokens <= s.length, "blocks {} to {} of {} tokens", first,
        first + count, s.length);
  for (int64_t i = 0; i < count; ++i)
    storage_->read_block(s.blocks[static_cast<size_t>(first + i)],
                         to.subspan(static_cast<size_t>(i) * size, size));
}

void KvCache::write_blocks(KvHandle handle, int64_t first, std::span<const std::byte> from) {
  const Sequence& s = sequence(handle);
  const auto size = static_cast<size_t>(block_bytes());
  const auto count = static_cast<int64_t>(from.size() / size);
  CHECK(first >= 0 && (first + count) * kBlockTokens <= s.length, "blocks {} to {} of {} tokens", first,
        first + count, s.length);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t block = s.blocks[static_cast<size_t>(first + i)];
    CHECK(!is_shared(block), "block {} has other owners", block);
    storage_->write_block(block, from.subspan(static_cast<size_t>(i) * size, size));
  }
}

Status KvCache::check_invariants() const {
  std::vector<int32_t> counted(references_.size(), 0);
  for (const Sequence& s : sequences_) {
    if (!s.open && !s.blocks.empty()) return malformed("a closed sequence owns blocks");
    if (s.open && static_cast<int64_t>(s.blocks.size()) != kv_blocks_for(s.length))
      return malformed(fmt::format("{} blocks for {} tokens", s.blocks.size(), s.length));
    for (int32_t block : s.blocks) ++counted[static_cast<size_t>(block)];
  }
  for (const Kept& k : kept_) {
    if (static_cast<int64_t>(k.blocks.size()) != kv_blocks_for(k.length))
      return malformed(fmt::format("{} blocks for a prefix of {} tokens", k.blocks.size(), k.length));
    for (int32_t block : k.blocks) ++counted[static_cast<size_t>(block)];
  }
  if (counted != references_) return malformed("reference counts differ from the block tables");
  std::vector<int32_t> seen(references_.size(), 0);
  for (int32_t block : free_) {
    if (references_[static_cast<size_t>(block)] != 0)
      return malformed(fmt::format("block {} is free and in use", block));
    if (++seen[static_cast<size_t>(block)] > 1)
      return malformed(fmt::format("block {} is free twice", block));
  }
  std::vector<int64_t> taken(users_.size(), 0);
  for (size_t block = 0; block < references_.size(); ++block)
    if (references_[block] > 0) ++taken[taken_by_[block]];
  for (size_t user = 0; user < users_.size(); ++user)
    if (users_[user].used != taken[user] || taken[user] > users_[user].most)
      return malformed(fmt::format("user {} holds {} blocks of {}", user, taken[user], users_[user].most));
  const auto used = std::count_if(references_.begin(), references_.end(), [](int32_t r) { return r > 0; });
  if (used + free_blocks() != num_blocks()) return malformed("a block is lost");
  return {};
}

uint64_t KvCache::content_hash(KvHandle handle) const {
  const Sequence& s = sequence(handle);
  return storage_->content_hash(s.blocks, s.length);
}

}  // namespace outrider
