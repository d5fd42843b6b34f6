// A tree under way, and the caches of its nodes. A node's cache is a copy-on-write fork of its parent's, or,
// for the first child that is looked behind, that cache itself; so the sequence's own follows the likeliest
// path. Internal to the model drafter.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/hidden_row.h"
#include "base/q_row.h"
#include "heads/tree_growth.h"
#include "transformer/kv/kv_cache.h"

namespace outrider {

struct GrowingTree {
  TreeGrowth growth;
  Position base;                       // of the root's children
  bool begun = false;                  // the root was looked behind
  std::vector<KvHandle> kv_of;         // by node, where it was looked behind
  std::vector<KvHandle> forks;         // of those, the caches that are not the sequence's
  std::vector<char> extended;          // by node, the root first: a child took its cache over
  std::vector<int32_t> looked;         // nodes of this pass
  std::vector<TokenId> looked_tokens;  // theirs
  // By node, the root first: what its children were drawn from, as the draft's QKind says.
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

  // The text went on to this node, whose cache is to be the sequence's: forgets what is not behind it, with
  // the caches that only those had, which the sequence's own may be one of.
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

  // The node whose cache is `own`, farthest from the root; kTreeRoot where none is.
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

// A tree whose verdict is not known yet. It teaches how far to trust the draft model, and where something is
// prepared it grows on meanwhile: the verdict makes a node of it the root of the next tree.
struct GrownTree {
  GrowingTree tree;
  bool goes_on = false;
  bool learnt = false;
  // The pipeline lets trees grow on; this one did.
  bool looked_up = false, prepared = false;
  int32_t sent_looks = 0;  // nodes behind which was looked before it was sent
  std::chrono::steady_clock::time_point sent_at;

  void clear() { goes_on = learnt = looked_up = prepared = false; }
  int32_t later_looks() const { return tree.growth.looks() - sent_looks; }
};

}  // namespace outrider
