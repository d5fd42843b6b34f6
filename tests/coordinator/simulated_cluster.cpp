#include "simulated_cluster.h"

#include <algorithm>

#include "toy_model.h"

namespace outrider {
namespace {

constexpr int64_t kVirtualLimitUs = int64_t{24} * 3600 * 1'000'000;
constexpr int kEventLimit = 400'000;
constexpr int32_t kTargetSequences = 8;
constexpr int64_t kSliceTimeoutUs = 10'000;

// For the longest texts of all, and a few blocks more, so that what is kept of others has to go.
int64_t roomy_blocks(const ProtocolOptions& options, uint64_t seed) {
  const int64_t places = std::min(options.max_num_seqs, kTargetSequences);
  return places * kv_blocks_for(toy_info().max_context) + static_cast<int64_t>(seed % 5);
}

Clock::time_point at_us(int64_t us) { return Clock::time_point(std::chrono::microseconds(us)); }

}  // namespace

SimulatedCluster::SimulatedCluster(uint64_t seed, ProtocolOptions options, GammaPolicyFactory gamma,
                                   Faults faults, int workers, double accuracy, int ranks, int64_t kv_blocks,
                                   bool hidden_states)
    : random_(seed),
      network_(random_),
      faults_(faults),
      accuracy_(accuracy),
      hidden_states_(hidden_states),
      protocol_(options, std::move(gamma)),
      max_rows_(options.max_rows_per_step),
      places_(std::min(options.max_num_seqs, kTargetSequences)),
      kv_blocks_(kv_blocks > 0 ? kv_blocks : roomy_blocks(options, seed)),
      prefill_groups_(options.prefill_groups),
      targets_(static_cast<size_t>(options.target_groups)),
      ranks_(ranks, kTargetSequences, options.max_rows_per_step) {
  CHECK(ranks == 0 || targets_.size() == 1, "slices go to the doors of one group");
  for (Target& target : targets_) {
    const PeerId peer{static_cast<uint64_t>(&target - targets_.data()) + 1};
    network_.after(delay_us(), [this, &target, peer] { target_joins(target, peer); });
  }
  for (int i = 0; i < workers; ++i) {
    const PeerId peer{next_peer_++};
    network_.after(delay_us(), [this, peer] { worker_joins(peer); });
  }
}

bool SimulatedCluster::run(std::vector<SimulatedRequest> requests) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const SequenceId id(i + 1);
    outcomes_[id] = {};
    network_.after(requests[i].submit_at_us, [this, id, request = requests[i].request] {
      step(Submit{id, request});
    });
  }
  for (int events = 0; events < kEventLimit && network_.now_us() < kVirtualLimitUs; ++events) {
    const auto deadline = protocol_.next_deadline();
    if (network_.is_quiet() && !(deadline && protocol_.open_requests() > 0)) return true;
    const int64_t deadline_us =
        deadline ? std::chrono::ceil<std::chrono::microseconds>(deadline->time_since_epoch()).count()
                 : INT64_MAX;
    if (!network_.advance(deadline_us)) step(Tick{});
  }
  return false;
}

void SimulatedCluster::carry(VirtualNetwork::Link link, std::function<void()> arrives) {
  network_.carry(link, faults_.max_delay_us, faults_.reorder, std::move(arrives));
}

void SimulatedCluster::step(Event event) {
  for (Action& action : protocol_.step(std::move(event), at_us(network_.now_us()))) perform(action);
}

void SimulatedCluster::perform(Action& action) {
  if (auto* send = std::get_if<Send>(&action)) {
    if (Target* target = target_of(send->to)) return send_to_target(*target, send->message);
    send_to_worker(send->to, send->message);
  } else if (auto* emit = std::get_if<Emit>(&action)) {
    SimulatedOutcome& outcome = outcomes_.at(emit->request);
    outcome.ids.insert(outcome.ids.end(), emit->ids.begin(), emit->ids.end());
    outcome.text += emit->text;
    outcome.prompt_scores += emit->prompt_logprobs.size();
    if (outcome.cancel_sent || !strikes(faults_.cancel, struck_.cancel)) return;
    outcome.cancel_sent = true;
    network_.after(delay_us(), [this, id = emit->request] { step(Cancel{id}); });
  } else if (auto* finish = std::get_if<Finish>(&action)) {
    SimulatedOutcome& outcome = outcomes_.at(finish->request);
    ++outcome.finishes;
    outcome.finish = std::move(*finish);
  }
}

