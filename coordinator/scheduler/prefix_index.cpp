#include "coordinator/scheduler/prefix_index.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "base/log.h"

namespace outrider {

// ---- looking --------------------------------------------------------------------------------------------

std::pair<PrefixIndex::Node, int32_t> PrefixIndex::best_child(Node node,
                                                              std::span<const TokenId> tokens) const {
  std::pair<Node, int32_t> best{kNoNode, 0};
  for (const Node child : at(node).children) {
    const Block& block = at(child);
    const auto most = std::min<size_t>(static_cast<size_t>(block.count), tokens.size());
    const auto end = tokens.begin() + static_cast<ptrdiff_t>(most);
    const auto same =
        static_cast<int32_t>(std::mismatch(tokens.begin(), end, block.tokens.begin()).first - tokens.begin());
    if (same > best.second) best = {child, same};
  }
  return best;
}

PrefixIndex::Match PrefixIndex::find(std::span<const TokenId> ids, const std::string& salt) const {
  Match match;
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return match;
  match.node = root->second;
  while (!ids.empty()) {
    const auto [child, same] = best_child(match.node, ids.first(std::min<size_t>(ids.size(), kBlockTokens)));
    if (same == 0) break;
    match.length += same;
    if (same < kBlockTokens) {
      match.part = child;
      break;
    }
    match.node = child;
    ids = ids.subspan(kBlockTokens);
  }
  return match;
}

PrefixId PrefixIndex::prefix_of(const Match& match) const {
  CHECK(match.length > 0, "a prefix of nothing");
  Node node = match.part == kNoNode ? match.node : match.part;
  while (!at(node).children.empty()) node = at(node).children.front();
  return at(node).name;
}

// ---- holding --------------------------------------------------------------------------------------------

// Updates idle_ for one node.
void PrefixIndex::list(Node node) {
  Block& block = at(node);
  const bool idle = !is_root(node) && block.holders == 0 && block.children.empty();
  const uint64_t key = idle ? block.used : 0;
  if (key == block.listed) return;
  if (block.listed != 0) idle_.erase({block.listed, node});
  if (key != 0) idle_.insert({key, node});
  block.listed = key;
}

void PrefixIndex::count_holder(Node node, int32_t more) {
  for (Node n = node; n != kNoNode; n = at(n).parent) {
    const bool was_held = at(n).holders > 0;
    at(n).holders += more;
    if (!is_root(n)) held_ += static_cast<int64_t>(at(n).holders > 0) - static_cast<int64_t>(was_held);
  }
  at(node).used = ++clock_;
  list(node);
}

// A holder of a block also holds all blocks before it.
int64_t PrefixIndex::held_to(Node node) const {
  for (Node n = node; n != kNoNode && !is_root(n); n = at(n).parent)
    if (at(n).holders > 0) return depth(n);
  return 0;
}

PrefixIndex::Node PrefixIndex::hold(const Match& match, const std::string& salt) {
  Node node = match.node;
  if (node == kNoNode) {
    const auto [root, is_new] = roots_.try_emplace(salt, kNoNode);
    if (is_new) {
      root->second = add(kNoNode, {});
      at(root->second).salt = salt;
    }
    node = root->second;
  }
  if (match.part != kNoNode) lent_.push_back(match.part);
  count_holder(node, 1);
  if (match.part != kNoNode) count_holder(match.part, 1);
  return node;
}

void PrefixIndex::let_go(Node node) {
  CHECK(at(node).holders > 0, "node {} is not held", node);
  count_holder(node, -1);
  drop_root_if_bare(node);
}

void PrefixIndex::give_back(const Match& match, Node node) {
  if (match.part != kNoNode) {
    CHECK(!lent_.empty() && lent_.back() == match.part, "node {} was not lent last", match.part);
    lent_.pop_back();
    let_go(match.part);
  }
  let_go(node);
}

void PrefixIndex::drop_root_if_bare(Node root) {
  const Block& block = at(root);
  if (!is_root(root) || block.holders > 0 || !block.children.empty()) return;
  roots_.erase(block.salt);
  at(root) = {};
  free_.push_back(root);
}

// ---- growing and shrinking ------------------------------------------------------------------------------

uint64_t PrefixIndex::term(Node leaf) const { return prefix_hash_term(at(leaf).name.value(), length(leaf)); }

void PrefixIndex::change(PrefixChange change) {
  if (!changes_.empty() && changes_.back().kind == PrefixChange::Kind::kCut &&
      change.kind == PrefixChange::Kind::kCut && changes_.back().prefix == change.prefix)
    changes_.back().length = change.length;
  else
    changes_.push_back(change);
}

std::vector<PrefixChange> PrefixIndex::take_changes() {
  for (const Node part : std::exchange(lent_, {})) let_go(part);
  return std::exchange(changes_, {});
}

PrefixIndex::Node PrefixIndex::add(Node parent, std::span<const TokenId> tokens) {
  if (free_.empty()) {
    free_.push_back(static_cast<Node>(nodes_.size()));
    nodes_.emplace_back();
  }
  const Node node = free_.back();
  free_.pop_back();
  Block& block = at(node);
  block.parent = parent;
  block.count = static_cast<int32_t>(tokens.size());
  std::copy(tokens.begin(), tokens.end(), block.tokens.begin());
  if (parent == kNoNode) return node;
  block.depth = at(parent).depth + 1;
  at(parent).children.push_back(node);
  ++blocks_;
  return node;
}

bool PrefixIndex::extend(Node& node, SequenceId sequence, std::span<const TokenId> ids) {
  const auto behind = [&](Node last) {
    const auto known = static_cast<size_t>(at(last).depth) * kBlockTokens;
    return ids.size() <= known ? std::span<const TokenId>()
                               : ids.subspan(known, std::min<size_t>(ids.size() - known, kBlockTokens));
  };
  const auto first = behind(node);
  if (first.empty() || best_child(node, first).second == static_cast<int32_t>(first.size())) return false;
  const bool was_leaf = !is_root(node) && at(node).children.empty();
  const PrefixId name = was_leaf ? at(node).name : PrefixId(++last_name_);
  if (was_leaf) hash_ -= term(node);
  Node leaf = node, whole = node;
  for (auto tokens = first; !tokens.empty(); tokens = behind(leaf)) {
    leaf = add(leaf, tokens);
    at(leaf).used = ++clock_;
    if (tokens.size() < kBlockTokens) break;
    whole = leaf;
    at(whole).holders = 1;
    ++held_;
  }
  at(leaf).name = name;
  hash_ += term(leaf);
  change({.kind = PrefixChange::Kind::kKeep, .prefix = name, .sequence = sequence, .length = length(leaf)});
  list(std::exchange(node, whole));
  list(leaf);
  return true;
}

void PrefixIndex::remove(Node node) {
  list(node);
  CHECK(at(node).listed != 0, "node {} is in use", node);
  idle_.erase({at(node).listed, node});
  const Block& block = at(node);
  const Node parent = block.parent;
  const PrefixId name = block.name;
  hash_ -= term(node);
  std::erase(at(parent).children, node);
  at(parent).used = std::max(at(parent).used, block.used);
  // The prefix is renamed to its parent, unless other prefixes contain the parent or it is a root.
  const bool lives = !is_root(parent) && at(parent).children.empty();
  if (lives) {
    at(parent).name = name;
    hash_ += term(parent);
  }
  change({.kind = PrefixChange::Kind::kCut,
          .prefix = name,
          .sequence = {},
          .length = lives ? length(parent) : 0});
  at(node) = {};
  free_.push_back(node);
  --blocks_;
  list(parent);
  drop_root_if_bare(parent);
}

bool PrefixIndex::forget_one() {
  if (idle_.empty()) return false;
  remove(idle_.begin()->second);
  return true;
}

void PrefixIndex::clear() {
  const uint64_t last_name = last_name_;
  *this = {};
  last_name_ = last_name;
}

Status PrefixIndex::check_invariants() const {
  int64_t blocks = 0, held = 0;
  uint64_t hash = 0;
  size_t idle = 0;
  std::set<PrefixId> names;
  for (Node node = 0; node < static_cast<Node>(nodes_.size()); ++node) {
    if (std::find(free_.begin(), free_.end(), node) != free_.end()) continue;
    const Block& block = at(node);
    for (const Node child : block.children)
      if (at(child).parent != node || at(child).depth != block.depth + 1)
        return malformed(fmt::format("node {} is no child of node {}", child, node));
    if (is_root(node)) {
      const auto root = roots_.find(block.salt);
      if (root == roots_.end() || root->second != node) return malformed("a root is lost");
      continue;
    }
    ++blocks;
    held += block.holders > 0;
    const bool is_leaf = block.children.empty();
    if (!is_leaf && block.count != kBlockTokens)
      return malformed("something stands behind a part of a block");
    if (!is_leaf) continue;
    if (!names.insert(block.name).second) return malformed("two leaves have one name");
    hash += term(node);
    idle += block.holders == 0;
    if ((block.holders == 0) != idle_.contains({block.used, node})) return malformed("a leaf is not listed");
  }
  if (blocks != blocks_ || held != held_ || hash != hash_ || idle != idle_.size())
    return malformed("counts differ from the tree");
  return {};
}

}  // namespace outrider
