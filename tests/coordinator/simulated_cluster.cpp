#include "simulated_cluster.h"

#include <functional>
#include <set>
#include <tuple>

#include "toy_model.h"

namespace outrider {
namespace {

constexpr PeerId kTargetPeer{1};
constexpr int64_t kVirtualLimitUs = int64_t{24} * 3600 * 1'000'000;
constexpr int kEventLimit = 400'000;
constexpr int32_t kTargetSequences = 8;
constexpr int64_t kSliceTimeoutUs = 10'000;

Clock::time_point at_us(int64_t us) { return Clock::time_point(std::chrono::microseconds(us)); }

ModelInfo toy_info() {
  return {
      .name = "toy", .vocab_size = kToyVocab, .vocabulary_fingerprint = 7, .max_context = 96, .isa = "none"};
}

}  // namespace

// ---- target ---------------------------------------------------------------------------------------------

void ToyTarget::check(bool condition, const char* what) {
  if (!condition && error_.empty()) error_ = what;
}

StepResult ToyTarget::handle(const StepPlan& plan, const std::set<SequenceId>& lost) {
  check(plan.step == next_step_++, "steps must count up");
  uint64_t hash = 0;
  for (const auto& [id, held] : sequences_)
    hash += state_hash_term(id, static_cast<int64_t>(held.ids.size()), held.kv_length, held.epoch);
  check(hash == plan.state_hash, "state hash");
  for (const SequenceId id : plan.closes) check(sequences_.erase(id) == 1, "closed what was not open");
  for (const Open& open : plan.opens) {
    check(open.prompt_length == static_cast<int32_t>(open.ids.size()), "opened with generated tokens");
    check(sequences_.emplace(open.sequence, Held{.ids = open.ids, .epoch = {}, .sampling = open.sampling})
              .second,
          "opened twice");
  }
  StepResult result{.step = plan.step, .verdicts = {}, .forward_ns = 1000, .verify_ns = 100, .commit_ns = 10};
  std::set<SequenceId> seen;
  int32_t rows = 0;
  for (const PlanEntry& entry : plan.entries) {
    check(seen.insert(entry.sequence).second, "two entries of one sequence");
    rows += entry.input_count + static_cast<int32_t>(entry.draft.size());
    if (sequences_.contains(entry.sequence))
      handle_entry(entry, lost.contains(entry.sequence), &result);
    else
      check(false, "entry of an unknown sequence");
  }
  check(rows <= max_rows_, "too many rows");
  return result;
}

void ToyTarget::handle_entry(const PlanEntry& entry, bool lost, StepResult* result) {
  Held& held = sequences_.at(entry.sequence);
  const auto committed = static_cast<int32_t>(held.ids.size());
  check(entry.epoch == held.epoch, "epoch");
  check(entry.base == Position(committed), "base");
  check(entry.first_input == Position(held.kv_length), "first input");
  check(entry.input_count > 0 && held.kv_length + entry.input_count <= committed, "input count");
  if (held.kv_length + entry.input_count < committed) {
    check(entry.draft.empty(), "draft in a prefill chunk");
    held.kv_length += entry.input_count;
    return;
  }
  check(int64_t{entry.round.value()} > held.last_round, "a round number came twice");
  held.last_round = entry.round.value();
  check(entry.base.value() + static_cast<int32_t>(entry.draft.size()) < toy_info().max_context,
        "no room for the draft");
  const bool has_q = needs_q(held.sampling.rule) && entry.q_kind != QKind::kSlices;
  check(entry.q.size() == (has_q ? entry.draft.size() : 0), "q rows");
  const auto gamma = lost ? 0 : static_cast<int32_t>(entry.draft.size());
  if (random && std::uniform_real_distribution<>()(*random) < nonfinite_chance) {
    result->verdicts.push_back({.sequence = entry.sequence,
                                .epoch = entry.epoch,
                                .round = entry.round,
                                .base = entry.base,
                                .status = VerdictStatus::kNonFinite,
                                .next = {},
                                .logprobs = {}});
    return;
  }
  int32_t accepted = 0;
  while (accepted < gamma && entry.draft[static_cast<size_t>(accepted)] == toy_next(held.ids)) {
    held.ids.push_back(entry.draft[static_cast<size_t>(accepted++)]);
  }
  held.ids.push_back(toy_next(held.ids));
  held.kv_length = static_cast<int32_t>(held.ids.size()) - 1;
  if (accepted < gamma) ++held.epoch;
  result->verdicts.push_back({.sequence = entry.sequence,
                              .epoch = entry.epoch,
                              .round = entry.round,
                              .base = entry.base,
                              .draft_lost = lost,
                              .accepted_count = accepted,
                              .next = held.ids.back(),
                              .logprobs = {}});
}

// ---- draft worker ---------------------------------------------------------------------------------------

std::vector<Message> ToyWorker::handle(const Message& message) {
  if (const auto* open = std::get_if<Open>(&message)) {
    sequences_[open->sequence] = Held{open->ids, open->prompt_length};
  } else if (const auto* close = std::get_if<Close>(&message)) {
    sequences_.erase(close->sequence);
  } else if (const auto* propose_message = std::get_if<Propose>(&message)) {
    return propose(*propose_message);
  }
  return {};
}

std::vector<Message> ToyWorker::propose(const Propose& message) {
  const auto at = sequences_.find(message.sequence);
  const int32_t from = message.base.value() - static_cast<int32_t>(message.committed.size());
  if (at == sequences_.end())
    return {Resync{.sequence = message.sequence, .epoch = {}, .committed = {}, .hash = kEmptyPrefixHash}};
  Held& held = at->second;
  if (from > static_cast<int32_t>(held.ids.size()))
    return {Resync{.sequence = message.sequence,
                   .epoch = {},
                   .committed = Position(static_cast<int32_t>(held.ids.size())),
                   .hash = prefix_hash(held.ids)}};
  held.ids.resize(static_cast<size_t>(from));
  held.ids.insert(held.ids.end(), message.committed.begin(), message.committed.end());
  if (message.gamma == 0) return {};
  Draft draft{.sequence = message.sequence,
              .epoch = message.epoch,
              .round = message.round,
              .base = message.base,
              .ids = {},
              .parents = {},
              .prefix_hash = prefix_hash(held.ids),
              .q_kind = message.q_kind,
              .q = {},
              .ingest_ns = 1000,
              .draft_ns = 5000};
  std::vector<TokenId> ids = held.ids;
  for (int32_t i = 0; i < message.gamma && !draft.eos; ++i) {
    const bool right = std::uniform_real_distribution<>()(*random_) < accuracy_;
    ids.push_back(right ? toy_next(ids) : TokenId(static_cast<int32_t>((*random_)() % kToyVocab)));
    draft.ids.push_back(ids.back());
    if (message.q_kind == QKind::kSparse)
      draft.q.push_back({.ids = {static_cast<uint32_t>(ids.back().value())}, .weights = {1}, .sum = 1});
    draft.eos = ids.back() == kToyEos;
  }
  return {std::move(draft)};
}

// ---- the cluster ----------------------------------------------------------------------------------------

SimulatedCluster::SimulatedCluster(uint64_t seed, ProtocolOptions options, GammaPolicyFactory gamma,
                                   Faults faults, int workers, double accuracy, int ranks)
    : random_(seed),
      faults_(faults),
      accuracy_(accuracy),
      protocol_(options, std::move(gamma)),
      target_(options.max_rows_per_step),
      ranks_(ranks, kTargetSequences, options.max_rows_per_step) {
  target_.nonfinite_chance = faults.nonfinite;
  target_.random = &random_;
  SliceDoors doors;
  doors.of_rank.resize(static_cast<size_t>(ranks));
  after(delay_us(), [this, doors] {
    step(MessageReceived{kTargetPeer, Hello{.role = Role::kTarget,
                                            .generation = Generation(generation_++),
                                            .model = toy_info(),
                                            .max_sequences = kTargetSequences,
                                            .slices = doors}});
  });
  for (int i = 0; i < workers; ++i) {
    const PeerId peer{next_peer_++};
    after(delay_us(), [this, peer] { worker_joins(peer); });
  }
}

void SimulatedCluster::after(int64_t delay, std::function<void()> deliver) {
  arrivals_.push({now_us_ + delay, order_++, std::move(deliver)});
}

void SimulatedCluster::on_link(PeerId peer, bool towards, std::function<void()> deliver) {
  arrive_at({peer, towards}, faults_.max_delay_us, faults_.reorder, std::move(deliver));
}

void SimulatedCluster::arrive_at(std::pair<PeerId, int> link, int64_t max_delay_us, bool reorder,
                                 std::function<void()> deliver) {
  int64_t at = now_us_ + std::uniform_int_distribution<int64_t>(1, max_delay_us)(random_);
  if (!reorder) {
    int64_t& last = last_us_[link];
    at = last = std::max(last + 1, at);
  }
  after(at - now_us_, std::move(deliver));
}

bool SimulatedCluster::run(std::vector<SimulatedRequest> requests) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const SequenceId id(i + 1);
    outcomes_[id] = {};
    after(requests[i].submit_at_us, [this, id, request = requests[i].request] { step(Submit{id, request}); });
  }
  for (int events = 0; events < kEventLimit && now_us_ < kVirtualLimitUs; ++events) {
    const auto deadline = protocol_.next_deadline();
    const bool anything_open = protocol_.open_requests() > 0 || protocol_.awaits_result();
    if (arrivals_.empty() && !(deadline && anything_open)) return true;
    const int64_t deadline_us =
        deadline ? std::chrono::ceil<std::chrono::microseconds>(deadline->time_since_epoch()).count()
                 : INT64_MAX;
    if (arrivals_.empty() || deadline_us < arrivals_.top().at_us) {
      now_us_ = deadline_us;
      step(Tick{});
      continue;
    }
    const Arrival arrival = arrivals_.top();
    arrivals_.pop();
    now_us_ = arrival.at_us;
    arrival.deliver();
  }
  return false;
}

