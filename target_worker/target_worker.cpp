#include "target_worker/target_worker.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "base/hash.h"
#include "comm/codec.h"
#include "target_worker/synthetic_verifier.h"
#include "transformer/sampling/penalties.h"

namespace outrider {
namespace {

// What one phase of a step took, told when it ends.
class PhaseTimer {
 public:
  explicit PhaseTimer(int64_t& ns) : ns_(ns) {}
  ~PhaseTimer() { ns_ = std::chrono::nanoseconds(Clock::now() - start_).count(); }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  int64_t& ns_;
  const Clock::time_point start_ = Clock::now();
};

// On a device the call of the verifier also waits for the forward pass, which then is what is left of it.
void settle_device_times(std::optional<int64_t> verifying_ns, StepResult& result) {
  if (!verifying_ns) return;
  result.forward_ns += std::max<int64_t>(result.verify_ns - *verifying_ns, 0);
  result.verify_ns = std::min(result.verify_ns, *verifying_ns);
}

bool has_q(const StepPlan& plan, QKind kind) {
  return std::any_of(plan.entries.begin(), plan.entries.end(),
                     [kind](const PlanEntry& entry) { return entry.q_kind == kind; });
}

bool samples(const PlanEntry& entry) { return entry.first_input + entry.input_count == entry.base; }

// Inputs whose next token is committed, where that is asked about.
int64_t scored_rows(const PlanEntry& entry) {
  return entry.prompt_logprobs < 0 ? 0 : entry.input_count - (samples(entry) ? 1 : 0);
}

int64_t logit_rows(const PlanEntry& entry) {
  return scored_rows(entry) + (samples(entry) ? static_cast<int64_t>(entry.draft.size()) + 1 : 0);
}

}  // namespace

TargetWorker::TargetWorker(Model& model, Collectives& group, TargetOptions options)
    : model_(model),
      group_(group),
      options_(std::move(options)),
      verifier_(make_verifier(model, group, model.max_logit_rows())) {
  options_.info.max_context = static_cast<int32_t>(model.max_positions());
  options_.info.isa = model.isa();
  if (options_.head)
    hidden_rows_.emplace(options_.head, vocab_range(model.config().vocab_size, {group.rank(), group.size()}),
                         model.max_logit_rows());
  if (options_.trees) verifier_ = make_tree_verifier(std::move(verifier_), group);
  if (options_.synthetic_acceptance)
    verifier_ = std::make_unique<SyntheticVerifier>(std::move(verifier_), *options_.synthetic_acceptance);
}

TargetWorker::~TargetWorker() {
  for (const auto& [id, s] : sequences_) model_.kv().release(s.kv);
  for (const auto& [id, prefix] : prefixes_) model_.kv().cut(prefix, 0);
}

// Every target rank runs these lines in this order; only the leader talks outside the group.
Status TargetWorker::run(Transport* transport) {
  agree_on_setup();
  if (transport) ended_ = join(*transport);  // the other ranks are told that there is nothing to do
  while (const auto plan = next_plan(transport)) {
    StepResult result = step(*plan);
    if (!transport) continue;
    const Status sent = transport->send(kCoordinatorPeer, std::move(result));
    if (!sent.ok() && ended_.ok()) ended_ = sent;
  }
  return ended_;
}

Result<bool> TargetWorker::turn(Transport& transport) {
  CHECK(group_.size() == 1, "turns of a group of {}", group_.size());
  if (leaving_) return false;
  while (auto incoming = transport.receive(Clock::now())) {
    if (std::holds_alternative<Shutdown>(incoming->message)) return false;
    if (const auto* plan = std::get_if<StepPlan>(&incoming->message))
      RETURN_IF_ERROR(transport.send(kCoordinatorPeer, step(*plan)));
  }
  return true;
}

// Bits are promised within one instruction set, so a mixed group would diverge silently. So would one with
// different heads.
void TargetWorker::agree_on_setup() {
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

Status TargetWorker::join(Transport& transport) {
  RETURN_IF_ERROR(transport.send(kCoordinatorPeer,
                                 Hello{.role = Role::kTarget,
                                       .generation = options_.generation,
                                       .model = options_.info,
                                       .max_sequences = options_.max_sequences,
                                       .slices = options_.slices,
                                       .head_fingerprint = options_.head ? options_.head->fingerprint() : 0,
                                       .own_drafter = options_.own_drafter,
                                       .kv_blocks = model_.kv().num_blocks(),
                                       .state_head = options_.state_head,
                                       .state_width = options_.state_width,
                                       .successors = options_.successors}));
  constexpr auto kJoinTimeout = std::chrono::seconds(60);
  const auto deadline = Clock::now() + kJoinTimeout;
  while (auto incoming = transport.receive(deadline)) {
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
std::optional<StepPlan> TargetWorker::receive_plan(Transport& transport) {
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
      if (undelivered >= options_.most_undelivered) ended_ = unavailable("the coordinator is gone");
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
std::optional<StepPlan> TargetWorker::next_plan(Transport* transport) {
  if (group_.size() == 1) return receive_plan(*transport);
  if (transport) {
    auto plan = receive_plan(*transport);
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

StepResult TargetWorker::step(const StepPlan& plan) {
  check_state(plan);
  if (const Status status = check_plan(plan); !status.ok())
    throw std::runtime_error(fmt::format("step {}: step_plan: {}", plan.step, status.message()));
  for (const PrefixChange& c : plan.prefixes) change(c);
  for (SequenceId id : plan.closes) close(id);
  for (const Open& o : plan.opens) open(o);
  StepResult result{.step = plan.step};
  if (plan.entries.empty()) {
    tell_states(plan, result);
    return result;
  }

  if (options_.slice_inbox) options_.slice_inbox->look();
  PlacedLogits logits;
  {
    const PhaseTimer timer(result.forward_ns);
    logits = forward(plan);
  }
  gather_q(plan);
  std::span<const VerifyResult> verdicts;
  {
    const PhaseTimer timer(result.verify_ns);
    make_q(plan);
    ask_verifier(plan);
    rank_successors(plan, logits);
    verdicts = verifier_->verify(requests_, logits);
  }
  if (!requests_.empty()) settle_device_times(verifier_->busy_ns(), result);
  {
    const PhaseTimer timer(result.commit_ns);
    commit(plan, verdicts, result);
    tell_states(plan, result);
  }
  if (options_.drafter) {
    const PhaseTimer timer(result.draft_ns);
    draft_next(plan, result);
  }
  return result;
}

void TargetWorker::check_state(const StepPlan& plan) const {
  uint64_t hash = 0;
  for (const auto& [id, s] : sequences_)
    hash += state_hash_term(id, static_cast<int64_t>(s.ids.size()), model_.kv().length(s.kv), s.epoch);
  for (const auto& [id, prefix] : prefixes_) hash += prefix_hash_term(id.value(), model_.kv().length(prefix));
  if (hash == plan.state_hash) return;
  std::string held;
  for (const auto& [id, s] : sequences_)
    held += fmt::format(" [sequence {}: committed {}, kv {}, epoch {}]", id.value(), s.ids.size(),
                        model_.kv().length(s.kv), s.epoch.value());
  throw std::runtime_error(
      fmt::format("step {}: target rank {} and the coordinator disagree about the state; here:{} and {} "
                  "prefixes",
                  plan.step, group_.rank(), held, prefixes_.size()));
}

void TargetWorker::change(const PrefixChange& change) {
  KvCache& kv = model_.kv();
  if (change.kind == PrefixChange::Kind::kKeep) {
    const KvPrefix kept = kv.keep(sequence(change.sequence).kv, change.length);
    const auto [at, is_new] = prefixes_.try_emplace(change.prefix, kept);
    if (!is_new) kv.cut(std::exchange(at->second, kept), 0);
    return;
  }
  const auto at = prefixes_.find(change.prefix);
  kv.cut(at->second, change.length);
  if (change.length == 0) prefixes_.erase(at);
}

void TargetWorker::open(const Open& open) {
  KvCache& kv = model_.kv();
  Sequence s{
      .ids = open.ids,
      .sampling = open.sampling,
      .kv = open.prefix_length > 0 ? kv.create(prefixes_.at(open.prefix), open.prefix_length) : kv.create(),
      .epoch = open.epoch};
  s.ids.reserve(static_cast<size_t>(model_.max_positions()));
  if (needs_counts(s.sampling)) {
    const auto prompt = static_cast<size_t>(open.prompt_length);
    s.counts.add_prompt(std::span(open.ids).first(prompt));
    s.counts.add_output(std::span(open.ids).subspan(prompt));
  }
  sequences_.emplace(open.sequence, std::move(s));
  if (options_.slice_inbox) options_.slice_inbox->slots().open(open.sequence);
}

void TargetWorker::close(SequenceId id) {
  model_.kv().release(sequence(id).kv);
  sequences_.erase(id);
  if (options_.drafter) options_.drafter->close(id);
  if (options_.slice_inbox) options_.slice_inbox->slots().close(id);
}

TargetWorker::Sequence& TargetWorker::sequence(SequenceId id) {
  const auto at = sequences_.find(id);
  CHECK(at != sequences_.end(), "sequence {} is not open", id.value());
  return at->second;
}

PlacedLogits TargetWorker::forward(const StepPlan& plan) {
  size_t rows = 0;
  for (const PlanEntry& entry : plan.entries)
    rows += static_cast<size_t>(entry.input_count) + entry.draft.size();
  tokens_.clear();
  tokens_.reserve(rows);  // slices view it
  slices_.clear();
  for (const PlanEntry& entry : plan.entries) {
    const Sequence& s = sequence(entry.sequence);
    const size_t begin = tokens_.size();
    const auto first = s.ids.begin() + entry.first_input.value();
    tokens_.insert(tokens_.end(), first, first + entry.input_count);
    tokens_.insert(tokens_.end(), entry.draft.begin(), entry.draft.end());
    slices_.push_back({.sequence = s.kv,
                       .tokens = {tokens_.data() + begin, tokens_.size() - begin},
                       .logit_rows = logit_rows(entry),
                       .parents = entry.parents});
  }
  auto logits = model_.forward_in_place(slices_);
  if (!logits.ok())
    throw std::runtime_error(logits.status().message());  // the pool was sized for max_sequences
  return *logits;
}

// What came of q in slices while the forward pass ran.
void TargetWorker::gather_q(const StepPlan& plan) {
  sliced_.assign(plan.entries.size(), {});
  if (!has_q(plan, QKind::kSlices)) return;
  options_.slice_inbox->gather(plan.entries, group_, Clock::now() + options_.slice_timeout, sliced_);
}

// Where q comes as hidden states, this rank makes its rows of them.
void TargetWorker::make_q(const StepPlan& plan) {
  if (!has_q(plan, QKind::kHidden)) return;
  sampling_.clear();
  for (const PlanEntry& entry : plan.entries) sampling_.push_back(&sequence(entry.sequence).sampling);
  hidden_rows_->gather(plan.entries, sampling_, group_, sliced_);
}

void TargetWorker::ask_verifier(const StepPlan& plan) {
  requests_.clear();
  scoring_.clear();
  scoring_.reserve(plan.entries.size());  // requests point at them
  int64_t row = 0;
  for (size_t e = 0; e < plan.entries.size(); ++e) {
    const PlanEntry& entry = plan.entries[e];
    ask_scores(entry, row);
    if (!samples(entry)) continue;
    const Sequence& s = sequence(entry.sequence);
    const SlicedQ& sliced = sliced_[e];
    VerifyRequest& request = requests_.emplace_back(VerifyRequest{.sequence = entry.sequence,
                                                                  .sampling = &s.sampling,
                                                                  .round = entry.round,
                                                                  .base = entry.base,
                                                                  .first_row = row,
                                                                  .counts = &s.counts,
                                                                  .masks = entry.masks});
    row += static_cast<int64_t>(entry.draft.size()) + 1;
    if (sliced.lost) continue;
    request.draft = entry.draft;
    request.parents = entry.parents;
    const bool is_sliced = entry.q_kind == QKind::kSlices || entry.q_kind == QKind::kHidden;
    request.q_kind = is_sliced ? QKind::kSlices : entry.q_kind;
    request.q = is_sliced ? sliced.rows : std::span<const QRow>(entry.q);
    request.q_drafted = sliced.drafted;
    request.q_on_device = sliced.on_device;
  }
}

void TargetWorker::ask_scores(const PlanEntry& entry, int64_t& row) {
  if (entry.prompt_logprobs < 0) return;
  const SamplingParams& sampling = scoring_.emplace_back(SamplingParams{.logprobs = entry.prompt_logprobs});
  const std::vector<TokenId>& ids = sequence(entry.sequence).ids;
  for (int64_t i = 1; i <= scored_rows(entry); ++i, ++row)
    requests_.push_back({.sequence = entry.sequence,
                         .sampling = &sampling,
                         .base = entry.first_input + static_cast<int32_t>(i),
                         .first_row = row,
                         .scored = ids[static_cast<size_t>(entry.first_input.value() + i)]});
}

void TargetWorker::rank_successors(const StepPlan& plan, const PlacedLogits& logits) {
  ranked_rows_.clear();
  auto request = requests_.begin();
  for (const PlanEntry& entry : plan.entries) {
    if (entry.prompt_logprobs >= 0) request += scored_rows(entry);
    if (!samples(entry)) continue;
    const VerifyRequest& asked = *request++;
    const auto rows = static_cast<int64_t>(asked.draft.size()) + 1;
    for (int64_t row = 0; entry.successors && row < rows; ++row)
      ranked_rows_.push_back(asked.first_row + row);
  }
  if (!ranked_rows_.empty()) successors_ = successor_ranks_.rank(std::get<LogitsShard>(logits), ranked_rows_);
}

PromptScores scores_of(const PlanEntry& entry, std::span<const VerifyRequest> asked,
                       std::span<const VerifyResult> rows) {
  PromptScores scores{.sequence = entry.sequence, .logprobs = {}};
  for (size_t i = 0; i < rows.size(); ++i)
    scores.logprobs.push_back(
        rows[i].status == VerdictStatus::kOk
            ? rows[i].logprobs.front()
            : PositionLogprobs{.chosen = {*asked[i].scored, -std::numeric_limits<float>::infinity()},
                               .top = {}});
  return scores;
}

void TargetWorker::commit(const StepPlan& plan, std::span<const VerifyResult> verdicts, StepResult& result) {
  size_t next = 0;
  const TokenId* ranked = successors_.data();
  for (size_t e = 0; e < plan.entries.size(); ++e) {
    const PlanEntry& entry = plan.entries[e];
    if (entry.prompt_logprobs >= 0) {
      const auto rows = static_cast<size_t>(scored_rows(entry));
      result.scores.push_back(
          scores_of(entry, std::span(requests_).subspan(next, rows), verdicts.subspan(next, rows)));
      next += rows;
    }
    if (!samples(entry)) continue;
    const DraftTreeView draft(requests_[next].draft, requests_[next].parents);
    const VerifyResult& verdict = verdicts[next++];
    result.verdicts.push_back({.sequence = entry.sequence,
                               .epoch = entry.epoch,
                               .round = entry.round,
                               .base = entry.base,
                               .status = verdict.status,
                               .draft_lost = sliced_[e].lost,
                               .link_lost = sliced_[e].link_lost,
                               .accepted_count = verdict.accepted_count,
                               .path = verdict.path,
                               .next = verdict.next,
                               .logprobs = verdict.logprobs,
                               .successors = {}});
    if (entry.successors) {
      const TokenId* const end = ranked + (draft.size() + 1) * kSuccessors;
      result.verdicts.back().successors.assign(ranked, end);
      ranked = end;
    }
    commit(entry, draft, verdict);
  }
}

// Keeps the accepted drafts' KV; the next token has none yet.
void TargetWorker::commit(const PlanEntry& entry, DraftTreeView draft, const VerifyResult& verdict) {
  Sequence& s = sequence(entry.sequence);
  if (verdict.status != VerdictStatus::kOk) {
    model_.kv().truncate(
        s.kv, entry.first_input.value());  // as if the pass had not been; the coordinator closes it
    return;
  }
  for (size_t i = 0; i < static_cast<size_t>(verdict.accepted_count); ++i)
    s.ids.push_back(draft.ids[verdict.path.empty() ? i : static_cast<size_t>(verdict.path[i])]);
  s.ids.push_back(verdict.next);
  if (needs_counts(s.sampling))
    s.counts.add_output(std::span(s.ids).last(static_cast<size_t>(verdict.accepted_count) + 1));
  if (draft.parents.empty())
    model_.kv().truncate(s.kv, static_cast<int64_t>(s.ids.size()) - 1);
  else if (const Status kept = model_.kv().keep_path(s.kv, entry.base.value(), verdict.path); !kept.ok())
    throw std::runtime_error(kept.message());  // nothing but this sequence holds these blocks
  if (verdict.accepted_count < draft.size()) ++s.epoch;
}

// The next round of every sequence that goes on. Ranks get drafts by plans alone, from the leader's result.
void TargetWorker::draft_next(const StepPlan& plan, StepResult& result) {
  StateDrafter& drafter = *options_.drafter;
  drafter.begin();
  auto verdict = result.verdicts.begin();
  for (const PlanEntry& entry : plan.entries) {
    if (!samples(entry)) continue;
    const bool goes_on = (verdict++)->status == VerdictStatus::kOk;
    if (!goes_on || entry.next_gamma == 0) continue;
    const Sequence& s = sequence(entry.sequence);
    drafter.add({.sequence = entry.sequence,
                 .committed = s.ids,
                 .sampling = &s.sampling,
                 .counts = &s.counts,
                 .round = entry.next_round,
                 .gamma = entry.next_gamma,
                 .stop = entry.next_stop,
                 .tree = &entry.next_tree},
                s.kv, s.epoch);
  }
  drafter.draft(result.drafts);
}

// What draft workers lack of committed tokens. Every rank keeps the same states, so one of them is enough.
void TargetWorker::tell_states(const StepPlan& plan, StepResult& result) {
  if (!options_.states) return;
  for (const StateAsk& ask : plan.states) {
    StateRows rows{.sequence = ask.sequence, .ids = {}, .values = {}};
    options_.states->tell(sequence(ask.sequence).kv, ask, rows);
    if (!rows.values.empty()) result.states.push_back(std::move(rows));
  }
}

uint64_t TargetWorker::kv_content_hash(SequenceId id) const {
  return model_.kv().content_hash(sequences_.at(id).kv);
}

}  // namespace outrider
