#include "target_worker/block_exchange.h"

#include <algorithm>

#include "base/hash.h"
#include "base/log_line.h"

namespace outrider {
namespace {

constexpr int64_t kPartBytes = int64_t{1} << 20;  // of a message, if a block is not larger
constexpr int32_t kMostBlocks = 1 << 28;          // of a sequence
constexpr int kMostMessages = 4096;               // taken at a time, as of slices

// Names blocks up to the end of `ids`, continuing a name of fewer.
uint64_t name_of(std::span<const TokenId> ids, const BlockSource& source) {
  uint64_t hash = hash_combine(prefix_hash(ids), source.model);
  hash = hash_combine(hash, static_cast<uint64_t>(source.rank));
  return hash_combine(hash, static_cast<uint64_t>(source.ranks));
}

std::span<const TokenId> up_to_block(std::span<const TokenId> ids, int32_t end) {
  return ids.first(static_cast<size_t>(end) * kBlockTokens);
}

int32_t block_of(int64_t tokens) { return static_cast<int32_t>(tokens / kBlockTokens); }

}  // namespace

// ---- sending --------------------------------------------------------------------------------------------

Transport* BlockSender::to(uint64_t inbox) {
  const auto at = connections_.find(inbox);
  if (at != connections_.end()) return at->second.get();
  auto connected = connect_(inbox);
  if (!connected.ok()) {
    log_line(LogLevel::kWarning, "blocks of prompts cannot be sent: {}", connected.status().message());
    connections_.emplace(inbox, nullptr);  // trying again would hold up every prompt
    return nullptr;
  }
  return connections_.emplace(inbox, std::move(connected).value()).first->second.get();
}

int64_t BlockSender::send(const BlockExport& blocks, std::span<const TokenId> ids, const KvCache& kv,
                          KvHandle sequence) {
  Transport* const transport = to(blocks.inbox);
  if (!transport) return 0;
  const int64_t size = kv.block_bytes();
  if (size == 0) return 0;
  const int32_t end = block_of(blocks.first.value() + blocks.count);
  const auto most = static_cast<int32_t>(std::max<int64_t>(1, kPartBytes / size));
  int64_t sent = 0;
  KvBlocks part{.transfer = blocks.transfer};
  for (int32_t first = block_of(blocks.first.value()); first < end; first += part.count) {
    part.first = first;
    part.count = std::min(most, end - first);
    part.name = name_of(up_to_block(ids, first + part.count), source_);
    part.bytes.resize(static_cast<size_t>(part.count * size));
    kv.read_blocks(sequence, first, std::as_writable_bytes(std::span(part.bytes)));
    if (const Status status = transport->send(kCoordinatorPeer, part); !status.ok()) {
      connections_.erase(blocks.inbox);  // the next prompt tries anew
      return 0;
    }
    sent += part.count * size;
  }
  return sent;
}

// ---- receiving ------------------------------------------------------------------------------------------

void BlockInbox::look() {
  for (int i = 0; i < kMostMessages; ++i) {
    auto incoming = endpoint_->receive(Clock::now());
    if (!incoming) break;
    if (auto* part = std::get_if<KvBlocks>(&incoming->message)) put(std::move(*part));
  }
  const auto now = Clock::now();
  std::erase_if(transfers_, [&](const auto& item) {
    if (now - item.second.last < options_.keeps) return false;
    for (const auto& [first, part] : item.second.parts) bytes_ -= static_cast<int64_t>(part.bytes.size());
    return true;
  });
}

void BlockInbox::drop(uint64_t transfer) {
  const auto at = transfers_.find(transfer);
  if (at == transfers_.end()) return;
  for (const auto& [first, part] : at->second.parts) bytes_ -= static_cast<int64_t>(part.bytes.size());
  transfers_.erase(at);
}

void BlockInbox::put(KvBlocks part) {
  const auto size = static_cast<int64_t>(part.bytes.size());
  if (part.first < 0 || part.first > kMostBlocks || part.count <= 0 ||
      size != part.count * options_.block_bytes || size > options_.most_bytes)
    return;
  Transfer& transfer = transfers_[part.transfer];
  transfer.last = Clock::now();
  const int32_t first = part.first;
  if (!transfer.parts.emplace(first, std::move(part)).second) return;
  bytes_ += size;
  while (bytes_ > options_.most_bytes) drop(transfers_.begin()->first);
}

bool BlockInbox::is_whole(const BlockImport& blocks, std::span<const TokenId> ids) const {
  const auto at = transfers_.find(blocks.transfer);
  if (at == transfers_.end()) return false;
  int32_t next = block_of(blocks.first.value());
  const int32_t end = block_of(blocks.first.value() + blocks.count);
  for (const auto& [first, part] : at->second.parts) {
    if (first + part.count <= next) continue;  // the group had them already
    if (first > next || first + part.count > end) return false;
    if (part.name != name_of(up_to_block(ids, first + part.count), options_.source)) return false;
    next = first + part.count;
  }
  return next == end;
}

bool BlockInbox::has(const BlockImport& blocks, std::span<const TokenId> ids, Clock::time_point deadline) {
  while (!is_whole(blocks, ids)) {
    auto incoming = endpoint_->receive(deadline);
    if (!incoming) return false;
    if (auto* part = std::get_if<KvBlocks>(&incoming->message)) put(std::move(*part));
  }
  return true;
}

void BlockInbox::take(const BlockImport& blocks, KvCache& kv, KvHandle sequence) {
  const int32_t begin = block_of(blocks.first.value());
  for (const auto& [first, part] : transfers_.at(blocks.transfer).parts) {
    const int32_t skipped = std::clamp(begin - first, 0, part.count);
    if (skipped == part.count) continue;
    kv.write_blocks(
        sequence, first + skipped,
        std::as_bytes(std::span(part.bytes)).subspan(static_cast<size_t>(skipped * options_.block_bytes)));
  }
  drop(blocks.transfer);
}

}  // namespace outrider
