#include "target_worker/plan_source.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/absence.h"
#include "base/hash.h"
#include "comm/codec.h"

namespace outrider {

// Bits are promised within one instruction set, so a mixed group would diverge silently. So would one with
// different heads.
void PlanSource::agree_on_setup() {
  uint64_t mine = options_.head ? options_.head->fingerprint() : 0;
  for (char c : model_.isa()) mine = hash_combine(mine, static_cast<unsigned char>(c));
  std::vector<uint64_t> all(static_cast<size_t>(group_.size()));
  group_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r] != mine)
      throw std::runtime_error(
          fmt::format("target rank {} uses {}, rank {} another instruction set or draft model; pin one with "
                      "--isa, or copy the other",
                      group_.rank(), model_.isa(), r));
}

Status PlanSource::join(Transport& transport) {
  RETURN_IF_ERROR(transport.send(kCoordinatorPeer,
                                 Hello{.role = Role::kTarget,
                                       .generation = options_.generation,
                                       .model = options_.info,
                                       .max_sequences = options_.max_sequences,
                                       .slices = options_.slices,
                                       .head_fingerprint = options_.head ? options_.head->fingerprint() : 0,
                                       .co_located_drafter = options_.co_located_drafter,
                                       .kv_blocks = model_.kv().num_blocks(),
                                       .hidden_state_head = options_.hidden_state_head,
                                       .hidden_state_width = options_.hidden_state_width,
                                       .drafts_blocks = options_.drafts_blocks,
                                       .pass_times = options_.pass_times,
                                       .only_prefills = options_.block_sender != nullptr,
                                       .block_inbox = options_.block_inbox_name}));
  constexpr auto kJoinTimeout = std::chrono::seconds(60);
  MovingDeadline deadline(Clock::now() + kJoinTimeout);
  while (!deadline.is_over()) {
    const auto incoming = transport.receive(deadline.next_look());
    if (!incoming) continue;
    leaving_ = std::holds_alternative<Shutdown>(incoming->message);
    if (leaving_) return {};
    const auto* welcome = std::get_if<Welcome>(&incoming->message);
    if (!welcome) continue;
    if (!welcome->accepted) return invalid_argument("the coordinator refused the target: " + welcome->reason);
    if (options_.on_joined) options_.on_joined();
    return {};
  }
  return deadline_exceeded("the coordinator did not answer the target within 60 s");
}

// Work may take any time to come, but a coordinator that is gone sends none: silence is answered with
// heartbeats, and when those cannot be delivered for a while the group ends.
std::optional<StepPlan> PlanSource::receive(Transport& transport) {
  constexpr auto kPoll = std::chrono::seconds(1);
  constexpr auto kLook = std::chrono::milliseconds(200);
  auto next_beat = Clock::now() + kPoll;
  int undelivered = 0;
  while (!leaving_ && ended_.ok()) {
    const auto look = options_.asked_to_leave ? Clock::now() + kLook : next_beat;
    auto incoming = transport.receive(std::min(look, next_beat));
    if (options_.asked_to_leave && options_.asked_to_leave()) {
      (void)transport.send(kCoordinatorPeer, Shutdown{});
      return std::nullopt;
    }
    if (!incoming) {
      if (Clock::now() < next_beat) continue;
      next_beat = Clock::now() + kPoll;
      const Status beat = transport.send(kCoordinatorPeer, Heartbeat{options_.generation});
      undelivered = beat.code() == StatusCode::kUnavailable ? undelivered + 1 : 0;
      if (undelivered >= options_.most_undelivered) sent(transport, unavailable("the coordinator is gone"));
      continue;
    }
    if (auto* plan = std::get_if<StepPlan>(&incoming->message)) return std::move(*plan);
    if (const auto* word = std::get_if<Welcome>(&incoming->message); word && !word->accepted)
      ended_ = unavailable("the coordinator gave this target group up: " + word->reason);
    leaving_ = std::holds_alternative<Shutdown>(incoming->message);
  }
  return std::nullopt;
}

// The leader's next message, on every rank; empty at shutdown.
std::optional<StepPlan> PlanSource::next(Transport* transport) {
  if (group_.size() == 1) return receive(*transport);
  if (transport) {
    auto plan = receive(*transport);
    auto frame = encode(plan ? Message(*plan) : Message(Shutdown{}), {}, std::move(frame_));
    if (!frame.ok()) throw std::runtime_error("plan: " + frame.status().message());
    frame_ = std::move(frame).value();
    group_.broadcast_message(frame_, 0, WireLimits{}.frame_bytes);
    return plan;
  }
  group_.broadcast_message(frame_, 0, WireLimits{}.frame_bytes);
  auto decoded = decode(frame_, 0);
  if (!decoded.ok()) throw std::runtime_error("plan from the leader: " + decoded.status().message());
  if (auto* plan = std::get_if<StepPlan>(&decoded->message)) return std::move(*plan);
  return std::nullopt;
}

void PlanSource::end(Status why) {
  if (ended_.ok()) ended_ = std::move(why);
}

// A coordinator that ends may have closed the connection while its Shutdown is still unread.
void PlanSource::sent(Transport& transport, Status status) {
  if (status.code() != StatusCode::kUnavailable) return end(std::move(status));
  while (!leaving_) {
    const auto incoming = transport.receive(Clock::now());
    if (!incoming) return end(std::move(status));
    leaving_ = std::holds_alternative<Shutdown>(incoming->message);
  }
}

}  // namespace outrider
