#include "draft_worker/wire/row_sender.h"

#include <algorithm>

#include "base/log.h"
#include "base/log_line.h"
#include "base/short_weight.h"

namespace outrider {

bool RowSender::reserve(SequenceId sequence, int32_t rows) {
  if (!link_ || given_up_ || rows > links_.rows || link_->state() != LinkState::kReady) return false;
  if (kept_for(sequence)) return true;
  Slot* const slot = free_slot();
  if (slot) slot->sequence = sequence;
  return slot != nullptr;
}

void RowSender::keep(SequenceId sequence, Round round, size_t i, const DeviceRow& row) {
  Slot* const slot = kept_for(sequence);
  CHECK(slot, "sequence {} has no place for rows", sequence.value());
  if (slot->round != round || i == 0) slot->rows.clear();
  slot->round = round;
  slot->rows.resize(std::max(slot->rows.size(), i + 1));
  slot->rows[i] = row;
  link_->keep(index_of(*slot), static_cast<int32_t>(i), row.weights);
}

void RowSender::settle() {
  if (link_) link_->settle();
}

void RowSender::drop(SequenceId sequence) {
  if (Slot* const slot = kept_for(sequence)) slot->sequence.reset();
}

bool RowSender::send(Draft& draft, Endpoints endpoints) {
  Slot* const slot = is_ready(endpoints) ? filled_slot(draft) : nullptr;
  if (slot && pass(draft, *slot, endpoints)) return true;
  bring_home(draft);
  drop(draft.sequence);
  return false;
}

bool RowSender::pass(const Draft& draft, Slot& slot, Endpoints endpoints) {
  if (!announce(draft, slot, endpoints)) {
    give_up("a rank did not take the news of a transfer");
    return false;
  }
  const auto rows = static_cast<int32_t>(draft.q.size());
  link_->transfer(index_of(slot), rows);
  slot.transfer = transfers_;
  slot.sequence.reset();
  bytes_ += rows * vocab_size_ * int64_t{sizeof(uint16_t)};
  (void)link_->state();  // starts the connection
  return true;
}

// Ranks send only failures; a rank that keeps sending is ignored after a limit.
bool RowSender::is_ready(Endpoints endpoints) {
  if (!std::exchange(offered_, true))
    if (const Status status = offer(endpoints); !status.ok()) give_up(status.message());
  constexpr int kMaxWords = 16;
  for (const auto& endpoint : endpoints)
    for (int i = 0; i < kMaxWords; ++i) {
      const auto incoming = endpoint->receive(Clock::now());
      if (!incoming) break;
      if (const auto* failure = std::get_if<Failure>(&incoming->message)) give_up(failure->message);
    }
  if (!link_ || given_up_) return false;
  const LinkState state = link_->state();
  if (state == LinkState::kBroken) give_up(link_->reason());
  return state == LinkState::kReady;
}

Status RowSender::offer(Endpoints endpoints) {
  ASSIGN_OR_RETURN(const std::string id, links_.new_id());
  for (const auto& endpoint : endpoints)
    RETURN_IF_ERROR(endpoint->send(kCoordinatorPeer, LinkOffer{.worker = worker_, .id = id}));
  slots_.resize(static_cast<size_t>(links_.slots));
  ASSIGN_OR_RETURN(link_, links_.join(id));
  return {};
}

// Rows kept on the device can still be fetched.
void RowSender::give_up(const std::string& reason) {
  if (std::exchange(given_up_, true)) return;
  if (link_) link_->abort(reason);
  log_line(LogLevel::kInfo, "rows of q go to the target by its sockets: {}", reason);
}

RowSender::Slot* RowSender::kept_for(SequenceId sequence) {
  const auto at =
      std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.sequence == sequence; });
  return at == slots_.end() ? nullptr : &*at;
}

RowSender::Slot* RowSender::free_slot() {
  const auto at = std::find_if(slots_.begin(), slots_.end(),
                               [&](const Slot& s) { return !s.sequence && s.transfer <= link_->done(); });
  return at == slots_.end() ? nullptr : &*at;
}

// The slot with all rows of the draft on the device; null: no room, or some weights do not fit 16 bits.
RowSender::Slot* RowSender::filled_slot(Draft& draft) {
  // A transfer announces one token for each row.
  if (!draft.parents.empty()) return nullptr;
  if (draft.q.size() > static_cast<size_t>(links_.rows) || !link_->accepts()) return nullptr;
  Slot* slot = kept_for(draft.sequence);
  if (slot && slot->round == draft.round && slot->rows.size() >= draft.q.size() &&
      std::all_of(draft.q.begin(), draft.q.end(), [](const QRow& row) { return row.weights.empty(); }))
    return slot;
  bring_home(draft);
  drop(draft.sequence);
  slot = free_slot();
  return slot && pack(draft, *slot) ? slot : nullptr;
}

bool RowSender::pack(const Draft& draft, Slot& slot) {
  auto room = link_->host_slot(index_of(slot));
  const auto width = static_cast<size_t>(vocab_size_);
  slot.rows.clear();
  for (size_t i = 0; i < draft.q.size(); ++i, room = room.subspan(width)) {
    const QRow& row = draft.q[i];
    const auto weights = std::span(row.weights).first(std::min(row.weights.size(), width));
    if (!pack_short_weights(weights, room.data())) return false;
    std::fill_n(room.begin() + static_cast<ptrdiff_t>(weights.size()), width - weights.size(), uint16_t{0});
    slot.rows.push_back({.sum = row.sum, .drawn = weight_in(row, draft.ids[i])});
  }
  link_->fill(index_of(slot), static_cast<int32_t>(draft.q.size()));
  link_->settle();
  return true;
}

void RowSender::bring_home(Draft& draft) {
  Slot* const slot = kept_for(draft.sequence);
  if (!slot || slot->round != draft.round) return;
  const auto width = static_cast<size_t>(vocab_size_);
  for (size_t i = 0; i < std::min(draft.q.size(), slot->rows.size()); ++i) {
    if (!draft.q[i].weights.empty() || !slot->rows[i].weights) continue;
    link_->fetch(index_of(*slot), static_cast<int32_t>(i));
    draft.q[i].weights.resize(width);
    (void)unpack_short_weights(link_->host_slot(index_of(*slot)).subspan(i * width, width),
                               draft.q[i].weights.data());
  }
}

bool RowSender::announce(const Draft& draft, const Slot& slot, Endpoints endpoints) {
  auto& transfer = std::get<QTransfer>(message_);
  transfer.sequence = draft.sequence;
  transfer.round = draft.round;
  transfer.worker = worker_;
  transfer.number = ++transfers_;
  transfer.sums.clear();
  transfer.drafted.clear();
  for (const DeviceRow& row : std::span(slot.rows).first(draft.q.size())) {
    transfer.sums.push_back(row.sum);
    transfer.drafted.push_back(row.drawn);
  }
  return std::all_of(endpoints.begin(), endpoints.end(),
                     [&](const auto& endpoint) { return endpoint->send(kCoordinatorPeer, message_).ok(); });
}

}  // namespace outrider
