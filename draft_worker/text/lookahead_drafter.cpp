// Lookahead decoding (Fu et al. 2024, 2402.02057): beside a few guesses the target computes a window of
// tokens that are not expected to be right. Position i of the window's first level stands i tokens after the
// text; each further level continues it by one token. The token that the target ranks best after the last
// level completes an n-gram for each position, which the target itself would write, and gives the next
// window. Guesses are the n-grams that begin with the text's last token.
//
// Guesses and window are one tree: the first level is a chain after the text, and every position has a branch
// of its further levels. So each row sees the same tokens as in the paper, and a branch that happens to be
// right is accepted like any other.
#include <algorithm>
#include <deque>
#include <memory>
#include <unordered_map>

#include "draft_worker/text/text_drafter.h"

namespace outrider {
namespace {

using Ngram = std::vector<TokenId>;  // the tokens after its first one

// For each first token, the n-grams seen last, the newest first.
class NgramPool {
 public:
  void add(TokenId first, std::span<const TokenId> rest) {
    std::deque<Ngram>& of = ngrams_[first.value()];
    const auto known =
        std::find_if(of.begin(), of.end(), [&](const Ngram& n) { return std::ranges::equal(n, rest); });
    if (known != of.end()) {
      std::rotate(of.begin(), known, known + 1);
      return;
    }
    of.emplace_front(rest.begin(), rest.end());
    if (of.size() > kMostOfAToken) of.pop_back();
  }
  // Null: no n-gram is known.
  const std::deque<Ngram>* find(TokenId first) const {
    const auto at = ngrams_.find(first.value());
    return at == ngrams_.end() ? nullptr : &at->second;
  }

 private:
  static constexpr size_t kMostOfAToken = 16;
  std::unordered_map<int32_t, std::deque<Ngram>> ngrams_;
};

// The levels of a window, and their nodes in the newest draft.
class JacobiWindow {
 public:
  explicit JacobiWindow(size_t levels) : most_levels_(levels) {}

  // Sets the width. New positions of the first level take tokens of the text, which are as good as any;
  // narrower further levels start again.
  void widen(size_t width, std::span<const TokenId> text) {
    if (levels_.empty()) levels_.emplace_back();
    while (levels_.front().size() < width) {
      levels_.front().push_back(text[(seed_ * kStride) % text.size()]);
      ++seed_;
      levels_.resize(1);
    }
  }
  // Adds `width` positions after the root, with all known levels.
  void put_into(DraftTree& tree, size_t width) {
    nodes_.assign(levels_.size(), {});
    int32_t before = kTreeRoot;
    for (size_t i = 0; i < width; ++i) {
      int32_t node = before;
      for (size_t level = 0; level < levels_.size(); ++level) {
        node = node_with(tree, node, levels_[level][i]);
        nodes_[level].push_back(node);
      }
      before = nodes_[0].back();
    }
  }
  void renumber(std::span<const int32_t> new_of) {
    for (auto& level : nodes_)
      for (int32_t& node : level) node = new_of[static_cast<size_t>(node)];
  }
  // best_of(node): the token ranked best after it. It becomes the next level until there are enough levels.
  // Then the n-grams of all positions go to the pool, and the first level is dropped.
  template <class BestOf>
  void advance(BestOf best_of, NgramPool& pool) {
    const size_t width = nodes_.empty() ? 0 : nodes_.back().size();
    const bool is_whole = levels_.size() == most_levels_;
    if (width == 0 || (!is_whole && width < levels_.front().size())) return forget_nodes();
    std::vector<TokenId> next;
    for (size_t i = 0; i < width; ++i) {
      const TokenId best = best_of(nodes_.back()[i]);
      if (best.value() < 0) return forget_nodes();
      next.push_back(best);
    }
    if (!is_whole) {
      levels_.push_back(std::move(next));
      return forget_nodes();
    }
    Ngram rest;
    for (size_t i = 0; i < width; ++i) {
      rest.clear();
      for (size_t level = 1; level < levels_.size(); ++level) rest.push_back(levels_[level][i]);
      rest.push_back(next[i]);
      pool.add(levels_[0][i], rest);
    }
    for (size_t level = 0; level + 1 < levels_.size(); ++level)
      std::copy_n(levels_[level + 1].begin(), width, levels_[level].begin());
    std::copy(next.begin(), next.end(), levels_.back().begin());
    forget_nodes();
  }
  void forget_nodes() { nodes_.clear(); }
  size_t levels() const { return std::max<size_t>(1, levels_.size()); }

  static int32_t node_with(DraftTree& tree, int32_t parent, TokenId token) {
    const int32_t known = child_with(tree, parent, token);
    if (known != kTreeRoot) return known;
    tree.ids.push_back(token);
    tree.parents.push_back(parent);
    return static_cast<int32_t>(tree.size()) - 1;
  }

 private:
  static constexpr size_t kStride = 7919;  // a prime: neighbours in the text are none in the window

  size_t most_levels_;
  size_t seed_ = 0;
  std::vector<std::vector<TokenId>> levels_;  // [level][position]
  std::vector<std::vector<int32_t>> nodes_;   // as far as the newest draft contains them
};

class LookaheadGuesser final : public TextGuesser {
 public:
  explicit LookaheadGuesser(const LookaheadDrafterOptions& options)
      : ngram_(static_cast<size_t>(options.ngram)) {}

