// One request's grammar at work: what may be drawn at each row of its round, and what that makes of its
// draft. Masks depend on the text up to their row alone, so under match rules the text is that of plain
// decoding with the same grammar; under p/q rules a draft is only cut behind tokens that have been looked at,
// which keeps their law.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/sampling_params.h"
#include "comm/messages/drafting.h"
#include "comm/messages/verifying.h"
#include "transformer/grammar/grammar.h"

namespace outrider {

constexpr size_t kMaskBytes = 16;  // of a TokenMask in a frame, beside TokenSet::bytes()

// How much a round may take.
struct ConstraintRoom {
  int32_t tokens = 0;  // drafted ones, where the grammar adds some
  int32_t rows = 1;    // with a mask
};

// What a grammar did to a round.
struct RoundMasks {
  std::vector<TokenMask> masks;  // as in PlanEntry
  size_t bytes = 0;              // of them in a frame, at most
  int32_t forced = 0;            // tokens that the grammar put behind the draft
  int32_t cut = 0;               // drafted tokens that were dropped
  // The draft was cut before a token that the grammar refused, whose test is known to fail.
  bool refused = false;
  int64_t computed = 0;  // masks
  int64_t ns = 0;        // that all of it took
};

class Constraint {
 public:
  explicit Constraint(std::shared_ptr<const Grammar> grammar);

  // Masks for the rows of a draft behind the text committed so far. Under a match rule the draft ends before
  // the first token that may not stand there (a tree loses the nodes behind it, too), and tokens that the
  // grammar foresees are put behind a chain. Under a p/q rule such a token stays, to be rejected, and ends
  // the chain; of a tree nothing changes. The same again for the same text and draft.
  void settle(Draft& draft, Rule rule, const ConstraintRoom& room, RoundMasks& out);
  // The text goes on with a token. False: it may not, and the request ends with status().
  bool commit(TokenId id);
  bool is_over() const { return matcher_->is_over(); }
  // Why the text cannot go on, once that was found out.
  const Status& status() const { return status_; }
  int32_t vocab_size() const { return grammar_->vocab_size(); }

 private:
  struct Tree;

  bool add_mask(TokenMatcher& matcher, int32_t row, RoundMasks& out);
  void settle_chain(Draft& draft, bool matches, const ConstraintRoom& room, RoundMasks& out);
  void foresee(Draft& draft, const ConstraintRoom& room, RoundMasks& out);
  void settle_tree(Draft& draft, bool matches, const ConstraintRoom& room, RoundMasks& out);
  void walk(Tree& tree, int32_t node, TokenMatcher& matcher, RoundMasks& out);
  bool allowed(TokenId id) const;  // at the last row
  TokenMatcher& ahead();

  const std::shared_ptr<const Grammar> grammar_;
  // Reads committed tokens alone, as in plain decoding: what looks ahead may meet a limit of the library, and
  // then goes no further.
  const std::unique_ptr<TokenMatcher> matcher_;
  std::unique_ptr<TokenMatcher> ahead_;  // a copy that reads a chain while it is settled
  std::vector<uint32_t> bits_;           // of the last row
  std::optional<TokenId> only_;          // the token of the last row, if there is but one
  std::vector<TokenId> foreseen_;
  Status status_;
};

}  // namespace outrider
