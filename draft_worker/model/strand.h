// A text that is extended token by token: a round's draft, or a draft prepared for an outcome of the previous
// round. Both use the same code, which makes a prepared draft exact: it is a function of the text before it,
// the round and the request only. Internal to the model drafter.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "base/hidden_row.h"
#include "base/q_row.h"
#include "comm/messages/draft_forms.h"
#include "model/kv/kv_cache.h"

namespace outrider {

// Everything except the text that a draft depends on.
struct StrandKey {
  Round round;
  QKind q_kind = QKind::kNone;
  int32_t row_bytes = 0, code_bits = 0;
  bool operator==(const StrandKey&) const = default;
};

struct Strand {
  StrandKey key;
  Position base;                  // of the first drafted token
  std::vector<TokenId> tokens;    // tokens of an uncommitted outcome, then the drafted ones
  size_t outcome_length = 0;      // the number of leading tokens that are the outcome's
  std::vector<QRow> q;            // by drafted token, unless kNone or kHidden
  std::vector<HiddenRow> hidden;  // the same for kHidden
  int32_t limit = 0;              // number of tokens to draft
  bool eos = false;               // the last token ends the text, and the block
  StopRule stop;                  // of a round; a draft prepared ahead has its full length
  bool stopped = false;           // by the stop rule
  std::vector<float> margins;     // by drafted token, if the stop rule needs them
  double survival = 1;            // the chance that all drafted tokens are accepted, by that rule

  std::span<const TokenId> drafted() const { return std::span(tokens).subspan(outcome_length); }
  int32_t length() const { return static_cast<int32_t>(tokens.size() - outcome_length); }
  bool complete() const { return eos || stopped || length() >= limit; }
  // The outcome has been committed.
  void settle() {
    tokens.erase(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(outcome_length));
    outcome_length = 0;
  }
  // Shortens the draft to a smaller limit, with the same result as if the limit had been set from the start.
  void cut(int32_t new_limit) {
    limit = new_limit;
    if (length() <= limit) return;
    const auto keep = static_cast<size_t>(limit);
    tokens.resize(outcome_length + keep);
    q.resize(std::min(q.size(), keep));
    hidden.resize(std::min(hidden.size(), keep));
    margins.resize(std::min(margins.size(), keep));
    eos = stopped = false;
  }
};

}  // namespace outrider
