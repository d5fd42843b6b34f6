// Request and result of a verification, for every implementation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/sampling_params.h"
#include "comm/messages/draft_forms.h"
#include "comm/messages/verifying.h"
#include "comm/q_rows.h"
#include "kernels/sampling/token_counts.h"
#include "kernels/sampling/weighted_draw.h"
#include "model/logits.h"
#include "model/model.h"

namespace outrider {

// One sequence of a pass. Its logits rows are [first_row, first_row + gamma]; row 0 follows the committed
// text, and row i + 1 draft token i.
struct VerifyRequest {
  SequenceId sequence{};
  const SamplingParams* sampling = nullptr;
  Round round{};
  Position base{};                   // committed length C: the position of draft[0]
  std::span<const TokenId> draft;    // gamma tokens; none: plain decoding of one token
  std::span<const int32_t> parents;  // of a tree, as in DraftTree; row i + 1 follows node i
  QKind q_kind = QKind::kNone;
  std::span<const QRow> q;  // p/q rules: rows that passed validate_q_rows, gamma of a chain
  // kSlices: q holds this rank's slice alone, from the first id of its range on (sums are the whole row's).
  // q_drafted has the weight of each draft token, whichever rank's slice contains it.
  std::span<const uint64_t> q_drafted;
  // kSlices: not null where the slice is on the device already, [gamma, ids of the range] weights in 16 bits;
  // then q has only the sums.
  const uint16_t* q_on_device = nullptr;
  int64_t first_row = 0;
  const TokenCounts* counts = nullptr;  // of the committed tokens; may be null unless there are penalties
  // Scoring only: there is no draft, and only the log-probability of this token, which is committed, is
  // computed from the row.
  std::optional<TokenId> scored;
  // The masks of a PlanEntry; this request's row 0 is row `first_mask_row` there.
  std::span<const TokenMask> masks;
  int32_t first_mask_row = 0;
};

// The tokens allowed at the request's row `row`; null: any token.
inline const TokenSet* allowed_at(const VerifyRequest& request, int32_t row) {
  const int32_t wanted = request.first_mask_row + row;
  const auto at = std::lower_bound(request.masks.begin(), request.masks.end(), wanted,
                                   [](const TokenMask& mask, int32_t of) { return mask.row < of; });
  return at != request.masks.end() && at->row == wanted ? &at->allowed : nullptr;
}

// q of draft token i.
inline double probability_of_draft(const VerifyRequest& request, size_t i) {
  const QRow& row = request.q[i];
  if (request.q_kind == QKind::kSlices)
    return static_cast<double>(request.q_drafted[i]) / static_cast<double>(row.sum);
  return static_cast<double>(weight_in(row, request.draft[i])) / static_cast<double>(row.sum);
}

struct VerifyResult {
  // kNonFinite: the first row held NaN or +inf, or nothing above -inf. A later row of that kind matters only
  // if the text comes to it: the accepted token in front of it is `next`, so that it is a first row then.
  VerdictStatus status = VerdictStatus::kOk;
  int accepted_count = 0;
  std::vector<int32_t> path;  // of a tree: the accepted nodes
  TokenId next;
  std::vector<PositionLogprobs> logprobs;  // accepted_count + 1 entries when asked for
};

// The token whose log-probability is reported at row i: an accepted one, the next one, or the scored one.
inline TokenId chosen_at(const VerifyRequest& request, const VerifyResult& result, int i) {
  if (request.scored) return *request.scored;
  return i < result.accepted_count ? request.draft[static_cast<size_t>(i)] : result.next;
}

struct VerifierStats {
  uint64_t residual_fallbacks = 0;  // recovery rows without mass: p == q up to rounding
  uint64_t q_zero_draws = 0;        // draft tokens with q = 0: validate_q_rows was not asked
};

inline constexpr int64_t kRankedWords = kSuccessors + 1;

class Verifier {
 public:
  virtual ~Verifier() = default;
  // One result per request, in order, the same on every rank. Overwrites the logits. Valid until the next
  // call.
  virtual const std::vector<VerifyResult>& verify(std::span<const VerifyRequest> requests,
                                                  const PlacedLogits& logits) = 0;
  virtual const VerifierStats& stats() const = 0;
  // Whether requests may have masks.
  virtual bool takes_masks() const { return true; }
  // Copies the rows of these requests, as the model made them, to host memory, for rules that are decided
  // there. Call before verify(), which overwrites rows of other requests only. Valid until the model's next
  // forward pass.
  virtual LogitsShard on_host(std::span<const VerifyRequest> requests, const PlacedLogits& logits) {
    (void)requests;
    return std::get<LogitsShard>(logits);
  }
  // Where the logits are on a device: ranks this rank's kSuccessors best tokens of these rows by the model's
  // own scores, best first. Call before verify(); ranked_rows() has the result after it: [rows, kRankedWords]
  // of RankedToken, 0 where there are no more, and a last word that is not 0 if this rank's slice of the row
  // is not finite.
  virtual void rank_rows(std::span<const int64_t>, const PlacedLogits&) {
    CHECK(false, "the logits are in host memory");
  }
  virtual std::span<const uint64_t> ranked_rows() const { return {}; }
  // How long the last verify() computed, where that is not how long the call took: on a device the call also
  // waits for the forward pass.
  virtual std::optional<int64_t> busy_ns() const { return std::nullopt; }
};

// Adds verification of trees under the match rules; the results are those of `inner`, which need not support
// trees. Requests to `inner` are single rows, one for each row of the pass.
std::unique_ptr<Verifier> make_tree_verifier(std::unique_ptr<Verifier> inner, Collectives& group);

// The verifier for logits that `model` leaves where it computes them. `requests`: at most, in one pass.
std::unique_ptr<Verifier> make_verifier(Model& model, Collectives& group, int64_t requests);

}  // namespace outrider
