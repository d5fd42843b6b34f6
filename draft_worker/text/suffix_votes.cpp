#include "draft_worker/text/suffix_votes.h"

#include <algorithm>
#include <queue>

namespace outrider {

// Calls make(length), which fills draft_, with the voters of every group, the longest matches first.
template <class Make>
void SuffixVotes::for_each_group(std::vector<TextIndex::Match>& matches, MatchAcceptance::Source source,
                                 SuffixDraft& best, Make make) {
  // Stable: the newest of equally long matches stays first, and its token wins ties.
  std::stable_sort(matches.begin(), matches.end(),
                   [](const auto& a, const auto& b) { return a.length > b.length; });
  for (size_t end = 1; end <= matches.size(); ++end) {
    const int32_t length = matches[end - 1].length;
    if (end < matches.size() && matches[end].length == length) continue;
    voters_.clear();
    for (size_t i = 0; i < end; ++i) voters_.push_back(matches[i].next);
    draft_.ids.clear();
    draft_.tree.clear();
    draft_.expected = 0;
    draft_.chances.clear();
    make(length);
    if (draft_.expected <= best.expected) continue;
    draft_.source = source;
    draft_.match_length = length;
    std::swap(best, draft_);
  }
}

void SuffixVotes::consider(const TextIndex& index, std::vector<TextIndex::Match>& matches,
                           MatchAcceptance::Source source, const MatchAcceptance& acceptance, int32_t most,
                           SuffixDraft& best) {
  for_each_group(matches, source, best, [&](int32_t length) {
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
      draft_.chances.push_back(chance);
      draft_.expected += chance;
      std::erase_if(voters_, [&](uint64_t voter) { return says(voter) != winner; });
    }
  });
}

void SuffixVotes::consider_tree(const TextIndex& index, std::vector<TextIndex::Match>& matches,
                                MatchAcceptance::Source source, const MatchAcceptance& acceptance,
                                const TreeShape& shape, int32_t depth, SuffixDraft& best) {
  struct Candidate {
    double chance;
    int32_t order, parent, position;
    TokenId token;
    std::vector<uint64_t> voters;  // matches that vote for it
    bool operator<(const Candidate& other) const {
      return chance != other.chance ? chance < other.chance : order > other.order;
    }
  };
  const double least = std::max(least_chance_, static_cast<double>(shape.node_price));
  const size_t most = shape.nodes > 0 ? static_cast<size_t>(shape.nodes) : SIZE_MAX;
  const auto width = [&](int32_t position) {
    if (shape.nodes > 0) return static_cast<size_t>(kMaxTreeChildren);
    const auto level = static_cast<size_t>(position);
    return level < shape.widths.size() ? static_cast<size_t>(shape.widths[level]) : 0;
  };
  for_each_group(matches, source, best, [&](int32_t length) {
    std::priority_queue<Candidate> open;
    int32_t order = 0;
    const auto look_behind = [&](int32_t node, double chance, int32_t position,
                                 const std::vector<uint64_t>& voters) {
      if (position >= depth) return;
      std::vector<Candidate> said;
      size_t heard = 0;
      for (const uint64_t voter : voters) {
        const auto token = index.at(voter + static_cast<uint64_t>(position));
        if (!token) continue;
        ++heard;
        auto at = std::find_if(said.begin(), said.end(), [&](const auto& c) { return c.token == *token; });
        if (at == said.end())
          at = said.insert(said.end(), {.parent = node, .position = position, .token = *token});
        at->voters.push_back(voter);
      }
      if (said.empty()) return;
      std::stable_sort(said.begin(), said.end(),
                       [](const auto& a, const auto& b) { return a.voters.size() > b.voters.size(); });
      // The votes of other candidates are trusted as much as the winner's.
      const auto share = [&](const Candidate& c) {
        return static_cast<double>(c.voters.size()) / static_cast<double>(heard);
      };
      const double trust = std::min(1.0, acceptance.rate(source, length, position) / share(said.front()));
      for (size_t i = 0; i < std::min(said.size(), width(position)); ++i) {
        said[i].chance = chance * share(said[i]) * trust;
        said[i].order = order++;
        if (said[i].chance >= least) open.push(std::move(said[i]));
      }
    };
    look_behind(kTreeRoot, 1, 0, voters_);
    DraftTree found;
    while (!open.empty() && found.size() < most) {
      const Candidate next = open.top();
      open.pop();
      const auto node = static_cast<int32_t>(found.size());
      found.ids.push_back(next.token);
      found.parents.push_back(next.parent);
      draft_.expected += next.chance;
      look_behind(node, next.chance, next.position + 1, next.voters);
    }
    draft_.tree = depth_first(found);
    for (int32_t node = 0; node < static_cast<int32_t>(draft_.tree.size()); ++node) {
      if (draft_.tree.parents[static_cast<size_t>(node)] != node - 1) break;
      draft_.ids.push_back(draft_.tree.ids[static_cast<size_t>(node)]);
    }
    shorten_chain(draft_.tree);
  });
}

}  // namespace outrider
