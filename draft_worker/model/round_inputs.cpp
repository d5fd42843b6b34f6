#include "draft_worker/model/round_inputs.h"

#include <algorithm>

namespace outrider {
namespace {

// If the last two committed tokens are fed together, the row of the first shows the model's guess for the
// second. Penalties have counted the second already.
bool can_guess(const DraftedSequence& s, size_t inputs) {
  const DraftJob& job = *s.job;
  return job.propose.wants_guess && job.guess.value() < 0 && job.strand.length() == 0 && inputs > 1 &&
         is_match_rule(s.sampling.rule) && !needs_counts(s.sampling);
}

}  // namespace

std::span<const TokenId> next_inputs(const DraftedSequence& s, const Model& model, int64_t rows) {
  const Strand& strand = s.job->strand;
  if (strand.length() > 0) return strand.drafted().last(1);
  auto pending = s.window.pending();
  if (strand.limit == 0 && !pending.empty()) pending = pending.first(pending.size() - 1);
  const int64_t readable = std::min(rows, model.max_positions() - s.window.cached());
  return pending.first(
      static_cast<size_t>(std::clamp<int64_t>(readable, 0, static_cast<int64_t>(pending.size()))));
}

BatchSlice next_slice(const DraftedSequence& s, const Model& model, int64_t rows, int64_t logit_rows) {
  const auto inputs = next_inputs(s, model, rows);
  const bool last = s.job->strand.length() > 0 || inputs.size() == s.window.pending().size();
  int64_t wanted = last && s.job->strand.limit > 0 ? 1 : 0;
  if (wanted == 1 && logit_rows > 1 && can_guess(s, inputs.size())) wanted = 2;
  return {.sequence = s.kv,
          .tokens = inputs,
          .logit_rows = wanted,
          .hidden_only = s.job->strand.key.q_kind == QKind::kHidden};
}

bool is_done(DraftedSequence& s, const Model& model) {
  DraftJob& job = *s.job;
  if (job.branches) return job.tree.begun && job.tree.growth.next(1).empty();
  if (job.strand.limit > 0) return job.strand.complete();
  return next_inputs(s, model, model.max_rows()).empty();
}

}  // namespace outrider
