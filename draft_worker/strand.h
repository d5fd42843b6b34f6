// A text that is being extended token by token: a round's draft, or one prepared for an outcome of the round
// before it. The same extension either way, which is what makes a prepared draft exact: it is a function of
// the text before it, the round and the request, and of nothing else. Internal to the model drafter.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "base/hidden_row.h"
#include "base/q_row.h"
#include "comm/messages/draft_forms.h"
#include "transformer/kv/kv_cache.h"

namespace outrider {

// What a draft depends on besides the text.
struct StrandKey {
  Round round;
  QKind q_kind = QKind::kNone;
  int32_t row_bytes = 0, code_bits = 0;
  bool operator==(const StrandKey&) const = default;
};

struct Strand {
  StrandKey key;
  Position base;                  // of the first drafted token
  std::vector<TokenId> tokens;    // those of an outcome that is not committed, then the drafted ones
  size_t outcome_length = 0;      // how many of them are the outcome's
  std::vector<QRow> q;            // by drafted token, unless kNone or kHidden
  std::vector<HiddenRow> hidden;  // the same for kHidden
  int32_t limit = 0;              // drafted tokens wanted
  bool eos = false;               // the last one ends the text, and the block
  StopRule stop;                  // of a round; what is prepared ahead has its full length
  bool stopped = false;           // by that rule
  std::vector<float> margins;     // by drafted token, where that rule looks at them
  double survival = 1;            // the chance that all of them are accepted, by that rule

  std::span<const TokenId> drafted() const { return std::span(tokens).subspan(outcome_length); }
  int32_t length() const { return static_cast<int32_t>(tokens.size() - outcome_length); }
  bool complete() const { return eos || stopped || length() >= limit; }
  // The outcome is committed now.
  void settle() {
    tokens.erase(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(outcome_length));
    outcome_length = 0;
  }
  // Drafting less is what would have happened with this limit from the start.
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
