// From the places where a text's suffix stood before to one draft: at each step the places vote with the
// token that follows, and those that are outvoted drop out (suffix decoding, Oliaro et al. 2025). Which
// matches may vote, all or only the longest, is chosen by the expected number of right tokens. In a tree
// those that are outvoted go on for themselves: its nodes are the likeliest continuations.
#pragma once

#include <vector>

#include "base/draft_tree.h"
#include "comm/messages/draft_forms.h"
#include "draft_worker/match_acceptance.h"
#include "draft_worker/text_index.h"

namespace outrider {

struct SuffixDraft {
  std::vector<TokenId> ids;  // of a tree: along its first children
  DraftTree tree;            // where one was asked for
  MatchAcceptance::Source source = MatchAcceptance::kOwnText;
  int32_t match_length = 0;     // of the shortest match that voted
  double expected = 0;          // right tokens
  std::vector<double> chances;  // of a chain: that it is right up to each token
};

class SuffixVotes {
 public:
  // Tokens that are right with less than this chance are not drafted.
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