// ---- targets --------------------------------------------------------------------------------------------

SimulatedCluster::Target* SimulatedCluster::target_of(PeerId peer) {
  for (Target& target : targets_)
    if (target.peer == peer) return &target;
  return nullptr;
}

// In a new life, which knows nothing.
void SimulatedCluster::target_joins(Target& target, PeerId peer) {
  target.peer = peer;
  target.target = std::make_unique<ToyTarget>(max_rows_, kv_blocks_);
  target.target->nonfinite_chance = faults_.nonfinite;
  target.target->random = &random_;
  target.target->max_sequences = static_cast<size_t>(places_);
  target.target->drafts = drafts_at_targets_;
  target.target->accuracy = accuracy_;
  const auto place = static_cast<uint64_t>(&target - targets_.data());
  target.target->only_prefills = place < static_cast<uint64_t>(prefill_groups_);
  target.target->takes_blocks = prefill_groups_ > 0 && !target.target->only_prefills && !chance(0.1);
  SliceEndpoints endpoints;
  endpoints.of_rank.assign(static_cast<size_t>(ranks_.count()), {.endpoint = "tcp://nowhere:1", .gpu = {}});
  step(MessageReceived{peer, Hello{.role = Role::kTarget,
                                   .generation = Generation(generation_++),
                                   .model = toy_info(),
                                   .max_sequences = kTargetSequences,
                                   .slices = endpoints,
                                   .co_located_drafter = drafts_at_targets_ ? uint64_t{1} : 0,
                                   .kv_blocks = kv_blocks_,
                                   .hidden_state_head = hidden_states_ ? kToyHiddenStateHead : 0,
                                   .hidden_state_width = hidden_states_ ? 1 : 0,
                                   .only_prefills = target.target->only_prefills,
                                   .block_inbox = target.target->takes_blocks ? place + 1 : 0}});
}

// Half of the targets that die hang without a message, and the step deadline detects them. Some targets
// return, with the same peer id or another.
void SimulatedCluster::target_dies(Target& target) {
  target.failed = true;
  target.verification.reset();
  if (target.error.empty()) target.error = target.target->error();
  target.prefix_tokens += target.target->prefix_tokens();
  all_targets_failed_ |= std::all_of(targets_.begin() + prefill_groups_, targets_.end(),  // those that decode
                                     [](const Target& each) { return each.failed; });
  if (chance(0.5))
    network_.after(delay_us(), [this, peer = target.peer] {
      step(MessageReceived{peer, Failure{"simulated"}});
    });
  if (faults_.target_return == 0 || !chance(faults_.target_return)) return;
  const PeerId next = chance(0.5) ? target.peer : PeerId{next_peer_++};
  network_.after(1000 + faults_.max_delay_us + 20 * delay_us(),
                 [this, &target, next] { target_joins(target, next); });
}

void SimulatedCluster::send_to_target(Target& target, const Message& message) {
  if (const auto* welcome = std::get_if<Welcome>(&message)) {
    if (welcome->accepted)
      target.failed = false;
    else  // its place is still that of the life that hangs
      network_.after(10'000'000, [this, &target, peer = target.peer] { target_joins(target, peer); });
    return;
  }
  const auto* plan = std::get_if<StepPlan>(&message);
  if (!plan || target.failed) return;
  if (strikes(faults_.target_failure, struck_.target_failure)) return target_dies(target);
  begin_step(target, *plan);
}

