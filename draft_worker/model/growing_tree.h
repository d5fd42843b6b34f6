// A tree that is being drafted, and the caches of its nodes. The first child whose own children are computed
// takes over its parent's cache; any other one gets a copy-on-write fork. So the sequence's own cache follows
// the likeliest path. Internal to the model drafter.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/hidden_row.h"
#include "base/q_row.h"
#include "heads/tree_growth.h"
#include "model/kv/kv_cache.h"

namespace outrider {

struct GrowingTree {
  TreeGrowth growth;
  Position base;                       // of the root's children
  bool begun = false;                  // the root's children were computed
  std::vector<KvHandle> kv_of;         // by node, where its children were computed
  std::vector<KvHandle> forks;         // the caches in kv_of that are not the sequence's own
  std::vector<char> extended;          // by node, the root first: a child took over its cache
  std::vector<int32_t> looked;         // nodes of this pass
  std::vector<TokenId> looked_tokens;  // the tokens of `looked`
  // By node, the root first: the distribution of its children, in the form of the draft's QKind.
  std::vector<QRow> q_of;
  std::vector<HiddenRow> hidden_of;

  void clear() {
    begun = false;
    kv_of.clear();
    extended.clear();
    looked.clear();
    q_of.clear();
    hidden_of.clear();
  }

  // The text went on to this node, whose cache becomes the sequence's. Drops all nodes outside its subtree,
  // with the caches that only these used; the sequence's own cache may be dropped, too.
  KvHandle become_root(int32_t node, KvHandle own, KvCache& kv) {
    kv_of.resize(growth.found());
    extended.resize(growth.found() + 1);
    const KvHandle next = node == kTreeRoot ? own : kv_of[static_cast<size_t>(node)];
    extended[0] = extended[static_cast<size_t>(node + 1)];
    std::vector<int32_t>& kept = looked;
    growth.become_root(node, kept);
    for (size_t i = 0; i < kept.size(); ++i) {
      const auto old = static_cast<size_t>(kept[i]);
      kv_of[i] = kv_of[old];
      extended[i + 1] = extended[old + 1];
    }
    kv_of.resize(kept.size());
    extended.resize(kept.size() + 1);
    if (next != own) forks.push_back(own);
    std::erase(forks, next);
    std::erase_if(forks, [&](KvHandle fork) {
      const bool is_used = std::find(kv_of.begin(), kv_of.end(), fork) != kv_of.end();
      if (!is_used) kv.release(fork);
      return !is_used;
    });
    kept.clear();
    return next;
  }

  // The node farthest from the root whose cache is `own`; kTreeRoot: none.
  int32_t end_of(KvHandle own) const {
    int32_t end = kTreeRoot;
    for (int32_t i = 0; i < static_cast<int32_t>(kv_of.size()); ++i)
      if (kv_of[static_cast<size_t>(i)] == own && growth.is_known(i)) end = i;
    return end;
  }

  void drop_forks(KvCache& kv) {
    for (const KvHandle fork : forks) kv.release(fork);
    forks.clear();
  }
};

// A tree that is being verified. Its result shows how far to trust the draft model. If outcomes are prepared,
// the tree grows meanwhile, and the verdict makes one of its nodes the root of the next tree.
struct GrownTree {
  GrowingTree tree;
  bool goes_on = false;
  bool learnt = false;
  // Whether the pipeline lets trees grow, and whether this one did.
  bool looked_up = false, prepared = false;
  int32_t sent_looks = 0;  // nodes whose children were computed before it was sent
  std::chrono::steady_clock::time_point sent_at;

  void clear() { goes_on = learnt = looked_up = prepared = false; }
  int32_t later_looks() const { return tree.growth.looks() - sent_looks; }
};

}  // namespace outrider
