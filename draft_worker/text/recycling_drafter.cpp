// Token recycling (Luo et al. 2024, 2408.08696): a table of the tokens that the target ranked best after each
// token, at its last occurrence. Drafts are walks through that table. Its rows come with Proposes, from all
// verified rows, accepted or not; tokens that followed in the text come first in a row.
#include <algorithm>
#include <array>
#include <memory>
#include <queue>
#include <unordered_map>

#include "draft_worker/text/text_drafter.h"

namespace outrider {
namespace {

constexpr size_t kListed = static_cast<size_t>(kSuccessors);
constexpr TokenId kNone{-1};

// [token][rank], for the tokens seen so far. Ids were checked against the target's vocabulary on arrival.
class SuccessorTable {
 public:
  using Row = std::array<TokenId, kListed>;

  // Null: no successor is known.
  const Row* find(TokenId token) const {
    const auto at = rows_.find(token.value());
    return at == rows_.end() ? nullptr : &at->second;
  }
  void set(TokenId token, std::span<const TokenId> best) {
    if (best.front() != kNone) std::copy(best.begin(), best.end(), row(token).begin());
  }
  // Moves a token that just followed to the front.
  void put_first(TokenId token, TokenId next) {
    Row& of = row(token);
    const auto found = std::find(of.begin(), of.end() - 1, next);
    std::copy_backward(of.begin(), found, found + 1);
    of[0] = next;
  }

 private:
  Row& row(TokenId token) { return rows_.try_emplace(token.value(), filled()).first->second; }
  static Row filled() {
    Row row;
    row.fill(kNone);
    return row;
  }
  std::unordered_map<int32_t, Row> rows_;
};

// How often the token at each rank was the one that followed. Old counts decay.
class RankChances {
 public:
  double of(size_t rank) const { return right_[rank] / tested_; }
  // `rank` is kListed if the token was not listed.
  void add(size_t rank) {
    tested_ += 1;
    if (rank < kListed) right_[rank] += 1;
    if (tested_ < kFadeAfter) return;
    tested_ /= 2;
    for (double& right : right_) right /= 2;
  }

 private:
  static constexpr double kFadeAfter = 1024;
  // The prior, worth eight tests: the first rank is right in three of eight, later ones more rarely.
  double tested_ = 8;
  std::array<double, kListed> right_{3, 1, 0.5, 0.3, 0.2, 0.15, 0.1, 0.1};
};

class RecyclingGuesser final : public TextGuesser {
 public:
  explicit RecyclingGuesser(const RecyclingDrafterOptions& options) : least_chance_(options.least_chance) {}

  void open(SequenceId sequence, std::span<const TokenId> text, int32_t, bool alone) override {
    Sequence& opened = sequences_.insert_or_assign(sequence, Sequence()).first->second;
    if (alone) opened.own = std::make_unique<SuccessorTable>();
    extend(sequence, text);
  }
  void extend(SequenceId sequence, std::span<const TokenId> text) override {
    Sequence& of = sequences_.at(sequence);
    for (; of.known < text.size(); ++of.known) {
      const TokenId token = text[of.known - 1], next = text[of.known];
      if (const auto* row = table_of(of).find(token))
        chances_.add(static_cast<size_t>(std::find(row->begin(), row->end(), next) - row->begin()));
      of.followed.emplace_back(token, next);
    }
  }
  void learn(SequenceId sequence, const TokenSuccessors& successors) override {
    Sequence& of = sequences_.at(sequence);
    SuccessorTable& table = table_of(of);
    for (size_t i = 0; i < successors.tokens.size(); ++i)
      table.set(successors.tokens[i], std::span(successors.best).subspan(i * kListed, kListed));
    for (const auto& [token, next] : of.followed) table.put_first(token, next);
    of.followed.clear();
  }
  void close(SequenceId sequence) override { sequences_.erase(sequence); }
  bool ranks_siblings() const override { return true; }

  // Follows the first ranks, while the chance that the whole guess is right is at least least_chance.
  void guess(SequenceId sequence, std::span<const TokenId> text, int32_t most,
             std::vector<TokenId>& out) override {
    const SuccessorTable& table = table_of(sequences_.at(sequence));
    out.clear();
    TokenId last = text.back();
    double chance = 1;
    while (static_cast<int32_t>(out.size()) < most) {
      const auto* row = table.find(last);
      chance *= chances_.of(0);
      if (!row || chance < least_chance_) break;
      out.push_back(last = row->front());
    }
  }