void SimulatedCluster::step(Event event) {
  for (Action& action : protocol_.step(std::move(event), at_us(now_us_))) perform(action);
}

void SimulatedCluster::perform(Action& action) {
  if (auto* send = std::get_if<Send>(&action)) {
    if (send->to != kTargetPeer) return send_to_worker(send->to, send->message);
    const auto* plan = std::get_if<StepPlan>(&send->message);
    if (!plan || target_failed_) return;
    if (chance(faults_.target_failure)) {
      target_failed_ = true;
      if (chance(0.5))  // else it hangs, and the step deadline tells
        after(delay_us(), [this] { step(MessageReceived{kTargetPeer, Failure{"simulated"}}); });
      return;
    }
    begin_step(*plan);
  } else if (auto* emit = std::get_if<Emit>(&action)) {
    SimulatedOutcome& outcome = outcomes_.at(emit->request);
    outcome.ids.insert(outcome.ids.end(), emit->ids.begin(), emit->ids.end());
    outcome.text += emit->text;
    if (outcome.cancel_sent || !chance(faults_.cancel)) return;
    outcome.cancel_sent = true;
    after(delay_us(), [this, id = emit->request] { step(Cancel{id}); });
  } else if (auto* finish = std::get_if<Finish>(&action)) {
    SimulatedOutcome& outcome = outcomes_.at(finish->request);
    ++outcome.finishes;
    outcome.finish = std::move(*finish);
  }
}