  void open(SequenceId sequence, std::span<const TokenId> text, int32_t, bool) override {
    sequences_.insert_or_assign(sequence, Sequence{.window = JacobiWindow(ngram_ - 1)});
    extend(sequence, text);
  }
  // Adds n-grams of the text itself, too.
  void extend(SequenceId sequence, std::span<const TokenId> text) override {
    Sequence& of = sequences_.at(sequence);
    for (of.known = std::max(of.known, ngram_); of.known <= text.size(); ++of.known)
      of.pool.add(text[of.known - ngram_], text.subspan(of.known - ngram_ + 1, ngram_ - 1));
  }
  // Rows of the newest draft come last, after the row of the text's end that the draft continues.
  void learn(SequenceId sequence, const TokenSuccessors& successors) override {
    Sequence& of = sequences_.at(sequence);
    const auto& rows = successors.tokens;
    const size_t drafted = of.drafted.size();
    if (rows.size() <= drafted || !std::equal(of.drafted.begin(), of.drafted.end(), rows.end() - drafted))
      return of.window.forget_nodes();
    const size_t first = rows.size() - drafted;
    const auto best_of = [&](int32_t node) {
      return successors.best[(first + static_cast<size_t>(node)) * kSuccessors];
    };
    of.window.advance(best_of, of.pool);
    of.drafted.clear();
  }
  void close(SequenceId sequence) override { sequences_.erase(sequence); }
  bool ranks_siblings() const override { return false; }

  void guess(SequenceId sequence, std::span<const TokenId> text, int32_t most,
             std::vector<TokenId>& out) override {
    out.clear();
    const auto* known = sequences_.at(sequence).pool.find(text.back());
    if (!known) return;
    const size_t count = std::min(static_cast<size_t>(most), known->front().size());
    out.assign(known->front().begin(), known->front().begin() + static_cast<ptrdiff_t>(count));
  }

  // Half of the nodes are for guesses, the remaining ones for the window.
  DraftTree guess_tree(SequenceId sequence, std::span<const TokenId> text, const TreeShape& shape,
                       int32_t depth) override {
    Sequence& of = sequences_.at(sequence);
    const auto nodes = nodes_of(shape, static_cast<size_t>(depth));
    const auto deepest = static_cast<size_t>(depth);
    const auto width_of = [&](size_t room, size_t levels) {
      return std::min(room / levels, deepest + 1 > levels ? deepest + 1 - levels : 0);
    };
    DraftTree tree;
    if (const auto* known = of.pool.find(text.back())) put_guesses(*known, nodes / 2, deepest, tree);
    const size_t planned = width_of(nodes - nodes / 2, ngram_ - 1);
    of.window.widen(planned, text);
    of.window.put_into(tree, std::min(planned, width_of(nodes - tree.size(), of.window.levels())));
    std::vector<int32_t> order, new_of(tree.size());
    tree = depth_first(tree, &order);
    for (size_t i = 0; i < order.size(); ++i) new_of[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
    of.window.renumber(new_of);
    of.drafted = tree.ids;
    shorten_chain(tree);
    return tree;
  }

 private:
  struct Sequence {
    JacobiWindow window;
    NgramPool pool;
    size_t known = 0;              // tokens of the text whose n-grams are in the pool
    std::vector<TokenId> drafted;  // the newest tree
  };

  static size_t nodes_of(const TreeShape& shape, size_t depth) {
    if (shape.nodes > 0) return static_cast<size_t>(shape.nodes);
    size_t nodes = 0, level_nodes = 1;
    for (size_t level = 0; level < std::min(depth, shape.widths.size()); ++level)
      nodes += level_nodes *= static_cast<size_t>(shape.widths[level]);
    return nodes;
  }
  // A node may belong to guesses and window, and then has two more children.
  static void put_guesses(const std::deque<Ngram>& ngrams, size_t nodes, size_t depth, DraftTree& tree) {
    constexpr size_t kMostGuesses = kMaxTreeChildren - 2;
    for (size_t i = 0; i < std::min(ngrams.size(), kMostGuesses); ++i) {
      int32_t node = kTreeRoot;
      for (size_t at = 0; at < std::min(ngrams[i].size(), depth); ++at) {
        if (tree.size() >= nodes && child_with(tree, node, ngrams[i][at]) == kTreeRoot) return;
        node = JacobiWindow::node_with(tree, node, ngrams[i][at]);
      }
    }
  }

  const size_t ngram_;
  std::unordered_map<SequenceId, Sequence> sequences_;
};

}  // namespace

std::shared_ptr<TextGuesser> make_lookahead_guesser(const LookaheadDrafterOptions& options) {
  return std::make_shared<LookaheadGuesser>(options);
}

std::unique_ptr<Drafter> make_lookahead_drafter(LookaheadDrafterOptions options) {
  return make_text_drafter(make_lookahead_guesser(options),
                           {.max_sequences = options.max_sequences, .max_context = options.max_context});
}

}  // namespace outrider