  // A tree that lists its nodes takes ranks in the order of siblings; one with widths takes the first ranks
  // of each row; else the nodes with the largest chances are taken.
  DraftTree guess_tree(SequenceId sequence, std::span<const TokenId> text, const TreeShape& shape,
                       int32_t depth) override {
    grown_from_ = &table_of(sequences_.at(sequence));
    DraftTree tree = !shape.parents.empty() ? fill(text.back(), shape.parents)
                     : shape.nodes > 0      ? best_first(text.back(), shape, depth)
                                            : by_widths(text.back(), shape.widths, depth);
    tree = depth_first(tree);
    shorten_chain(tree);
    return tree;
  }

 private:
  DraftTree fill(TokenId root, const std::vector<int32_t>& parents) const {
    constexpr int32_t kMissing = -2;
    DraftTree tree;
    std::vector<int32_t> at(parents.size(), kMissing);  // node of the tree
    std::vector<size_t> children(parents.size() + 1, 0);
    for (size_t i = 0; i < parents.size(); ++i) {
      const size_t rank = children[static_cast<size_t>(parents[i] + 1)]++;
      const int32_t parent = parents[i] == kTreeRoot ? kTreeRoot : at[static_cast<size_t>(parents[i])];
      if (parent != kMissing) at[i] = add(tree, root, parent, rank);
    }
    return tree;
  }
  DraftTree by_widths(TokenId root, const std::vector<int32_t>& widths, int32_t depth) const {
    DraftTree tree;
    size_t begin = 0;
    const size_t levels = std::min(widths.size(), static_cast<size_t>(depth));
    for (size_t level = 0; level < levels; ++level) {
      const size_t end = tree.size();
      const auto width = static_cast<size_t>(widths[level]);
      for (size_t rank = 0; level == 0 && rank < width; ++rank) add(tree, root, kTreeRoot, rank);
      for (size_t node = begin; level > 0 && node < end; ++node)
        for (size_t rank = 0; rank < width; ++rank) add(tree, root, static_cast<int32_t>(node), rank);
      begin = end;
    }
    return tree;
  }
  DraftTree best_first(TokenId root, const TreeShape& shape, int32_t depth) const {
    struct Candidate {
      double chance;
      int32_t order, parent, level;
      size_t rank;
      bool operator<(const Candidate& other) const {
        return chance != other.chance ? chance < other.chance : order > other.order;
      }
    };
    const double least = std::max(kMinNode, static_cast<double>(shape.node_price));
    std::priority_queue<Candidate> open;
    int32_t order = 0;
    const auto look_behind = [&](int32_t node, double chance, int32_t level) {
      if (level >= depth) return;
      for (size_t rank = 0; rank < kListed; ++rank)
        if (const double of_it = chance * chances_.of(rank); of_it >= least)
          open.push({of_it, order++, node, level, rank});
    };
    DraftTree tree;
    look_behind(kTreeRoot, 1, 0);
    while (!open.empty() && tree.size() < static_cast<size_t>(shape.nodes)) {
      const Candidate next = open.top();
      open.pop();
      const int32_t node = add(tree, root, next.parent, next.rank);
      if (node >= 0) look_behind(node, next.chance, next.level + 1);
    }
    return tree;
  }
  // The new node; negative: no token is known at this rank.
  int32_t add(DraftTree& tree, TokenId root, int32_t parent, size_t rank) const {
    const TokenId behind = parent == kTreeRoot ? root : tree.ids[static_cast<size_t>(parent)];
    const auto* row = grown_from_->find(behind);
    if (!row || rank >= kListed || (*row)[rank] == kNone) return -2;
    tree.ids.push_back((*row)[rank]);
    tree.parents.push_back(parent);
    return static_cast<int32_t>(tree.size()) - 1;
  }

  static constexpr double kMinNode = 0.01;
  const double least_chance_;
  struct Sequence {
    size_t known = 1;                                   // tokens of the text
    std::vector<std::pair<TokenId, TokenId>> followed;  // until learn(): of at most one round, or a prompt
    std::unique_ptr<SuccessorTable> own;                // of a sequence with a salt
  };
  SuccessorTable& table_of(Sequence& sequence) { return sequence.own ? *sequence.own : shared_; }

  SuccessorTable shared_;
  const SuccessorTable* grown_from_ = nullptr;  // by guess_tree()
  RankChances chances_;
  std::unordered_map<SequenceId, Sequence> sequences_;
};

}  // namespace

std::shared_ptr<TextGuesser> make_recycling_guesser(const RecyclingDrafterOptions& options) {
  return std::make_shared<RecyclingGuesser>(options);
}

std::unique_ptr<Drafter> make_recycling_drafter(RecyclingDrafterOptions options) {
  return make_text_drafter(make_recycling_guesser(options),
                           {.max_sequences = options.max_sequences, .max_context = options.max_context});
}

}  // namespace outrider