// One plan is out at a time. Its forward pass runs while slices are on their way.
void SimulatedCluster::begin_step(const StepPlan& plan) {
  ranks_.begin(plan);
  const int64_t from_us = now_us_ + 50 + delay_us();
  verification_ = {.plan = plan, .from_us = from_us, .until_us = from_us + kSliceTimeoutUs};
  after(from_us - now_us_, [this] { try_verify(); });
}

// Whenever something has changed: the pass is over, a slice has come, or the time is up.
void SimulatedCluster::try_verify() {
  if (!verification_ || now_us_ < verification_->from_us) return;
  const auto& [plan, from_us, until_us] = *verification_;
  if (!ranks_.collect(plan.entries) && now_us_ < until_us) {
    if (now_us_ == from_us) after(until_us - now_us_, [this] { try_verify(); });
    return;
  }
  const StepResult result = target_.handle(plan, ranks_.gather(plan.entries));
  for (const PlanEntry& entry : plan.entries)
    for (const Verdict& verdict : result.verdicts)
      if (verdict.sequence == entry.sequence && verdict.draft_lost) cut_off_.insert(entry.worker);
  verification_.reset();
  if (!target_failed_) step(MessageReceived{kTargetPeer, result});
}

Status SimulatedCluster::send_slice(PeerId peer, int rank, const QSlice& slice) {
  const SliceFaults none{.max_delay_us = 1};
  const SliceFaults& faults =
      faults_.slices.only_rank < 0 || faults_.slices.only_rank == rank ? faults_.slices : none;
  if (chance(faults.refuse_send) || ranks_.door_is_full(rank)) return resource_exhausted("simulated");
  ranks_.hand_over(rank, slice);
  if (chance(faults.drop)) return {};
  const bool twice = chance(faults.duplicate);
  for (int i = 0; i < 1 + twice; ++i) {
    QSlice copy = slice;
    if (chance(faults.corrupt)) corrupt(&copy);
    arrive_at({peer, 2 + rank}, faults.max_delay_us, faults.reorder, [this, rank, copy] {
      ranks_.arrive(rank, copy);
      try_verify();
    });
  }
  return {};
}

