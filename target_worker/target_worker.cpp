#include "target_worker/target_worker.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "target_worker/synthetic_verifier.h"

namespace outrider {
namespace {

// Scope timer of one phase of a step: writes the elapsed ns on destruction.
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
      plans_(model, group, options_),
      sequences_(model),
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

// Links end before anything on the device is freed, which would wait for transfers whose peer may be gone.
TargetWorker::~TargetWorker() {
  if (options_.slice_inbox) options_.slice_inbox->end_links();
}

// Every target rank runs these lines in this order; only the leader talks outside the group.
Status TargetWorker::run(Transport* transport) {
  plans_.agree_on_setup();
  // If join() failed, the other ranks learn it with the next plan.
  if (transport) plans_.end(plans_.join(*transport));
  while (const auto plan = plans_.next(transport)) {
    StepResult result = step(*plan);
    if (transport) plans_.sent(*transport, transport->send(kCoordinatorPeer, std::move(result)));
  }
  return plans_.ended();
}

Result<bool> TargetWorker::turn(Transport& transport) {
  CHECK(group_.size() == 1, "turns of a group of {}", group_.size());
  if (plans_.leaving()) return false;
  while (auto incoming = transport.receive(Clock::now())) {
    if (std::holds_alternative<Shutdown>(incoming->message)) return false;
    if (const auto* plan = std::get_if<StepPlan>(&incoming->message))
      RETURN_IF_ERROR(transport.send(kCoordinatorPeer, step(*plan)));
  }
  return true;
}

StepResult TargetWorker::step(const StepPlan& plan) {
  if (sequences_.state_hash() != plan.state_hash)
    throw std::runtime_error(
        fmt::format("step {}: target rank {} and the coordinator disagree about the state; here: {}",
                    plan.step, group_.rank(), sequences_.describe()));
  if (const Status status = check_plan(plan); !status.ok())
    throw std::runtime_error(fmt::format("step {}: step_plan: {}", plan.step, status.message()));
  StepResult result{.step = plan.step};
  export_blocks(plan, result);
  for (const PrefixChange& change : plan.prefixes) sequences_.change(change);
  for (SequenceId id : plan.closes) close(id);
  for (const Open& open : plan.opens) {
    sequences_.open(open);
    if (options_.slice_inbox) options_.slice_inbox->slots().open(open.sequence);
  }
  if (plan.entries.empty()) {
    if (options_.slice_inbox) options_.slice_inbox->look();
    import_blocks(plan, result);
    tell_hidden_states(plan, result);
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
    successors_ = successor_ranks_.finish(*verifier_);
  }
  if (!requests_.empty()) settle_device_times(verifier_->busy_ns(), result);
  {
    const PhaseTimer timer(result.commit_ns);
    commit(plan, verdicts, result);
    import_blocks(plan, result);
    tell_hidden_states(plan, result);
  }
  if (options_.drafter) {
    const PhaseTimer timer(result.draft_ns);
    draft_next(plan, result);
  }
  return result;
}

void TargetWorker::close(SequenceId id) {
  sequences_.close(id);
  if (options_.drafter) options_.drafter->close(id);
  if (options_.slice_inbox) options_.slice_inbox->slots().close(id);
}

PlacedLogits TargetWorker::forward(const StepPlan& plan) {
  size_t rows = 0;
  for (const PlanEntry& entry : plan.entries)
    rows += static_cast<size_t>(entry.input_count) + entry.draft.size();
  tokens_.clear();
  tokens_.reserve(rows);  // slices view it
  slices_.clear();
  for (const PlanEntry& entry : plan.entries) {
    const TargetSequences::Sequence& s = sequences_.at(entry.sequence);
    const size_t begin = tokens_.size();
    const auto first = s.ids.begin() + entry.first_input.value();
    tokens_.insert(tokens_.end(), first, first + entry.input_count);
    tokens_.insert(tokens_.end(), entry.draft.begin(), entry.draft.end());
    slices_.push_back({.sequence = s.kv,
                       .tokens = {tokens_.data() + begin, tokens_.size() - begin},
                       .logit_rows = logit_rows(entry),
                       .parents = entry.parents,
                       .exited = options_.drafter ? options_.drafter->exited(entry.sequence) : nullptr});
  }
  auto logits = model_.forward_in_place(slices_);
  if (!logits.ok())
    throw std::runtime_error(logits.status().message());  // the pool was sized for max_sequences
  return *logits;
}

// Collects the q slices that arrived during the forward pass.
void TargetWorker::gather_q(const StepPlan& plan) {
  sliced_.assign(plan.entries.size(), {});
  if (!has_q(plan, QKind::kSlices)) return;
  options_.slice_inbox->gather(plan.entries, group_, Clock::now() + options_.slice_timeout, sliced_);
}

// Where q comes as hidden states, this rank computes its rows of q from them.
void TargetWorker::make_q(const StepPlan& plan) {
  if (!has_q(plan, QKind::kHidden)) return;
  sampling_.clear();
  for (const PlanEntry& entry : plan.entries) sampling_.push_back(&sequences_.at(entry.sequence).sampling);
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
    const TargetSequences::Sequence& s = sequences_.at(entry.sequence);
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
  const std::vector<TokenId>& ids = sequences_.at(entry.sequence).ids;
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
  successor_ranks_.begin(ranked_rows_, logits, *verifier_);
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
    sequences_.commit(entry, draft, verdict);
  }
}

// The next round of every sequence that goes on. Ranks get drafts by plans alone, from the leader's result.
void TargetWorker::draft_next(const StepPlan& plan, StepResult& result) {
  HiddenStateDrafter& drafter = *options_.drafter;
  drafter.begin();
  auto verdict = result.verdicts.begin();
  for (const PlanEntry& entry : plan.entries) {
    if (!samples(entry)) continue;
    const bool goes_on = (verdict++)->status == VerdictStatus::kOk;
    if (!goes_on || entry.next_gamma == 0) continue;
    const TargetSequences::Sequence& s = sequences_.at(entry.sequence);
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

// Sends hidden states of committed tokens to the draft workers that lack them. Every rank keeps the same
// hidden states, so one rank sends.
void TargetWorker::tell_hidden_states(const StepPlan& plan, StepResult& result) {
  if (!options_.hidden_states) return;
  for (const HiddenStateRequest& ask : plan.hidden_states) {
    HiddenStateLink* const link =
        options_.slice_inbox ? options_.slice_inbox->hidden_states().to(ask.worker) : nullptr;
    options_.hidden_states->tell(sequences_.at(ask.sequence).kv, ask, link, result.hidden_states);
  }
}

// All ranks have the same sequences, so all send, and add up the same sums.
void TargetWorker::export_blocks(const StepPlan& plan, StepResult& result) {
  if (plan.exports.empty()) return;
  const auto deadline = Clock::now() + options_.block_patience;
  std::vector<uint64_t> bytes, failed;
  for (const BlockExport& blocks : plan.exports) {
    const TargetSequences::Sequence& s = sequences_.at(blocks.sequence);
    const int64_t sent = options_.block_sender->send(blocks, s.ids, model_.kv(), s.kv, deadline);
    bytes.push_back(static_cast<uint64_t>(sent));
    failed.push_back(sent == 0 ? 1 : 0);
  }
  group_.all_reduce_sum(std::span(bytes));
  group_.all_reduce_sum(std::span(failed));
  for (size_t i = 0; i < bytes.size(); ++i)
    result.exported.push_back(failed[i] > 0 ? 0 : static_cast<int64_t>(bytes[i]));
}

// Blocks are taken in where every rank has its own. Ranks wait for them only if there is nothing else to do.
void TargetWorker::import_blocks(const StepPlan& plan, StepResult& result) {
  if (!options_.block_inbox) return;
  BlockInbox& inbox = *options_.block_inbox;
  inbox.look();
  if (plan.imports.empty()) return;
  const auto deadline =
      Clock::now() + (plan.entries.empty() ? options_.block_wait : std::chrono::milliseconds(0));
  std::vector<uint64_t> missing;
  for (const BlockImport& blocks : plan.imports)
    missing.push_back(inbox.has(blocks, sequences_.at(blocks.sequence).ids, deadline) ? 0 : 1);
  group_.all_reduce_sum(std::span(missing));
  for (size_t i = 0; i < missing.size(); ++i) {
    const BlockImport& blocks = plan.imports[i];
    result.imported.push_back(missing[i] == 0);
    if (missing[i] > 0) continue;
    const KvHandle sequence = sequences_.at(blocks.sequence).kv;
    if (const Status room = model_.kv().append(sequence, blocks.count); !room.ok())
      throw std::runtime_error(room.message());  // the coordinator made room
    inbox.take(blocks, model_.kv(), sequence);
  }
}

uint64_t TargetWorker::kv_content_hash(SequenceId id) const {
  return model_.kv().content_hash(sequences_.at(id).kv);
}

}  // namespace outrider
