#include "lab/simulate/simulated_job.h"

#include "cluster/simulation/simulated_text.h"

namespace outrider {
namespace {

Clock::time_point clock_time(SimTime at) { return Clock::time_point(std::chrono::nanoseconds(at)); }

constexpr uint64_t kOneProcess = 1;  // Hello::process

// The times that a worker would measure before it joins (warm_up in start/load_models.h).
PassTimes pass_times(const ForwardCost& cost, Role role) {
  const double row = cost.seconds(1, 0);
  constexpr int64_t kPrefill = 32;
  PassTimes times{.row_ns = static_cast<int64_t>(row * 1e9), .by_rows = {}};
  if (role == Role::kDraft)
    times.prefill_token_ns =
        std::max<int64_t>(1, static_cast<int64_t>((cost.seconds(kPrefill, 0) - row) / kPrefill * 1e9));
  for (const int32_t rows : {2, 3, 5, 9, 17})
    if (role == Role::kTarget || rows == 5)
      times.by_rows.push_back({.rows = rows, .passes = static_cast<float>(cost.seconds(rows, 0) / row)});
  return times;
}

Hello hello(Role role, uint64_t generation, const JobOptions& options) {
  return {.role = role,
          .generation = Generation(generation),
          .model = {.name = "simulated",
                    .vocab_size = kGuesses,
                    .vocabulary_fingerprint = 1,
                    .max_context = options.max_context,
                    .isa = "none"},
          .max_sequences = options.max_num_seqs * (role == Role::kDraft ? options.groups : 1),
          .co_located_drafter = role == Role::kTarget && options.beside_target ? uint64_t{1} : 0,
          .kv_blocks = role == Role::kTarget ? options.kv_blocks : 0,
          .hidden_state_head = options.hidden_state_row_bytes > 0 ? uint64_t{1} : 0,
          .hidden_state_width = options.hidden_state_row_bytes > 0 ? 1 : 0,
          .drafts_blocks = options.draft.block_rows > 0,
          .pass_times = pass_times(role == Role::kTarget ? options.target : options.draft, role),
          .process = options.one_process ? kOneProcess : 0};
}

ProtocolOptions protocol_options(const JobOptions& options) {
  ProtocolOptions protocol;
  protocol.max_num_seqs = options.max_num_seqs;
  protocol.max_queued = 1 << 24;
  protocol.max_queued_tokens = int64_t{1} << 40;
  protocol.max_rows_per_step = std::max(512, 2 * options.max_num_seqs * (kDefaultGammaMax + 1));
  protocol.max_context = options.max_context;
  protocol.target_groups = options.groups;
  protocol.pipeline = options.pipeline;
  protocol.process = options.one_process ? kOneProcess : 0;
  protocol.fanout = options.fanout;
  // Simulated drafters do not fail, and slow ones are an object of study, so no draft times out.
  protocol.draft_timeout_min = std::chrono::minutes(10);
  return protocol;
}

constexpr size_t kResultBytes = 96;

// A simulated row is one number.
size_t bytes_of(const Message& message, const JobOptions& options) {
  const auto* const rows = std::get_if<HiddenStateRows>(&message);
  const size_t bytes = wire_bytes(message);
  if (!rows) return bytes;
  return bytes +
         static_cast<size_t>(options.hidden_state_row_bytes * static_cast<double>(rows->values.size()));
}

}  // namespace

SimulatedJob::SimulatedJob(EventQueue& events, const JobOptions& options, GammaPolicyFactory gamma,
                           const AcceptanceProcess& acceptance, int32_t longest_text, OnAction on_action)
    : events_(events),
      options_(options),
      protocol_(protocol_options(options), std::move(gamma)),
      on_action_(std::move(on_action)) {
  const ForwardCost* const own_drafts = options.beside_target ? &options.draft : nullptr;
  uint64_t peer = 0;
  for (int32_t i = 0; i < options.groups; ++i) {
    groups_.push_back({.peer = PeerId{++peer},
                       .target = SimulatedTarget(options.target, acceptance, own_drafts),
                       .to = Link(options.target_link),
                       .from = Link(options.target_link),
                       .turns = {}});
    step(MessageReceived{PeerId{peer}, hello(Role::kTarget, peer, options)});
  }
  for (int32_t i = 0; i < options.drafters; ++i) {
    Group& beside = groups_[static_cast<size_t>(i % options.groups)];
    add_drafter(PeerId{++peer}, options.in_turns ? &beside.turns : nullptr, acceptance, longest_text);
  }
}

void SimulatedJob::add_drafter(PeerId peer, DeviceTurns* turns, const AcceptanceProcess& acceptance,
                               int32_t longest_text) {
  Drafter& drafter = drafters_
                         .emplace(peer, Drafter{Link(options_.draft_link, 2 * peer.value),
                                                Link(options_.draft_link, 2 * peer.value + 1), nullptr})
                         .first->second;
  auto answer = [this, peer, &drafter](Message message) {
    if (drafter.from.loses(message)) return;
    const SimTime at = drafter.from.arrival(events_.now(), wire_bytes(message));
    events_.at(at, [this, peer, message = std::move(message)]() mutable {
      step(MessageReceived{peer, std::move(message)});
    });
  };
  if (options_.pipeline == Pipeline::kLockstep && options_.guesses.most == 0)
    drafter.worker =
        std::make_unique<SimulatedDrafter>(events_, options_.draft, acceptance, std::move(answer), turns);
  else
    drafter.worker = std::make_unique<ClockedDrafter>(
        events_,
        ClockedDrafterOptions{.cost = options_.draft,
                              .max_sequences = options_.max_num_seqs * options_.groups,
                              .max_context = longest_text,
                              .fanout = options_.fanout,
                              .guesses = options_.guesses,
                              .turns = turns},
        std::move(answer));
  step(MessageReceived{peer, hello(Role::kDraft, peer.value, options_)});
}

std::vector<double> SimulatedJob::target_busy() const {
  std::vector<double> seconds;
  for (const Group& group : groups_) seconds.push_back(group.target.busy_seconds());
  return seconds;
}

double SimulatedJob::draft_busy() const {
  double seconds = 0;
  for (const Group& group : groups_) seconds += group.target.drafting_seconds();
  for (const auto& [peer, drafter] : drafters_) seconds += drafter.worker->busy_seconds();
  return seconds;
}

int64_t SimulatedJob::draft_bytes() const {
  size_t bytes = 0;
  for (const auto& [peer, drafter] : drafters_) bytes += drafter.to.bytes() + drafter.from.bytes();
  return static_cast<int64_t>(bytes);
}

void SimulatedJob::step(Event event) {
  for (Action& action : protocol_.step(std::move(event), clock_time(events_.now()))) {
    if (const auto* message = std::get_if<Send>(&action))
      send(*message);
    else
      on_action_(action);
  }
  arm_tick();
}

// At most one tick waits in the queue; the protocol's deadlines move with every step.
void SimulatedJob::arm_tick() {
  const auto deadline = protocol_.next_deadline();
  if (!deadline || deadline->time_since_epoch().count() >= tick_at_) return;
  tick_at_ = deadline->time_since_epoch().count();
  events_.at(tick_at_, [this, at = tick_at_] {
    if (at != tick_at_) return;
    tick_at_ = INT64_MAX;
    step(Tick{});
  });
}

void SimulatedJob::send(const Send& send) {
  const size_t bytes = bytes_of(send.message, options_);
  if (send.to.value <= groups_.size()) {
    Group& group = groups_[send.to.value - 1];
    if (const auto* plan = std::get_if<StepPlan>(&send.message)) send_to_target(group, *plan, bytes);
    return;
  }
  Drafter& drafter = drafters_.at(send.to);
  if (drafter.to.loses(send.message)) return;
  events_.at(drafter.to.arrival(events_.now(), bytes),
             [worker = drafter.worker.get(), message = send.message] { worker->receive(message); });
}

void SimulatedJob::send_to_target(Group& group, const StepPlan& plan, size_t bytes) {
  const SimTime arrival = group.to.arrival(events_.now(), bytes);
  // One plan is out at a time, so its time may be known now.
  StepResult result = group.target.verify(plan);
  if (options_.in_turns && result.forward_ns > 0) {
    events_.at(arrival, [this, &group, result = std::move(result)]() mutable {
      pass_in_turn(group, std::move(result));
    });
    return;
  }
  const SimTime done = arrival + result.forward_ns + result.draft_ns;
  answer(group, std::move(result), done);
}

void SimulatedJob::answer(Group& group, StepResult result, SimTime at) {
  events_.at(group.from.arrival(at, kResultBytes),
             [this, peer = group.peer, result = std::move(result)]() mutable {
               step(MessageReceived{peer, std::move(result)});
             });
}

void SimulatedJob::pass_in_turn(Group& group, StepResult result) {
  const SimTime seconds = result.forward_ns;
  const auto end = [this, &group, result = std::move(result)]() mutable {
    group.turns.end(DeviceTurns::Kind::kTarget);
    answer(group, std::move(result), events_.now());
  };
  group.turns.ask(DeviceTurns::Kind::kTarget, [this, seconds, end] { events_.after(seconds, end); });
}

}  // namespace outrider
