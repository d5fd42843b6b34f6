#include <algorithm>
#include <unordered_map>

#include "draft_worker/text/suffix_votes.h"
#include "draft_worker/text/text_drafter.h"

namespace outrider {
namespace {

// A text's own index grows with the text.
constexpr size_t kFirstWindow = 1024;

class SuffixGuesser final : public TextGuesser {
 public:
  explicit SuffixGuesser(const SuffixDrafterOptions& options)
      : votes_(options.least_chance),
        remembers_(options.history_tokens > 0),
        others_(static_cast<size_t>(options.history_tokens)) {}

  void open(SequenceId sequence, std::span<const TokenId> text, int32_t prompt_length, bool alone) override {
    Own& own = own_.insert_or_assign(sequence, Own()).first->second;
    own.alone = alone;
    own.prompt_length = static_cast<size_t>(prompt_length);
    extend(sequence, text);
  }

  void extend(SequenceId sequence, std::span<const TokenId> text) override {
    Own& own = own_.at(sequence);
    learn(own, text);
    if (text.size() > own.index.window()) {
      own.index = TextIndex(2 * text.size());
      own.text.clear();
    }
    for (size_t i = own.text.size(); i < text.size(); ++i) {
      own.index.append(text[i]);
      own.text.push_back(text[i]);
    }
  }

  void close(SequenceId sequence) override {
    const auto at = own_.find(sequence);
    if (at == own_.end()) return;
    if (remembers_ && !at->second.alone) {
      const std::vector<TokenId>& text = at->second.text;
      for (size_t i = std::min(at->second.prompt_length, text.size()); i < text.size(); ++i)
        others_.append(text[i]);
      others_.end_text();
    }
    own_.erase(at);
  }

  void guess(SequenceId sequence, std::span<const TokenId> text, int32_t most,
             std::vector<TokenId>& out) override {
    Own& own = own_.at(sequence);
    look_up(own, text, [&](const TextIndex& index, MatchAcceptance::Source source) {
      votes_.consider(index, matches_, source, acceptance_, most, own.draft);
    });
    out.assign(own.draft.ids.begin(), own.draft.ids.end());
  }

  std::span<const double> chances(SequenceId sequence) const override {
    const auto at = own_.find(sequence);
    return at == own_.end() ? std::span<const double>() : at->second.draft.chances;
  }

  void verified(SequenceId sequence, int32_t right) override {
    Own& own = own_.at(sequence);
    for (int32_t i = 0; i <= right && i < static_cast<int32_t>(own.draft.ids.size()); ++i)
      acceptance_.add(own.draft.source, own.draft.match_length, i, i < right);
    own.draft.ids.clear();
  }

  DraftTree guess_tree(SequenceId sequence, std::span<const TokenId> text, const TreeShape& shape,
                       int32_t depth) override {
    Own& own = own_.at(sequence);
    look_up(own, text, [&](const TextIndex& index, MatchAcceptance::Source source) {
      votes_.consider_tree(index, matches_, source, acceptance_, shape, depth, own.draft);
    });
    return own.draft.tree;
  }

 private:
  struct Own {
    TextIndex index{kFirstWindow};
    std::vector<TokenId> text;
    size_t prompt_length = 0;
    bool alone = false;
    SuffixDraft draft;  // the newest, until the text shows the accepted part
    size_t base = 0;    // where it begins
  };

  template <class Consider>
  void look_up(Own& own, std::span<const TokenId> text, Consider consider) {
    own.draft.ids.clear();
    own.draft.tree.clear();
    own.draft.expected = 0;
    own.draft.chances.clear();
    own.base = text.size();
    const auto suffix = text.last(std::min<size_t>(text.size(), TextIndex::kLongestMatch));
    own.index.find(suffix, matches_);
    consider(own.index, MatchAcceptance::kOwnText);
    if (!remembers_ || own.alone) return;
    others_.find(suffix, matches_);
    consider(others_, MatchAcceptance::kOtherTexts);
  }

  // Learns from the newest draft by the text, whether it was verified or came too late.
  void learn(Own& own, std::span<const TokenId> text) {
    if (own.draft.ids.empty() || text.size() <= own.base) return;
    for (size_t i = 0; i < own.draft.ids.size() && own.base + i < text.size(); ++i) {
      const bool right = text[own.base + i] == own.draft.ids[i];
      acceptance_.add(own.draft.source, own.draft.match_length, static_cast<int32_t>(i), right);
      if (!right) break;
    }
    own.draft.ids.clear();
  }

  SuffixVotes votes_;
  MatchAcceptance acceptance_;
  const bool remembers_;
  TextIndex others_;
  std::unordered_map<SequenceId, Own> own_;
  std::vector<TextIndex::Match> matches_;
};

}  // namespace

std::shared_ptr<TextGuesser> make_suffix_guesser(const SuffixDrafterOptions& options) {
  return std::make_shared<SuffixGuesser>(options);
}

std::unique_ptr<Drafter> make_suffix_drafter(SuffixDrafterOptions options) {
  return make_text_drafter(make_suffix_guesser(options),
                           {.max_sequences = options.max_sequences, .max_context = options.max_context});
}

}  // namespace outrider
