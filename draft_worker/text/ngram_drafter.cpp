#include <algorithm>
#include <utility>

#include "draft_worker/text/text_drafter.h"

namespace outrider {
namespace {

class NgramGuesser final : public TextGuesser {
 public:
  explicit NgramGuesser(NgramDrafterOptions options) : options_(options) {}

  void open(SequenceId, std::span<const TokenId>, int32_t, bool) override {}
  void extend(SequenceId, std::span<const TokenId>) override {}
  void close(SequenceId) override {}

  void guess(SequenceId, std::span<const TokenId> text, int32_t most, std::vector<TokenId>& out) override {
    for (int32_t n = options_.max_ngram; n >= options_.min_ngram; --n) {
      if (static_cast<int64_t>(text.size()) <= n) continue;
      const auto suffix = text.last(static_cast<size_t>(n));
      // The latest earlier occurrence: its match may overlap the suffix, but must end before the text does.
      const auto haystack = text.first(text.size() - 1);
      const auto found = std::find_end(haystack.begin(), haystack.end(), suffix.begin(), suffix.end());
      if (found == haystack.end()) continue;
      const auto next = text.subspan(static_cast<size_t>(found - haystack.begin()) + suffix.size());
      const auto count = std::min<size_t>(next.size(), static_cast<size_t>(most));
      out.assign(next.begin(), next.begin() + static_cast<ptrdiff_t>(count));
      return;
    }
  }

  // Continuations of the last few occurrences, the longest suffix first, level by level until the nodes are
  // used up.
  DraftTree guess_tree(SequenceId, std::span<const TokenId> ids, const TreeShape& shape,
                       int32_t depth) override {
    const size_t levels = shape.nodes > 0 ? static_cast<size_t>(depth)
                                          : std::min(static_cast<size_t>(depth), shape.widths.size());
    const size_t most = shape.nodes > 0 ? static_cast<size_t>(shape.nodes) : kMaxNodes;
    const auto next = occurrences(ids);
    DraftTree tree;
    std::vector<int32_t> at(next.size(), kTreeRoot);
    std::vector<int32_t> children(1, 0);  // of the root, then of each node
    for (size_t level = 0; level < levels; ++level) {
      const int32_t width = shape.nodes > 0 ? kMaxOccurrences : shape.widths[level];
      for (size_t i = 0; i < next.size(); ++i) {
        if (at[i] == kStopped) continue;
        const int32_t parent = std::exchange(at[i], kStopped);
        if (next[i] + level >= ids.size()) continue;
        const TokenId token = ids[next[i] + level];
        const int32_t known = child_with(tree, parent, token);
        if (known != kTreeRoot) {
          at[i] = known;
        } else if (children[static_cast<size_t>(parent + 1)] < width && tree.size() < most) {
          ++children[static_cast<size_t>(parent + 1)];
          children.push_back(0);
          at[i] = static_cast<int32_t>(tree.size());
          tree.ids.push_back(token);
          tree.parents.push_back(parent);
        }
      }
    }
    DraftTree out = depth_first(tree);
    shorten_chain(out);
    return out;
  }

 private:
  // The positions after the occurrences, the best first.
  std::vector<size_t> occurrences(std::span<const TokenId> ids) const {
    std::vector<size_t> next;
    for (auto n = static_cast<size_t>(options_.max_ngram); n >= static_cast<size_t>(options_.min_ngram);
         --n) {
      if (ids.size() <= n) continue;
      const auto suffix = ids.last(n);
      for (size_t end = ids.size() - 1; end >= n && next.size() < static_cast<size_t>(kMaxOccurrences); --end)
        if (std::equal(suffix.begin(), suffix.end(), ids.begin() + static_cast<ptrdiff_t>(end - n)) &&
            std::find(next.begin(), next.end(), end) == next.end())
          next.push_back(end);
    }
    return next;
  }

  static constexpr int32_t kMaxOccurrences = 4;
  static constexpr size_t kMaxNodes = 4096;
  static constexpr int32_t kStopped = -2;  // this continuation has ended

  const NgramDrafterOptions options_;
};

}  // namespace

std::shared_ptr<TextGuesser> make_ngram_guesser(const NgramDrafterOptions& options) {
  return std::make_shared<NgramGuesser>(options);
}

std::unique_ptr<Drafter> make_ngram_drafter(NgramDrafterOptions options) {
  return make_text_drafter(make_ngram_guesser(options),
                           {.max_sequences = options.max_sequences, .max_context = options.max_context});
}

}  // namespace outrider
