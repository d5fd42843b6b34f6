#include "coordinator/rounds/draft_terms.h"

#include <algorithm>

#include "coordinator/rounds/probe_drafts.h"

namespace outrider {

// The smallest of three limits: tokens the request may still emit, the context of both models, room in one
// pass.
int32_t DraftTerms::gamma_limit(const LiveRequest& live) const {
  return std::max(0, std::min({options_.gamma_max, live.request.max_tokens - live.sequence.emitted() - 1,
                               target_.max_context() - live.sequence.committed() - 1,
                               target_.planner.decode_rows() - 1}));
}
int32_t DraftTerms::gamma_limit(const LiveRequest& live, const PoolWorker& worker) const {
  return std::clamp(worker.max_context() - live.sequence.committed(), 0, gamma_limit(live));
}

Branching DraftTerms::choose_tree(LiveRequest& live, int32_t gamma, int32_t room, int32_t batch_size,
                                  DrafterKind kind) {
  const Rule rule = live.request.sampling.rule;
  const TreeOptions& asked = options_.tree;
  if (gamma == 0 || !asked.suits(rule)) return {};
  if (asked.by_rank) {
    const RankAcceptance& ranks = is_match_rule(rule) ? target_.ranks : live.ranks;
    const int32_t nodes = std::min(asked.shape.nodes, room);
    return {.tree = nodes > 0 ? ranks.best_tree(nodes, gamma) : TreeShape{}};
  }
  if (!asked.automatic) return {.tree = fitting_shape(asked.shape, gamma, room)};
  if (!target_.trees.branches(target_.planner.next_step())) return {};
  return {.tree = fitting_shape(priced(asked.shape, gamma, batch_size, kind), gamma, room), .wanted = true};
}

// Every node takes a KV slot after the committed text, whatever its depth.
int32_t DraftTerms::node_limit(int32_t committed) const {
  return std::min(target_.max_context() - committed - 1, target_.planner.decode_rows() - 1);
}

// The prices of a node and of a pass of the draft model, in tokens that the batch would have made in that
// time. All sequences wait for each row of a tree; they share a pass of the draft model.
TreeShape DraftTerms::priced(const TreeShape& shape, int32_t gamma, int32_t batch_size,
                             DrafterKind kind) const {
  constexpr int32_t kFurther = 4;     // rows that the price of one is averaged over: kernels have steps
  constexpr double kMinPrice = 0.02;  // of a node, where a step has no slope
  const CostModel& cost = target_.costs.of(kind);
  const int32_t rows = batch_size * (gamma + 1);
  const double row = (cost.verify_seconds(rows + kFurther, 0) - cost.verify_seconds(rows, 0)) / kFurther;
  const double rate = target_.trees.rate();
  const DraftCost draft = cost.draft();
  const double further = draft.of_blocks ? 0 : draft.per_further, step = draft.of_blocks ? 0 : draft.per_step;
  TreeShape out = shape;
  out.node_price =
      static_cast<float>(std::max(kMinPrice, rate * batch_size * (std::max(0.0, row) + further)));
  out.pass_price = static_cast<float>(rate * std::max(0.0, step));
  return out;
}

GammaContext DraftTerms::gamma_context(const LiveRequest& live, const PoolWorker& worker,
                                       int32_t batch_size) const {
  return {.limit = live.debt.is_due() ? 0 : gamma_limit(live, worker),
          .batch_size = batch_size,
          .in_prefill = target_.in_prefill,
          .group = target_.index,
          .context_length = live.sequence.committed(),
          .cost = &target_.costs.of(worker.kind()),
          .ahead = options_.pipeline != Pipeline::kLockstep,
          // A trial of the worker's place is short, and was rehearsed.
          .probe_drafts = target_.has_two_places()   ? ProbeDraftMode::kNone
                          : ProbeDrafts::tests(live) ? ProbeDraftMode::kTests
                                                     : ProbeDraftMode::kCosts,
          .probe_draft_out = live.link.probe_draft.has_value(),
          .local = is_local(worker),
          .found = worker.finds_text() && worker.is_without_model() &&
                   !options_.tree.suits(live.request.sampling.rule),
          .prefill_seconds = worker.is_without_model() ? 0 : prefill_seconds(live, worker),
          .remaining = remaining(live)};
}

// Until a drafter of this kind has measured or shown its prefill, it is assumed to be a few times as fast as
// the target. A short prefill is assumed to take no longer than a draft step, but for a drafter in this
// process: it was measured when nothing else ran, while one that joins competes with the job.
double DraftTerms::prefill_seconds(const LiveRequest& live, const PoolWorker& worker) const {
  const CostModel& cost = target_.costs.of(worker.kind());
  const int32_t unread = live.unread();
  if (unread <= kCatchUpTokens && !is_local(worker)) return 0;
  if (cost.read_token_seconds() > 0) return unread * cost.read_token_seconds();
  if (unread <= kCatchUpTokens) return 0;
  constexpr double kGuess = 0.3;
  return kGuess * std::chrono::duration<double>(target_.times.prefill(unread)).count();
}

// The expected number of remaining tokens: texts end at max_tokens or earlier, with the average length of
// finished texts. The length of a text so far does not change the expected rest.
int32_t DraftTerms::remaining(const LiveRequest& live) const {
  constexpr int64_t kTelling = 8;  // texts
  const int32_t most = std::min(live.request.max_tokens - live.sequence.emitted(),
                                target_.max_context() - live.sequence.committed());
  const int64_t ended = totals_.generation_lengths.count();
  if (ended < kTelling) return most;
  return static_cast<int32_t>(std::min<int64_t>(most, totals_.generation_lengths.sum() / ended));
}

// The maximal length of a draft found in the text by the worker. Without a draft of its model the round could
// go on at once, so such drafts are requested rarely where they are found rarely, and never in the plain
// rounds of a trial, which are few and follow a round with a draft.
int32_t DraftTerms::text_gamma(LiveRequest& live, const PoolWorker& worker, int32_t limit) const {
  constexpr int32_t kTrialRounds = 16;
  if (!worker.finds_text() || worker.is_without_model() || !is_match_rule(live.request.sampling.rule) ||
      !live.round.tree.is_chain() || limit <= 0)
    return 0;
  if (live.round.gamma > 0)
    live.text_asks.skip = kTrialRounds;
  else if (!live.text_asks.next())
    return 0;
  return limit;
}

PassPrices DraftTerms::price_passes(const CostModel& cost, int32_t batch_size, int32_t context) const {
  constexpr int32_t kFurther = 8;
  const int64_t read = int64_t{context} * batch_size;
  const double pass = cost.verify_seconds(batch_size, read);
  const double row = (cost.verify_seconds(batch_size + kFurther, read) - pass) / kFurther;
  constexpr double kMost = 1e15;
  return {.pass_ns = static_cast<int64_t>(std::clamp(pass * 1e9 / batch_size, 1.0, kMost)),
          .row_ns = static_cast<int64_t>(std::clamp(row * 1e9, 0.0, kMost))};
}

// kHidden: both ends compute q from the logits alone, with the same head. Rows after filters are short, so
// they are sent sparse.
QKind DraftTerms::q_kind(const LiveRequest& live, const PoolWorker& worker) const {
  const SamplingParams& sampling = live.request.sampling;
  if (!needs_q(sampling.rule)) return QKind::kNone;
  if (options_.q_kind == QKind::kHidden)
    return worker.has_head(target_.head_fingerprint()) && is_plain_softmax(sampling) ? QKind::kHidden
                                                                                     : QKind::kSparse;
  const bool has_endpoints = !target_.slices().of_rank.empty();
  return options_.q_kind == QKind::kDense && has_endpoints && worker.sends_slices() ? QKind::kSlices
                                                                                    : options_.q_kind;
}

void DraftTerms::ask_for_q(const LiveRequest& live, const PoolWorker& worker, Propose& message) const {
  message.q_kind = q_kind(live, worker);
  message.row_bytes = message.q_kind == QKind::kSparse ? options_.row_bytes : 0;
  message.code_bits = message.q_kind == QKind::kHidden ? options_.code_bits : 0;
}

}  // namespace outrider
