// One request's grammar at work: the masks for the rows of its round, and the changes to its draft. Masks
// depend only on the text up to their row, so under match rules the text is that of plain decoding with the
// same grammar. Under p/q rules a draft is cut only after tokens that the target tests, which keeps the
// output distribution.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/sampling_params.h"
#include "comm/messages/drafting.h"
#include "comm/messages/verifying.h"
#include "text/grammar/grammar.h"

namespace outrider {

constexpr size_t kMaskBytes = 16;  // of a TokenMask in a frame, beside TokenSet::bytes()

// The limits of a round.
struct ConstraintRoom {
  int32_t tokens = 0;  // drafted tokens, where the grammar adds some
  int32_t rows = 1;    // rows that may have a mask
};

// The effect of a grammar on a round.
struct RoundMasks {
  std::vector<TokenMask> masks;  // as in PlanEntry
  size_t bytes = 0;              // of the masks in a frame, upper bound
  int32_t forced = 0;            // tokens that the grammar appended to the draft
  int32_t cut = 0;               // drafted tokens that were dropped
  // True if the draft was cut before a token that the grammar refused; the test of that token is known to
  // fail.
  bool refused = false;
  int64_t computed = 0;  // masks
  int64_t ns = 0;        // time of all steps
};

class Constraint {
 public:
  explicit Constraint(std::shared_ptr<const Grammar> grammar);

  // Computes masks for the rows of a draft after the committed text. Under a match rule the draft ends before
  // the first forbidden token (a tree also loses the nodes after it), and tokens that the grammar forces are
  // appended to a chain. Under a p/q rule a forbidden token stays, to be rejected, and ends the chain; a tree
  // does not change. Calling it again for the same text and draft gives the same result.
  void settle(Draft& draft, Rule rule, const ConstraintRoom& room, RoundMasks& out);
  // Appends a token to the text. False: it is forbidden, and the request ends with status().
  bool commit(TokenId id);
  bool is_over() const { return matcher_->is_over(); }
  // The reason why the text cannot go on, once found.
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
  // Reads committed tokens only, as in plain decoding. `ahead_` may meet a limit of the library, and then
  // stops there.
  const std::unique_ptr<TokenMatcher> matcher_;
  std::unique_ptr<TokenMatcher> ahead_;  // a copy that reads the draft
  std::vector<uint32_t> bits_;           // of the last row
  std::optional<TokenId> only_;          // the only allowed token of the last row, if there is only one
  std::vector<TokenId> foreseen_;
  Status status_;
};

}  // namespace outrider
