#include "launch/simulate/cluster_simulator.h"

#include "base/hash.h"

namespace outrider {
namespace {

constexpr PeerId kTarget{1};
constexpr uint64_t kFirstDrafter = 2;
constexpr int64_t kEventLimit = int64_t{1} << 40;

Clock::time_point clock_time(SimTime at) { return Clock::time_point(std::chrono::nanoseconds(at)); }

Hello hello(Role role, uint64_t generation, const SimulationOptions& options) {
  return {.role = role,
          .generation = Generation(generation),
          .model = {.name = "simulated",
                    .vocab_size = 2,
                    .vocabulary_fingerprint = 1,
                    .max_context = options.max_context,
                    .isa = "none"},
          .max_sequences = options.max_num_seqs};
}

ProtocolOptions protocol_options(const SimulationOptions& options) {
  ProtocolOptions protocol;
  protocol.max_num_seqs = options.max_num_seqs;
  protocol.max_queued = 1 << 24;
  protocol.max_queued_tokens = int64_t{1} << 40;
  protocol.max_rows_per_step = std::max(512, 2 * options.max_num_seqs * (kDefaultGammaMax + 1));
  protocol.max_context = options.max_context;
  protocol.pipeline = options.pipeline;
  // Simulated drafters do not die, and slow ones are what is studied: nobody gives up on them.
  protocol.draft_timeout_min = std::chrono::minutes(10);
  return protocol;
}

}  // namespace

ClusterSimulator::ClusterSimulator(const SimulationOptions& options, GammaPolicyFactory gamma,
                                   const AcceptanceProcess& acceptance,
                                   const std::vector<SimulationStep>& steps)
    : options_(options),
      protocol_(protocol_options(options), std::move(gamma)),
      target_(options.target, acceptance),
      to_target_(options.target_link),
      from_target_(options.target_link) {
  step(MessageReceived{kTarget, hello(Role::kTarget, 1, options)});
  for (int32_t i = 0; i < options.drafters; ++i) {
    const PeerId peer{kFirstDrafter + static_cast<uint64_t>(i)};
    auto& drafter =
        drafters_.emplace(peer, Drafter{Link(options.draft_link), Link(options.draft_link), nullptr})
            .first->second;
    drafter.worker = std::make_unique<SimulatedDrafter>(
        events_, options.draft, acceptance, [this, peer, &drafter](Message message) {
          const SimTime at = drafter.from.arrival(events_.now(), wire_bytes(message));
          events_.at(at, [this, peer, message = std::move(message)]() mutable {
            step(MessageReceived{peer, std::move(message)});
          });
        });
    step(MessageReceived{peer, hello(Role::kDraft, peer.value, options)});
  }
  for (const SimulationStep& change : steps)
    events_.at(sim_time(change.at_s), [this, &change] {
      target_.use(change.acceptance);
      for (auto& [peer, drafter] : drafters_) drafter.worker->use(change.acceptance);
    });
}

Result<SimulationResult> ClusterSimulator::run(const std::vector<SimulatedRequest>& requests,
                                               double limit_s) {
  uint64_t id = 1;
  for (const SimulatedRequest& asked : requests)
    events_.at(sim_time(asked.arrival_s), [this, asked, id = SequenceId(id++)] {
      Request request;
      request.prompt.assign(static_cast<size_t>(asked.prompt_tokens), kSimulatedToken);
      request.max_tokens = asked.output_tokens;
      request.ignore_eos = true;
      step(Submit{id, std::move(request)});
    });
  while (result_.events < kEventLimit && error_.ok() && sim_seconds(events_.now()) < limit_s) {
    const auto deadline = protocol_.next_deadline();
    const SimTime tick = deadline ? deadline->time_since_epoch().count() : INT64_MAX;
    if (events_.empty() && (!deadline || protocol_.open_requests() == 0)) break;
    ++result_.events;
    if (!events_.empty() && events_.next_at() <= tick) {
      events_.run_next();
    } else {
      events_.advance(tick);
      step(Tick{});
    }
  }
  RETURN_IF_ERROR(error_);
  result_.totals = protocol_.totals();
  result_.cost = protocol_.cost();
  const SimTime end = protocol_.open_requests() == 0 ? last_finish_ : events_.now();
  result_.seconds = requests.empty() ? 0 : sim_seconds(end) - requests.front().arrival_s;
  result_.target_busy = target_.busy_seconds();
  for (const auto& [peer, drafter] : drafters_) {
    result_.draft_busy += drafter.worker->busy_seconds();
    result_.bytes += static_cast<int64_t>(drafter.to.bytes() + drafter.from.bytes());
  }
  return result_;
}

void ClusterSimulator::step(Event event) {
  for (Action& action : protocol_.step(std::move(event), clock_time(events_.now()))) perform(action);
}

void ClusterSimulator::perform(Action& action) {
  if (auto* send = std::get_if<Send>(&action)) {
    if (send->to == kTarget) return send_to_target(send->message);
    Drafter& drafter = drafters_.at(send->to);
    const SimTime at = drafter.to.arrival(events_.now(), wire_bytes(send->message));
    events_.at(at, [worker = drafter.worker.get(), message = std::move(send->message)] {
      worker->receive(message);
    });
  } else if (const auto* done = std::get_if<RoundDone>(&action)) {
    for (const int64_t part : {static_cast<int64_t>(done->request.value()), int64_t{done->drafted},
                               int64_t{done->accepted_count}, int64_t{events_.now()}})
      result_.fingerprint = hash_combine(result_.fingerprint, static_cast<uint64_t>(part));
    if (on_round_) on_round_(*done, sim_seconds(events_.now()));
  } else if (const auto* finish = std::get_if<Finish>(&action)) {
    last_finish_ = events_.now();
    if (finish->reason == FinishReason::kError && error_.ok())
      error_ = finish->error.in(fmt::format("simulated request {}", finish->request.value()));
  }
}

void ClusterSimulator::send_to_target(const Message& message) {
  const auto* plan = std::get_if<StepPlan>(&message);
  if (!plan) return;
  const SimTime arrival = to_target_.arrival(events_.now(), wire_bytes(message));
  StepResult result = target_.verify(*plan);  // one plan is out at a time, so its time may be known now
  const SimTime done = arrival + result.forward_ns;
  events_.at(from_target_.arrival(done, 96), [this, result = std::move(result)]() mutable {
    step(MessageReceived{kTarget, std::move(result)});
  });
}

}  // namespace outrider
