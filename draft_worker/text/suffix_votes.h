// Makes one draft from the earlier occurrences of a text's suffix: at each step the occurrences vote with
// their next token, and outvoted ones drop out (suffix decoding, Oliaro et al. 2025). Either all matches vote
// or only the longest ones, whichever gives more expected right tokens. In a tree outvoted matches continue
// as branches: its nodes are the likeliest continuations.
#pragma once

#include <vector>

#include "base/draft_tree.h"
#include "comm/messages/draft_forms.h"
#include "draft_worker/text/match_acceptance.h"
#include "draft_worker/text/text_index.h"

namespace outrider {

struct SuffixDraft {
  std::vector<TokenId> ids;  // of a tree: along its first children
  DraftTree tree;            // if a tree was requested
  MatchAcceptance::Source source = MatchAcceptance::kOwnText;
  int32_t match_length = 0;     // of the shortest match that voted
  double expected = 0;          // right tokens
  std::vector<double> chances;  // of a chain: that it is right up to each token
};

class SuffixVotes {
 public:
  // Drops tokens that are right with less than this chance.
  explicit SuffixVotes(double least_chance) : least_chance_(least_chance) {}

  // Replaces `best` if a draft of at most `most` tokens from these matches is expected to do better.
  void consider(const TextIndex& index, std::vector<TextIndex::Match>& matches,
                MatchAcceptance::Source source, const MatchAcceptance& acceptance, int32_t most,
                SuffixDraft& best);
  // Considers drafts that are trees of this shape, whose paths have `depth` tokens at most.
  void consider_tree(const TextIndex& index, std::vector<TextIndex::Match>& matches,
                     MatchAcceptance::Source source, const MatchAcceptance& acceptance,
                     const TreeShape& shape, int32_t depth, SuffixDraft& best);

 private:
  template <class Make>
  void for_each_group(std::vector<TextIndex::Match>& matches, MatchAcceptance::Source source,
                      SuffixDraft& best, Make make);
  const double least_chance_;
  std::vector<uint64_t> voters_;
  SuffixDraft draft_;
};

}  // namespace outrider
