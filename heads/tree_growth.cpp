#include "heads/tree_growth.h"

#include <algorithm>

namespace outrider {
namespace {

// Children of a node that best-first trees consider. Further ones are hardly ever right, and each makes the
// search for the best scores longer (TokenGuesser).
constexpr size_t kConsidered = 4;

}  // namespace

void TreeGrowth::begin(const TreeShape& shape, int32_t depth) {
  shape_ = shape;
  fixed_.clear();
  fixed_depths_.clear();
  if (shape.nodes == 0) lay_out(depth);
  depth_ = shape.nodes > 0         ? depth
           : fixed_depths_.empty() ? 0
                                   : *std::max_element(fixed_depths_.begin(), fixed_depths_.end());
  root_known_ = depth_ == 0;
  stopped_ = false;
  nodes_.clear();
  next_.clear();
  best_shares_ = 0;
  looked_ = 0;
}

void TreeGrowth::go_on(const TreeShape& shape, int32_t depth) {
  shape_ = shape;
  depth_ = depth;
  stopped_ = false;
}

int32_t TreeGrowth::child_with(int32_t node, TokenId token_of) const {
  for (int32_t i = node + 1; i < static_cast<int32_t>(nodes_.size()); ++i)
    if (parent(i) == node && token(i) == token_of) return i;
  return kTreeRoot;
}

void TreeGrowth::become_root(int32_t root, std::vector<int32_t>& kept) {
  kept.clear();
  next_.clear();
  std::vector<int32_t>& place = order_;
  place.assign(nodes_.size(), kTreeRoot);
  const double before = reach(root);
  const int32_t above = depth(root);
  root_known_ = is_known(root);
  for (int32_t i = 0; i < static_cast<int32_t>(place.size()); ++i) {
    Node node = nodes_[static_cast<size_t>(i)];
    const bool is_child = node.parent == root;
    if (!is_child && (node.parent == kTreeRoot || place[static_cast<size_t>(node.parent)] == kTreeRoot))
      continue;
    node.parent = is_child ? kTreeRoot : place[static_cast<size_t>(node.parent)];
    node.depth -= above;
    node.reach = before > 0 ? node.reach / before : 0;
    nodes_[kept.size()] = node;
    place[static_cast<size_t>(i)] = static_cast<int32_t>(kept.size());
    kept.push_back(i);
  }
  nodes_.erase(nodes_.begin() + static_cast<ptrdiff_t>(kept.size()), nodes_.end());
}

// The nodes of a fixed shape down to this depth.
void TreeGrowth::lay_out(int32_t depth) {
  if (shape_.parents.empty()) {
    int32_t first = kTreeRoot, last = kTreeRoot;  // the level above
    for (size_t level = 0; level < std::min(shape_.widths.size(), static_cast<size_t>(depth)); ++level) {
      const auto begin = static_cast<int32_t>(fixed_.parents.size());
      for (int32_t parent = first; parent <= last; ++parent)
        fixed_.parents.insert(fixed_.parents.end(), static_cast<size_t>(shape_.widths[level]), parent);
      first = begin;
      last = static_cast<int32_t>(fixed_.parents.size()) - 1;
    }
  } else {
    fixed_.parents = shape_.parents;
  }
  fixed_.ids.resize(fixed_.parents.size());
  tree_depths(fixed_, fixed_depths_);
  for (int32_t& of_node : fixed_depths_)
    if (of_node > depth) of_node = 0;  // and so those behind it
}

// kTreeRoot: there is none.
int32_t TreeGrowth::place_of_child(int32_t node, size_t i) const {
  const int32_t above = place(node);
  for (auto at = static_cast<size_t>(above + 1); at < fixed_.size(); ++at)
    if (fixed_.parents[at] == above && fixed_depths_[at] > 0 && i-- == 0) return static_cast<int32_t>(at);
  return kTreeRoot;
}

size_t TreeGrowth::wanted(int32_t node) const {
  if (shape_.nodes > 0) return kConsidered;
  size_t count = 0;
  while (place_of_child(node, count) != kTreeRoot) ++count;
  return count;
}

uint32_t TreeGrowth::ordinal(int32_t node, size_t i) const {
  const auto at = static_cast<size_t>(place_of_child(node, i));
  const auto before = std::span(fixed_depths_).first(at);
  return static_cast<uint32_t>(std::count(before.begin(), before.end(), fixed_depths_[at]));
}

bool TreeGrowth::goes_on(int32_t node) const {
  return shape_.nodes > 0 ? depth(node) < depth_ : place_of_child(node, 0) != kTreeRoot;
}

std::span<const int32_t> TreeGrowth::next(size_t most) {
  next_.clear();
  choose();
  if (stopped_) return next_;
  if (!root_known_) {
    next_.push_back(kTreeRoot);
    return next_;
  }
  for (const int32_t node : order_) {
    const Node& n = nodes_[static_cast<size_t>(node)];
    if (n.chosen && !n.known && goes_on(node)) next_.push_back(node);
  }
  if (shape_.nodes > 0 && !is_worth_a_pass()) next_.clear();
  if (next_.size() > most) next_.resize(most);
  return next_;
}

// Those that the target most likely comes to. A child is no likelier than its parent, which stands in front
// of it among equals, so what is chosen is a tree.
void TreeGrowth::choose() {
  order_.resize(nodes_.size());
  for (size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<int32_t>(i);
  std::stable_sort(order_.begin(), order_.end(),
                   [this](int32_t a, int32_t b) { return reach(a) > reach(b); });
  int32_t chosen = 0;
  for (const int32_t node : order_) {
    Node& n = nodes_[static_cast<size_t>(node)];
    // Its first token a draft has whatever that brings: it was asked for.
    n.chosen = shape_.nodes == 0 || (chosen < shape_.nodes && n.depth <= depth_ &&
                                     (chosen == 0 || n.reach >= static_cast<double>(shape_.node_price)));
    chosen += n.chosen;
  }
}

// A node that the next pass finds is accepted with its parent's probability times the mean probability of
// best children so far. In a full tree it replaces the least likely node.
bool TreeGrowth::is_worth_a_pass() const {
  const double share = looked_ > 0 ? best_shares_ / looked_ : 1;
  double gain = 0, least = 1;
  int32_t chosen = 0;
  for (const Node& node : nodes_) {
    if (!node.chosen) continue;
    ++chosen;
    least = std::min(least, node.reach);
  }
  if (chosen < shape_.nodes) least = 0;
  for (const int32_t node : next_) gain += std::max(0.0, share * reach(node) - least);
  return gain > static_cast<double>(shape_.pass_price);
}

void TreeGrowth::add(int32_t node, std::span<const RankedToken> best, const BranchConfidence& confidence) {
  (node == kTreeRoot ? root_known_ : nodes_[static_cast<size_t>(node)].known) = true;
  scores_.clear();
  for (const RankedToken token : best) scores_.push_back(token.value());
  confidence.shares(scores_, shares_);
  if (!shares_.empty()) best_shares_ += shares_.front(), ++looked_;
  const double before = reach(node);
  const int32_t depth_of = depth(node) + 1;
  for (size_t i = 0; i < best.size(); ++i)
    nodes_.push_back({.parent = node,
                      .depth = depth_of,
                      .token = best[i].id(),
                      .score = scores_[i],
                      .reach = before * shares_[i],
                      .place = shape_.nodes > 0 ? 0 : place_of_child(node, i)});
}

// Earlier siblings are looked behind first where not all can be.
void TreeGrowth::add_drawn(int32_t node, std::span<const TokenId> tokens) {
  (node == kTreeRoot ? root_known_ : nodes_[static_cast<size_t>(node)].known) = true;
  double reach_of = reach(node);
  for (size_t i = 0; i < tokens.size(); ++i)
    nodes_.push_back({.parent = node,
                      .depth = depth(node) + 1,
                      .token = tokens[i],
                      .score = 0,
                      .reach = reach_of /= 2,
                      .place = place_of_child(node, i)});
}

void TreeGrowth::path(int32_t node, std::vector<TokenId>& out) const {
  out.clear();
  for (; node != kTreeRoot; node = parent(node)) out.push_back(token(node));
  std::reverse(out.begin(), out.end());
}

DraftTree TreeGrowth::take(std::vector<int32_t>& order) const {
  DraftTree found;
  std::vector<int32_t> chosen;
  std::vector<int32_t> place(nodes_.size(), kTreeRoot);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (!node.chosen) continue;
    place[i] = static_cast<int32_t>(found.size());
    chosen.push_back(static_cast<int32_t>(i));
    found.ids.push_back(node.token);
    found.parents.push_back(node.parent == kTreeRoot ? kTreeRoot : place[static_cast<size_t>(node.parent)]);
  }
  DraftTree tree = depth_first(found, &order);
  for (int32_t& node : order) node = chosen[static_cast<size_t>(node)];
  shorten_chain(tree);
  return tree;
}

void TreeGrowth::observe(std::span<const TokenId> text, BranchConfidence& confidence) {
  int32_t node = kTreeRoot;
  for (const TokenId token_of : text) {
    if (!is_known(node)) return;
    scores_.clear();
    size_t rank = 0;
    int32_t child = kTreeRoot;
    for (int32_t i = node + 1; i < static_cast<int32_t>(nodes_.size()); ++i) {
      if (parent(i) != node) continue;
      scores_.push_back(nodes_[static_cast<size_t>(i)].score);
      if (child != kTreeRoot) continue;
      if (token(i) == token_of)
        child = i;
      else
        ++rank;
    }
    confidence.observe(scores_, rank);
    if (child == kTreeRoot) return;
    node = child;
  }
}

}  // namespace outrider
