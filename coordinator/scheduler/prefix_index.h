// Finds the texts in the target's KV cache by content: each block of keys and values stands for certain
// tokens after certain others. A tree of blocks for each salt; a node is one block on every target rank,
// shared by all prefixes and sequences that contain it. Leaves have names: a prefix of the messages is the
// path to its leaf. The least recently used leaf is evicted first. Pure; changes of prefixes are recorded for
// the next plan.
//
// A node's tokens are compared, not hashed, because a client could choose texts that collide.
#pragma once

#include <array>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/kv_shape.h"
#include "base/types.h"
#include "comm/messages/drafting.h"
#include "comm/messages/verifying.h"

namespace outrider {

class PrefixIndex {
 public:
  using Node = int32_t;
  static constexpr Node kNoNode = -1;

  // The longest cached beginning of a text.
  struct Match {
    Node node = kNoNode;  // the end of its whole blocks; kNoNode: none is cached, and its salt is new
    Node part = kNoNode;  // the block after them, whose first tokens match
    int32_t length = 0;   // tokens
  };
  Match find(std::span<const TokenId> ids, const std::string& salt) const;
  // The name that a plan uses for the text of a match that is not empty: any prefix that contains it.
  PrefixId prefix_of(const Match& match) const;

  // Protects the blocks up to a node from eviction, for a sequence. The part of a match is protected until
  // the changes are taken.
  Node hold(const Match& match, const std::string& salt);
  void let_go(Node node);
  // Undoes the hold() of this match.
  void give_back(const Match& match, Node node);

  // A sequence that holds `node` has computed `ids`: adds the blocks after the node, the last one perhaps
  // partial, and moves the sequence's hold to the last whole block. False: nothing was added. A block that
  // exists already was computed twice, and the later copy stays private to its sequence.
  bool extend(Node& node, SequenceId sequence, std::span<const TokenId> ids);

  // Evicts a block without holders. False: there is none.
  bool forget_one();
  void clear();

  int32_t depth(Node node) const { return at(node).depth; }  // in blocks
  int64_t held() const { return held_; }                     // blocks that cannot be evicted now
  int64_t held_to(Node node) const;                          // among those up to a node; kNoNode: 0
  int64_t blocks() const { return blocks_; }                 // of all nodes
  uint64_t state_hash() const { return hash_; }              // with all changes applied
  std::vector<PrefixChange> take_changes();

  // Checks that leaves have names, counts are right, and every leaf without holders can be evicted.
  Status check_invariants() const;

 private:
  struct Block {
    Node parent = kNoNode;  // of a root: none
    std::vector<Node> children;
    std::array<TokenId, kBlockTokens> tokens;
    int32_t count = 0;  // tokens; only a leaf has a partial block
    int32_t depth = 0;
    int32_t holders = 0;  // sequences that hold it or a block below it
    uint64_t used = 0;    // time of last use; of a parent, at least that of each evicted child
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
  // The child that shares the longest beginning with `tokens`, and its length.
  std::pair<Node, int32_t> best_child(Node node, std::span<const TokenId> tokens) const;
  Node add(Node parent, std::span<const TokenId> tokens);
  void remove(Node node);
  void list(Node node);
  void count_holder(Node node, int32_t more);
  void drop_root_if_bare(Node root);
  void change(PrefixChange change);

  std::vector<Block> nodes_;
  std::vector<Node> free_;  // free indices of nodes_
  std::map<std::string, Node> roots_;
  std::set<std::pair<uint64_t, Node>> idle_;  // leaves without holders, by their last use
  std::vector<Node> lent_;                    // parts that are held until changes are taken
  std::vector<PrefixChange> changes_;
  int64_t blocks_ = 0, held_ = 0;
  uint64_t clock_ = 0, hash_ = 0, last_name_ = 0;
};

}  // namespace outrider
