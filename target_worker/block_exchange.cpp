#include "target_worker/block_exchange.h"

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "base/log_line.h"

namespace outrider {
namespace {

constexpr int32_t kMostBlocks = 1 << 28;       // of a sequence
constexpr int kMostMessages = 4096;            // taken at a time, as of slices
constexpr std::chrono::milliseconds kRest{1};  // before an inbox that was full is tried again

int32_t block_of(int64_t tokens) { return static_cast<int32_t>(tokens / kBlockTokens); }

}  // namespace

uint64_t BlockNames::up_to(std::span<const TokenId> ids, int32_t end) {
  for (const int64_t tokens = end * kBlockTokens; tokens_ < tokens; ++tokens_)
    hash_ = extend_prefix_hash(hash_, ids[static_cast<size_t>(tokens_)]);
  uint64_t name = hash_combine(hash_, source_.model);
  name = hash_combine(name, static_cast<uint64_t>(source_.rank));
  return hash_combine(name, static_cast<uint64_t>(source_.ranks));
}

// ---- sending --------------------------------------------------------------------------------------------

Transport* BlockSender::to(uint64_t inbox) {
  Connection& connection = connections_[inbox];
  if (connection.transport) return connection.transport.get();
  if (options_.now() < connection.again) return nullptr;  // a try holds up every prompt
  auto connected = connect_(inbox);
  if (connected.ok()) {
    connection.transport = std::move(connected).value();
    return connection.transport.get();
  }
  log_line(LogLevel::kWarning, "blocks of prompts cannot be sent: {}", connected.status().message());
  connection.again = options_.now() + options_.pause;
  return nullptr;
}

Status BlockSender::send_part(Transport& transport, const KvBlocks& part, Clock::time_point deadline) const {
  for (;;) {
    Status status = transport.send(kCoordinatorPeer, part);
    if (status.code() != StatusCode::kResourceExhausted || options_.now() >= deadline) return status;
    std::this_thread::sleep_for(kRest);
  }
}

int64_t BlockSender::send(const BlockExport& blocks, std::span<const TokenId> ids, const KvCache& kv,
                          KvHandle sequence, Clock::time_point deadline) {
  const int64_t size = kv.block_bytes();
  Transport* const transport = size > 0 ? to(blocks.inbox) : nullptr;
  if (!transport) return 0;
  const int32_t end = block_of(blocks.first.value() + blocks.count);
  const auto most = static_cast<int32_t>(std::max<int64_t>(1, kBlockPartBytes / size));
  BlockNames names(options_.source);
  Status status;
  int64_t sent = 0;
  KvBlocks part{.transfer = blocks.transfer};
  for (int32_t first = block_of(blocks.first.value()); first < end && status.ok(); first += part.count) {
    part.first = first;
    part.count = std::min(most, end - first);
    part.name = names.up_to(ids, first + part.count);
    part.bytes.resize(static_cast<size_t>(part.count * size));
    kv.read_blocks(sequence, first, std::as_writable_bytes(std::span(part.bytes)));
    status = send_part(*transport, part, deadline);
    sent += part.count * size;
  }
  tokens_hashed_ += names.hashed();
  if (status.ok()) return sent;
  log_line(LogLevel::kInfo, "blocks of a prompt were not sent: {}", status.message());
  return 0;
}

// ---- receiving ------------------------------------------------------------------------------------------

bool BlockInbox::receive(Clock::time_point deadline) {
  auto incoming = endpoint_->receive(deadline);
  if (!incoming) return false;
  if (auto* part = std::get_if<KvBlocks>(&incoming->message)) put(std::move(*part));
  return true;
}

void BlockInbox::receive_queued(Clock::time_point deadline) {
  for (int i = 0; i < kMostMessages; ++i) {
    const auto now = Clock::now();
    if (now >= deadline || !receive(now)) return;
  }
}

void BlockInbox::look() {
  receive_queued(Clock::time_point::max());
  const auto now = Clock::now();
  for (auto at = transfers_.begin(); at != transfers_.end();) {
    at->second.was_found = false;
    at = now - at->second.last < options_.keeps ? std::next(at) : drop(at);
  }
}

std::map<uint64_t, BlockInbox::Transfer>::iterator BlockInbox::drop(
    std::map<uint64_t, Transfer>::iterator at) {
  for (const auto& [first, part] : at->second.parts) bytes_ -= static_cast<int64_t>(part.bytes.size());
  return transfers_.erase(at);
}

void BlockInbox::put(KvBlocks part) {
  const auto size = static_cast<int64_t>(part.bytes.size());
  const int32_t first = part.first;
  if (first < 0 || first > kMostBlocks || part.count <= 0 || size != part.count * options_.block_bytes ||
      size > options_.most_bytes)
    return;
  Transfer& transfer = transfers_[part.transfer];
  transfer.last = Clock::now();
  auto& parts = transfer.parts;
  const auto after = parts.lower_bound(first);
  if (after != parts.end() && after->first < first + part.count) return;
  if (after != parts.begin() && std::prev(after)->first + std::prev(after)->second.count > first) return;
  parts.emplace_hint(after, first, std::move(part));
  bytes_ += size;
  for (auto at = transfers_.begin(); bytes_ > options_.most_bytes && at != transfers_.end();)
    at = at->second.was_found ? std::next(at) : drop(at);
}

// Continues where the last call for the same sequence ended.
bool BlockInbox::is_whole(const BlockImport& blocks, std::span<const TokenId> ids) {
  const auto at = transfers_.find(blocks.transfer);
  if (at == transfers_.end()) return false;
  const auto& parts = at->second.parts;
  auto& check = at->second.check;
  const int32_t begin = block_of(blocks.first.value()), end = block_of(blocks.first.value() + blocks.count);
  if (!check || check->sequence != blocks.sequence || check->begin != begin || check->next > end)
    check = Check{blocks.sequence, begin, begin, BlockNames(options_.source)};
  while (check->next < end && !check->is_other) {
    const auto after = parts.upper_bound(check->next);
    if (after == parts.begin()) return false;
    const auto& [first, part] = *std::prev(after);
    const int32_t part_end = first + part.count;
    if (part_end <= check->next || part_end > end) return false;
    const int64_t hashed = check->names.hashed();
    check->is_other = part.name != check->names.up_to(ids, part_end);
    tokens_hashed_ += check->names.hashed() - hashed;
    if (!check->is_other) check->next = part_end;
  }
  return check->next == end && parts.rbegin()->first < end;
}

bool BlockInbox::has(const BlockImport& blocks, std::span<const TokenId> ids, Clock::time_point deadline) {
  while (!is_whole(blocks, ids)) {
    // A queue that is never empty does not hold it up beyond the deadline.
    if (Clock::now() >= deadline || !receive(deadline)) return false;
    receive_queued(deadline);
  }
  transfers_.at(blocks.transfer).was_found = true;
  return true;
}

void BlockInbox::take(const BlockImport& blocks, KvCache& kv, KvHandle sequence) {
  const int32_t begin = block_of(blocks.first.value());
  const auto at = transfers_.find(blocks.transfer);
  if (at == transfers_.end())
    throw std::runtime_error(fmt::format("blocks of transfer {} are not here", blocks.transfer));
  for (const auto& [first, part] : at->second.parts) {
    const int32_t skipped = std::clamp(begin - first, 0, part.count);
    if (skipped == part.count) continue;
    kv.write_blocks(
        sequence, first + skipped,
        std::as_bytes(std::span(part.bytes)).subspan(static_cast<size_t>(skipped * options_.block_bytes)));
  }
  drop(at);
}

}  // namespace outrider