// One plan is out at a time. Its forward pass runs while slices are on their way.
void SimulatedCluster::begin_step(Target& target, const StepPlan& plan) {
  if (ranks_.count() > 0) ranks_.begin(plan);
  const bool stalls = target.target->only_prefills && strikes(faults_.stall, struck_.stall);
  const int64_t from_us =
      network_.now_us() + (pass_us_ > 0 ? pass_us_ : 50 + delay_us()) + (stalls ? 30'000 : 0);
  target.verification = {.plan = plan, .from_us = from_us, .until_us = from_us + kSliceTimeoutUs};
  network_.after(from_us - network_.now_us(), [this, &target] { try_verify(target); });
}

// Whenever something has changed: the pass is over, a slice has come, or the time is up.
void SimulatedCluster::try_verify(Target& target) {
  if (!target.verification || network_.now_us() < target.verification->from_us) return;
  const auto& [plan, from_us, until_us] = *target.verification;
  if (!ranks_.collect(plan.entries) && network_.now_us() < until_us) {
    if (network_.now_us() == from_us)
      network_.after(until_us - network_.now_us(), [this, &target] { try_verify(target); });
    return;
  }
  StepResult result = target.target->handle(plan, ranks_.gather(plan.entries));
  for (const PlanEntry& entry : plan.entries)
    for (const Verdict& verdict : result.verdicts)
      if (verdict.sequence == entry.sequence && verdict.draft_lost) cut_off_.insert(entry.worker);
  target.verification.reset();
  for (ToyTarget::Blocks& blocks : target.target->take_exports()) send_blocks(std::move(blocks));
  if (result.drafts.empty()) return step(MessageReceived{target.peer, result});
  result.draft_ns = draft_us_ * 1000;
  network_.after(draft_us_, [this, &target, result] {
    if (!target.failed) step(MessageReceived{target.peer, result});
  });
}

void SimulatedCluster::send_blocks(ToyTarget::Blocks blocks) {
  if (strikes(faults_.lose_blocks, struck_.lose_blocks)) return;
  network_.after(5 * delay_us(), [this, blocks = std::move(blocks)] {
    const auto& to = targets_.at(blocks.inbox - 1).target;
    if (to) to->arrive(blocks);
  });
}

int64_t SimulatedCluster::told() const {
  int64_t rows = 0;
  for (const Target& target : targets_)
    if (target.target) rows += target.target->told();
  return rows;
}

std::string SimulatedCluster::target_error() const {
  for (const Target& target : targets_) {
    if (!target.error.empty()) return target.error;
    if (target.target && !target.target->error().empty()) return target.target->error();
  }
  return {};
}

size_t SimulatedCluster::sequences_at_targets() const {
  size_t count = 0;
  for (const Target& target : targets_)
    if (target.target && !target.failed) count += target.target->open_sequences();
  return count;
}

int64_t SimulatedCluster::prefix_tokens() const {
  int64_t sum = 0;
  for (const Target& target : targets_)
    sum += target.prefix_tokens + (target.target && !target.failed ? target.target->prefix_tokens() : 0);
  return sum;
}

// ---- workers --------------------------------------------------------------------------------------------

Status SimulatedCluster::send_slice(PeerId peer, int rank, const QSlice& slice) {
  const SliceFaults none{.max_delay_us = 1};
  const SliceFaults& faults =
      faults_.slices.only_rank < 0 || faults_.slices.only_rank == rank ? faults_.slices : none;
  if (strikes(faults.refuse_send, slices_struck_.refuse_send) || ranks_.endpoint_is_full(rank))
    return resource_exhausted("simulated");
  ranks_.hand_over(rank, slice);
  if (strikes(faults.drop, slices_struck_.drop)) return {};
  const bool twice = strikes(faults.duplicate, slices_struck_.duplicate);
  for (int i = 0; i < 1 + twice; ++i) {
    QSlice copy = slice;
    if (strikes(faults.corrupt, slices_struck_.corrupt)) corrupt(copy, random_);
    const auto arrives = [this, rank, copy] {
      ranks_.arrive(rank, copy);
      try_verify(targets_.front());
    };
    network_.carry(VirtualNetwork::to_endpoint(peer, rank), faults.max_delay_us, faults.reorder, arrives);
  }
  return {};
}

void SimulatedCluster::send_to_worker(PeerId peer, Message& message) {
  const bool is_work = std::holds_alternative<Propose>(message) || std::holds_alternative<Open>(message) ||
                       std::holds_alternative<Close>(message) ||
                       std::holds_alternative<HiddenStateRows>(message);
  if (const auto* propose = std::get_if<Propose>(&message); propose && propose->q_kind == QKind::kSlices) {
    const auto at = workers_.find(peer);
    if (at != workers_.end() && cut_off_.contains(Generation(at->second.life)))
      worker_error_ = "was asked for slices again after some were lost";
  }
  if (is_work && strikes(faults_.refuse_send, struck_.refuse_send))
    return network_.after(1, [this, peer, message] { step(SendFailed{peer, message}); });
  if (is_work && strikes(faults_.drop, struck_.drop)) return;
  const auto deliver = [this, peer, message] {
    const auto at = workers_.find(peer);
    if (at == workers_.end()) return;
    at->second.worker.handle(message);
    send_replies(peer);
    send_from_worker(peer, Heartbeat{});  // as an idle worker would
    schedule_work(peer);
  };
  carry(VirtualNetwork::to_worker(peer), deliver);
  if (is_work && strikes(faults_.duplicate, struck_.duplicate))
    carry(VirtualNetwork::to_worker(peer), deliver);
}

void SimulatedCluster::send_from_worker(PeerId peer, Message message) {
  if (std::holds_alternative<Draft>(message) && strikes(faults_.worker_death, struck_.worker_death))
    worker_dies(peer);
  if (std::holds_alternative<Draft>(message) && faults_.mute) return;
  if (strikes(faults_.drop, struck_.drop)) return;
  if (auto* draft = std::get_if<Draft>(&message); draft && strikes(faults_.corrupt, struck_.corrupt))
    corrupt(*draft, random_);
  const auto deliver = [this, peer, message] { step(MessageReceived{peer, message}); };
  carry(VirtualNetwork::from_worker(peer), deliver);
  if (strikes(faults_.duplicate, struck_.duplicate)) carry(VirtualNetwork::from_worker(peer), deliver);
}

void SimulatedCluster::worker_joins(PeerId peer) {
  const auto room = 1 + static_cast<int32_t>(random_() % 6);
  const uint64_t life = generation_++;
  DraftingWorker worker(
      {.accuracy = accuracy_,
       .max_sequences = room,
       .spare_blocks = static_cast<int64_t>(random_() % 40),
       .now = [this] { return at_us(network_.now_us()) + std::chrono::nanoseconds(++clock_calls_); },
       .ranks = ranks_.count(),
       .to_rank = [this, peer](int rank, const QSlice& slice) { return send_slice(peer, rank, slice); },
       .generation = Generation(life),
       .needs_rows = hidden_states_});
  workers_.erase(peer);
  workers_.emplace(peer, Worker{std::move(worker), life});
  Hello hello{
      .role = Role::kDraft, .generation = Generation(life), .model = toy_info(), .max_sequences = room};
  hello.hidden_state_head = hidden_states_ ? kToyHiddenStateHead : 0;
  hello.model.fingerprint = 1 + peer.value % 2;  // two kinds, as far as the coordinator knows
  step(MessageReceived{peer, std::move(hello)});
}

// A forward pass takes some microseconds, and messages arrive in between.
void SimulatedCluster::schedule_work(PeerId peer) {
  const auto at = workers_.find(peer);
  if (at == workers_.end() || std::exchange(at->second.scheduled, true)) return;
  network_.after(std::uniform_int_distribution<int64_t>(1, 20)(random_),
                 [this, peer, life = at->second.life] { worker_works(peer, life); });
}

void SimulatedCluster::worker_works(PeerId peer, uint64_t life) {
  const auto at = workers_.find(peer);
  if (at == workers_.end() || at->second.life != life) return;
  at->second.scheduled = false;
  const bool more = at->second.worker.work();
  if (worker_error_.empty()) worker_error_ = at->second.worker.error();
  send_replies(peer);
  if (more) schedule_work(peer);
}

void SimulatedCluster::send_replies(PeerId peer) {
  const auto at = workers_.find(peer);
  if (at == workers_.end()) return;
  for (Message& reply : at->second.worker.take_replies()) {
    send_from_worker(peer, std::move(reply));  // may be its death
    if (!workers_.contains(peer)) return;
  }
}

// It comes back later, on the same connection or on a new one.
void SimulatedCluster::worker_dies(PeerId peer) {
  if (workers_.erase(peer) == 0) return;
  if (!faults_.silent_death) network_.after(delay_us(), [this, peer] { step(PeerLost{peer, "simulated"}); });
  const PeerId next = chance(0.5) ? peer : PeerId{next_peer_++};
  network_.after(10 * delay_us(), [this, next] { worker_joins(next); });
}

size_t SimulatedCluster::sequences_at_workers() const {
  size_t count = 0;
  for (const auto& [peer, worker] : workers_) count += worker.worker.open_sequences();
  return count;
}

}  // namespace outrider
