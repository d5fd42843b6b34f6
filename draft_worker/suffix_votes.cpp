#include "draft_worker/suffix_votes.h"

#include <algorithm>

namespace outrider {

void SuffixVotes::consider(const TextIndex& index, std::vector<TextIndex::Match>& matches,
                           MatchAcceptance::Source source, const MatchAcceptance& acceptance, int32_t most,
                           SuffixDraft& best) {
  // Stable: the newest of equally long matches stays first, and its token wins ties.
  std::stable_sort(matches.begin(), matches.end(),
                   [](const auto& a, const auto& b) { return a.length > b.length; });
  for (size_t end = 1; end <= matches.size(); ++end) {
    const int32_t length = matches[end - 1].length;
    if (end < matches.size() && matches[end].length == length) continue;
    voters_.clear();
    for (size_t i = 0; i < end; ++i) voters_.push_back(matches[i].next);
    draft_.ids.clear();
    draft_.expected = 0;
    double chance = 1;
    for (int32_t position = 0; position < most; ++position) {
      const auto says = [&](uint64_t voter) { return index.at(voter + static_cast<uint64_t>(position)); };
      size_t votes = 0, heard = 0;
      std::optional<TokenId> winner;
      for (const uint64_t voter : voters_) {
        const auto token = says(voter);
        if (!token) continue;
        ++heard;
        const auto same = static_cast<size_t>(
            std::count_if(voters_.begin(), voters_.end(), [&](uint64_t v) { return says(v) == token; }));
        if (same > votes) {
          votes = same;
          winner = token;
        }
      }
      if (!winner) break;
      chance *= std::min(static_cast<double>(votes) / static_cast<double>(heard),
                         acceptance.rate(source, length, position));
      if (chance < least_chance_) break;
      draft_.ids.push_back(*winner);
      draft_.expected += chance;
      std::erase_if(voters_, [&](uint64_t voter) { return says(voter) != winner; });
    }
    if (draft_.expected <= best.expected) continue;
    draft_.source = source;
    draft_.match_length = length;
    std::swap(best, draft_);
  }
}

}  // namespace outrider
