#include "draft_worker/wire/hidden_state_inbox.h"

#include <algorithm>

#include "base/bfloat16.h"
#include "base/log_line.h"
#include "comm/message_check.h"
#include "draft_worker/wire/slice_sender.h"

namespace outrider {
namespace {

constexpr int kMaxWords = 256;        // messages handled in one call
constexpr size_t kMaxWaiting = 4096;  // limit of announced transfers without a slot

}  // namespace

Result<std::unique_ptr<HiddenStateInbox>> HiddenStateInbox::connect(const SliceEndpoints& endpoints,
                                                                    RowLinks links, HeadCompute& compute,
                                                                    const HiddenStateInboxOptions& options,
                                                                    std::chrono::milliseconds timeout) {
  ASSIGN_OR_RETURN(auto endpoint, connect_to_endpoint(endpoints, 0, timeout));
  return std::make_unique<HiddenStateInbox>(std::move(endpoint), std::move(links), compute, options);
}

HiddenStateInbox::HiddenStateInbox(std::unique_ptr<Transport> endpoint, RowLinks links, HeadCompute& compute,
                                   const HiddenStateInboxOptions& options)
    : endpoint_(std::move(endpoint)),
      links_(std::move(links)),
      compute_(compute),
      options_(options),
      room_(compute.rows(links_.rows, options.width)),
      taken_(static_cast<size_t>(links_.slots)) {}

Status HiddenStateInbox::offer() {
  ASSIGN_OR_RETURN(const std::string id, links_.new_id());
  RETURN_IF_ERROR(endpoint_->send(kCoordinatorPeer,
                                  LinkOffer{.worker = options_.worker, .id = id, .hidden_states = true}));
  ASSIGN_OR_RETURN(link_, links_.join(id));
  return {};
}

void HiddenStateInbox::look() {
  if (!std::exchange(offered_, true))
    if (const Status status = offer(); !status.ok()) give_up(status.message());
  for (int i = 0; i < kMaxWords && !ended_; ++i) {
    const auto incoming = endpoint_->receive(Clock::now());
    if (!incoming) break;
    if (const auto* transfer = std::get_if<HiddenStateTransfer>(&incoming->message)) announce(*transfer);
    if (const auto* failure = std::get_if<Failure>(&incoming->message)) give_up(failure->message);
  }
  if (ended_) return;
  const LinkState state = link_->state();
  for (; done_ < link_->done(); ++done_) {
    Transfer& transfer = transfers_.at(posted_.front());
    posted_.pop_front();
    transfer.here = true;
    arrived_ += transfer.rows;
  }
  if (state == LinkState::kBroken) return give_up(link_->reason());
  ready_ = state == LinkState::kReady;
  post_waiting();
  const auto now = Clock::now();
  const bool is_late = std::any_of(transfers_.begin(), transfers_.end(), [&](const auto& entry) {
    const Transfer& transfer = entry.second;
    return transfer.claimed && !transfer.here && now - transfer.since > options_.patience;
  });
  if (is_late) give_up("rows did not come in time");
}

void HiddenStateInbox::announce(const HiddenStateTransfer& transfer) {
  if (const Status status = check(transfer, links_.rows); !status.ok()) return give_up(status.message());
  if (transfer.number != announced_ + 1 || waiting_.size() >= kMaxWaiting)
    return give_up(fmt::format("state_transfer: number is {} behind {}", transfer.number, announced_));
  ++announced_;
  transfers_[announced_].rows = transfer.rows;
  waiting_.push_back(announced_);
}

// Starts waiting transfers in order, while there are slots.
void HiddenStateInbox::post_waiting() {
  while (!waiting_.empty()) {
    const int32_t slot = free_slot();
    if (slot == kNoSlot) return;
    if (std::exchange(unread_, false)) compute_.wait();
    Transfer& transfer = transfers_.at(waiting_.front());
    taken_[static_cast<size_t>(slot)] = true;
    transfer.slot = slot;
    link_->transfer(slot, transfer.rows);
    posted_.push_back(waiting_.front());
    waiting_.pop_front();
    (void)link_->state();  // starts the connection
  }
}

int32_t HiddenStateInbox::free_slot() {
  const auto free = [this] { return std::find(taken_.begin(), taken_.end(), false); };
  if (free() == taken_.end()) make_room();
  const auto at = free();
  return at == taken_.end() ? kNoSlot : static_cast<int32_t>(at - taken_.begin());
}

// Frees a slot. HiddenStateRows come in the order of their transfers, so an unclaimed transfer before the
// last claimed one will never be claimed and is dropped. Otherwise the oldest claimed rows move to the host.
// Newer unclaimed rows are dropped last, because the HiddenStateRows of a plan come after all of its
// transfers.
void HiddenStateInbox::make_room() {
  const auto oldest = [this](bool claimed) {
    return std::find_if(transfers_.begin(), transfers_.end(), [&](const auto& entry) {
      return entry.second.here && entry.second.slot != kNoSlot && entry.second.claimed == claimed;
    });
  };
  const auto unclaimed = oldest(false), claimed = oldest(true);
  if (unclaimed != transfers_.end() && (unclaimed->first < last_claimed_ || claimed == transfers_.end()))
    release(unclaimed->first);
  else if (claimed != transfers_.end())
    bring_home(claimed->second);
}

void HiddenStateInbox::bring_home(Transfer& transfer) {
  const FloatRows there = room_.rows(transfer.rows);
  compute_.widen(link_->slot(transfer.slot), there);
  const FloatRows here = compute_.fetch(there);
  for (int64_t r = 0; r < here.extent(0); ++r)
    for (const float number : here.row(r)) transfer.home.push_back(to_bf16(number).bits);
  taken_[static_cast<size_t>(std::exchange(transfer.slot, kNoSlot))] = false;
  brought_home_ += transfer.rows;
}

// Rows that have arrived can still be read.
void HiddenStateInbox::give_up(const std::string& reason) {
  if (std::exchange(ended_, true)) return;
  ready_ = false;
  if (link_) link_->abort(reason);
  (void)endpoint_->send(kCoordinatorPeer, Failure{reason});
  std::erase_if(transfers_, [](const auto& entry) { return !entry.second.here; });
  log_line(LogLevel::kInfo, "rows of states come from the target by sockets: {}", reason);
}

void HiddenStateInbox::claim(uint64_t number) {
  const auto at = transfers_.find(number);
  if (at == transfers_.end() && (ended_ || number <= announced_)) return;  // lost
  Transfer& transfer = at == transfers_.end() ? transfers_[number] : at->second;
  last_claimed_ = std::max(last_claimed_, number);
  if (!std::exchange(transfer.claimed, true)) transfer.since = Clock::now();
}

void HiddenStateInbox::release(uint64_t number) {
  const auto at = transfers_.find(number);
  if (at == transfers_.end()) return;
  Transfer& transfer = at->second;
  if (!transfer.here) {  // it keeps its place in the order
    transfer.claimed = false;
    if (transfer.rows == 0) transfers_.erase(at);
    return;
  }
  if (transfer.slot != kNoSlot) taken_[static_cast<size_t>(transfer.slot)] = false;
  unread_ = true;
  transfers_.erase(at);
}

HiddenStateInbox::Arrival HiddenStateInbox::arrival(uint64_t number, int64_t rows) const {
  const auto at = transfers_.find(number);
  if (at == transfers_.end()) return Arrival::kLost;
  const Transfer& transfer = at->second;
  if (transfer.rows > 0 && transfer.rows < rows) return Arrival::kLost;
  return transfer.here ? Arrival::kHere : Arrival::kComing;
}

void HiddenStateInbox::read(uint64_t number, int64_t first, FloatRows to) {
  const Transfer& transfer = transfers_.at(number);
  CHECK(transfer.here && first + to.extent(0) <= transfer.rows, "rows [{}, {}) of {}", first,
        first + to.extent(0), transfer.rows);
  const int64_t begin = first * options_.width;
  if (transfer.slot == kNoSlot) return put_rows(compute_, transfer.home.data() + begin, to);
  compute_.widen(link_->slot(transfer.slot) + begin, to);
}

}  // namespace outrider
