#include <algorithm>

#include "draft_worker/text_drafter.h"

namespace outrider {
namespace {

class NgramGuesser final : public TextGuesser {
 public:
  explicit NgramGuesser(NgramDrafterOptions options) : options_(options) {}

  void open(SequenceId, std::span<const TokenId>, int32_t) override {}
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

 private:
  const NgramDrafterOptions options_;
};

}  // namespace

std::unique_ptr<Drafter> make_ngram_drafter(NgramDrafterOptions options) {
  return make_text_drafter(std::make_unique<NgramGuesser>(options),
                           {.max_sequences = options.max_sequences, .max_context = options.max_context});
}

}  // namespace outrider
