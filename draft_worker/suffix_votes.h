// From the places where a text's suffix stood before to one draft: at each step the places vote with the
// token that follows, and those that are outvoted drop out (suffix decoding, Oliaro et al. 2025). Which
// matches may vote, all or only the longest, is chosen by the expected number of right tokens.
#pragma once

#include <vector>

#include "draft_worker/match_acceptance.h"
#include "draft_worker/text_index.h"

namespace outrider {

struct SuffixDraft {
  std::vector<TokenId> ids;
  MatchAcceptance::Source source = MatchAcceptance::kOwnText;
  int32_t match_length = 0;  // of the shortest match that voted
  double expected = 0;       // right tokens
};

class SuffixVotes {
 public:
  // Tokens that are right with less than this chance are not drafted.
  explicit SuffixVotes(double least_chance) : least_chance_(least_chance) {}

  // Replaces `best` if a draft of at most `most` tokens from these matches is expected to do better.
  void consider(const TextIndex& index, std::vector<TextIndex::Match>& matches,
                MatchAcceptance::Source source, const MatchAcceptance& acceptance, int32_t most,
                SuffixDraft& best);

 private:
  const double least_chance_;
  std::vector<uint64_t> voters_;
  SuffixDraft draft_;
};

}  // namespace outrider
