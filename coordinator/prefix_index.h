// What the target's KV cache holds of texts, found by content: which block of keys and values stands for
// which tokens behind which others. A tree of blocks, one for each salt; a node is one block on every target
// rank, shared by all prefixes and sequences that run through it. Leaves are named: a prefix of the messages
// is the path to its leaf. The leaf that was used longest ago goes first. Pure; what becomes of prefixes is
// written down as changes for the next plan.
//
// A node's tokens are compared, not hashed: who chooses texts could choose ones that collide.
#pragma once

#include <array>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "comm/messages/drafting.h"
#include "comm/messages/verifying.h"
#include "transformer/kv/kv_shape.h"

namespace outrider {

class PrefixIndex {
 public:
  using Node = int32_t;
  static constexpr Node kNoNode = -1;

  // The longest beginning of a text that is there.
  struct Match {
    Node node = kNoNode;  // where its whole blocks end; kNoNode: it has none, and its salt is new
    Node part = kNoNode;  // the block behind them, of which it has the first tokens
    int32_t length = 0;   // tokens
  };
  Match find(std::span<const TokenId> ids, const std::string& salt) const;
  // What a plan calls the text of a match that is not empty: any prefix that runs through it.
  PrefixId prefix_of(const Match& match) const;

  // A sequence holds on to the blocks up to a node, which stay until it lets go. Of a match, until the
  // changes are taken, its part stays, too.
  Node hold(const Match& match, const std::string& salt);
  void let_go(Node node);
  // What hold() did with this match a moment ago is undone.
  void give_back(const Match& match, Node node);

  // A sequence that holds `node` has computed `ids`: the blocks behind the node are added, the last of them
  // perhaps in part, and it holds the last whole one instead. False: nothing was added. What stands behind
  // the node already was computed twice, and the later one stays its sequence's own.
  bool extend(Node& node, SequenceId sequence, std::span<const TokenId> ids);

  // Forgets a block that nobody holds. False: there is none.
  bool forget_one();
  void clear();

  int32_t depth(Node node) const { return at(node).depth; }  // in blocks
  int64_t held() const { return held_; }         // of the blocks, those that cannot be forgotten now
  int64_t blocks() const { return blocks_; }     // of all nodes
  uint64_t state_hash() const { return hash_; }  // with all changes applied
  std::vector<PrefixChange> take_changes();

  // Names are those of leaves, counts are right, every leaf can be forgotten unless it is held.
  Status check_invariants() const;

 private:
  struct Block {
    Node parent = kNoNode;  // of a root: none
    std::vector<Node> children;
    std::array<TokenId, kBlockTokens> tokens;
    int32_t count = 0;  // of tokens; only a leaf has fewer than fill the block
    int32_t depth = 0;
    int32_t holders = 0;  // here and below
    uint64_t used = 0;    // when; a parent's is at least that of a child that was forgotten
    uint64_t listed = 0;  // its key in idle_; 0: it is not there
    PrefixId name;        // of a leaf
    std::string salt;     // of a root
  };

  Block& at(Node node) { return nodes_[static_cast<size_t>(node)]; }
  const Block& at(Node node) const { return nodes_[static_cast<size_t>(node)]; }
  bool is_root(Node node) const { return at(node).parent == kNoNode; }
  int32_t length(Node node) const {
    return (at(node).depth - 1) * static_cast<int32_t>(kBlockTokens) + at(node).count;
  }
  uint64_t term(Node leaf) const;
  // The child that goes on with most of these tokens, and how many.
  std::pair<Node, int32_t> best_child(Node node, std::span<const TokenId> tokens) const;
  Node add(Node parent, std::span<const TokenId> tokens);
  void remove(Node node);
  void list(Node node);
  void count_holder(Node node, int32_t more);
  void drop_root_if_bare(Node root);
  void change(PrefixChange change);

  std::vector<Block> nodes_;
  std::vector<Node> free_;  // places in nodes_
  std::map<std::string, Node> roots_;
  std::set<std::pair<uint64_t, Node>> idle_;  // leaves that nobody holds, by their last use
  std::vector<Node> lent_;                    // parts that are held until changes are taken
  std::vector<PrefixChange> changes_;
  int64_t blocks_ = 0, held_ = 0;
  uint64_t clock_ = 0, hash_ = 0, last_name_ = 0;
};

}  // namespace outrider