void SimulatedCluster::send_to_worker(PeerId peer, Message& message) {
  const bool is_work = std::holds_alternative<Propose>(message) || std::holds_alternative<Open>(message) ||
                       std::holds_alternative<Close>(message);
  if (const auto* propose = std::get_if<Propose>(&message); propose && propose->q_kind == QKind::kSlices) {
    const auto at = workers_.find(peer);
    if (at != workers_.end() && cut_off_.contains(Generation(at->second.life)))
      worker_error_ = "was asked for slices again after some were lost";
  }
  if (is_work && chance(faults_.refuse_send))
    return after(1, [this, peer, message] { step(SendFailed{peer, message}); });
  if (is_work && chance(faults_.drop)) return;
  const auto deliver = [this, peer, message] {
    const auto at = workers_.find(peer);
    if (at == workers_.end()) return;
    at->second.worker.handle(message);
    send_replies(peer);
    send_from_worker(peer, Heartbeat{});  // as an idle worker would
    schedule_work(peer);
  };
  on_link(peer, true, deliver);
  if (is_work && chance(faults_.duplicate)) on_link(peer, true, deliver);
}

void SimulatedCluster::send_from_worker(PeerId peer, Message message) {
  if (std::holds_alternative<Draft>(message) && chance(faults_.worker_death)) worker_dies(peer);
  if (chance(faults_.drop)) return;
  if (auto* draft = std::get_if<Draft>(&message); draft && chance(faults_.corrupt)) corrupt(draft);
  const auto deliver = [this, peer, message] { step(MessageReceived{peer, message}); };
  on_link(peer, false, deliver);
  if (chance(faults_.duplicate)) on_link(peer, false, deliver);
}

void SimulatedCluster::worker_joins(PeerId peer) {
  const auto room = 1 + static_cast<int32_t>(random_() % 6);
  const uint64_t life = generation_++;
  DraftingWorker worker(
      {.accuracy = accuracy_,
       .max_sequences = room,
       .spare_blocks = static_cast<int64_t>(random_() % 40),
       .now = [this] { return at_us(now_us_) + std::chrono::nanoseconds(++clock_calls_); },
       .ranks = ranks_.count(),
       .to_rank = [this, peer](int rank, const QSlice& slice) { return send_slice(peer, rank, slice); },
       .generation = Generation(life)});
  workers_.erase(peer);
  workers_.emplace(peer, Worker{std::move(worker), life});
  Hello hello{
      .role = Role::kDraft, .generation = Generation(life), .model = toy_info(), .max_sequences = room};
  hello.model.fingerprint = 1 + peer.value % 2;  // two kinds, as far as the coordinator knows
  step(MessageReceived{peer, std::move(hello)});
}

// A forward pass takes some microseconds, and messages arrive in between.
void SimulatedCluster::schedule_work(PeerId peer) {
  const auto at = workers_.find(peer);
  if (at == workers_.end() || std::exchange(at->second.scheduled, true)) return;
  after(std::uniform_int_distribution<int64_t>(1, 20)(random_),
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
  if (!faults_.silent_death) after(delay_us(), [this, peer] { step(PeerLost{peer, "simulated"}); });
  const PeerId next = chance(0.5) ? peer : PeerId{next_peer_++};
  after(10 * delay_us(), [this, next] { worker_joins(next); });
}

void SimulatedCluster::corrupt(Draft* draft) {
  switch (random_() % 10) {
    case 0:
      draft->epoch = Epoch(static_cast<uint32_t>(random_()));
      break;
    case 1:
      draft->round = Round(static_cast<uint32_t>(random_()));
      break;
    case 2:
      draft->base = Position(static_cast<int32_t>(random_()));
      break;
    case 3:
      draft->prefix_hash = random_();
      break;
    case 4:
      draft->sequence = SequenceId(random_() % 9);
      break;
    case 5:
      draft->ids.assign(50, TokenId(1));
      break;
    case 6:
      draft->parents.assign(draft->ids.size(), 0);
      break;
    case 7:
      draft->q.push_back({.ids = {99999}, .weights = {0, 0}, .sum = 3});
      break;
    case 8:
      draft->ingest_ns = draft->draft_ns = static_cast<int64_t>(random_());
      break;
    default:
      for (TokenId& id : draft->ids) id = TokenId(static_cast<int32_t>(random_() % 80) - 20);
  }
}

// Other weights are believed: a worker that was let in may draw from what it likes.
void SimulatedCluster::corrupt(QSlice* slice) {
  switch (random_() % 6) {
    case 0:
      slice->sequence = SequenceId(random_());
      break;
    case 1:
      slice->round = Round(static_cast<uint32_t>(random_()));
      break;
    case 2:
      slice->worker = Generation(random_());
      break;
    case 3:
      slice->rows = static_cast<int32_t>(random_());
      break;
    case 4:
      slice->weights.resize(random_() % 100);
      break;
    default:
      slice->weights.front() = UINT16_MAX;
  }
}

size_t SimulatedCluster::sequences_at_workers() const {
  size_t count = 0;
  for (const auto& [peer, worker] : workers_) count += worker.worker.open_sequences();
  return count;
}

}  // namespace outrider
