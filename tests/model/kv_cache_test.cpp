#include "model/kv/kv_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "model/kv/cpu_kv_storage.h"

namespace outrider {
namespace {

constexpr KvShape kShape{.layers = 2, .kv_heads = 2, .head_dim = 4, .type = KvType::kFloat32};

// The tables over host memory.
struct HostKv : KvCache {
  explicit HostKv(int64_t num_blocks) : HostKv(new CpuKvStorage(kShape, num_blocks), num_blocks) {}
  HostKv(CpuKvStorage* owned, int64_t num_blocks)
      : KvCache(std::unique_ptr<KvStorage>(owned), num_blocks), storage(*owned) {}

  void store(int64_t layer, KvHandle handle, int64_t position, int64_t head, std::span<const float> key,
             std::span<const float> value) {
    const KvSlot at = slot(handle, position);
    store_kv(storage.layer(layer), at.block, at.slot, head, key, value);
  }

  CpuKvStorage& storage;
};

// Writes a value that names (position, tag) into every layer and head of a slot.
void write_at(HostKv& kv, KvHandle handle, int64_t slot, int64_t position, float tag) {
  for (int64_t layer = 0; layer < kShape.layers; ++layer)
    for (int64_t head = 0; head < kShape.kv_heads; ++head) {
      const float base = static_cast<float>(position * 8 + layer * 2 + head) + tag * 4096;
      const std::vector<float> key(4, base), value(4, -base);
      kv.store(layer, handle, slot, head, key, value);
    }
}
void write(HostKv& kv, KvHandle handle, int64_t position, float tag) {
  write_at(kv, handle, position, position, tag);
}

TEST(KvCache, AppendTruncateRelease) {
  HostKv kv(4);
  const KvHandle a = kv.create();
  ASSERT_TRUE(kv.append(a, 17).ok());
  EXPECT_EQ(kv.free_blocks(), 2);
  EXPECT_EQ(kv.append(a, 48).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(kv.length(a), 17);
  kv.truncate(a, 16);
  kv.truncate(a, 16);
  EXPECT_EQ(kv.free_blocks(), 3);
  kv.release(a);
  EXPECT_EQ(kv.free_blocks(), 4);
  EXPECT_TRUE(kv.check_invariants().ok());
}

// Users of a divided cache cannot take each other's blocks.
TEST(KvCache, UsersHaveTheirPart) {
  HostKv kv(8);
  kv.divide({5, 3});
  const KvHandle a = kv.create();
  kv.use_as(1);
  const KvHandle b = kv.create();
  ASSERT_TRUE(kv.append(b, 3 * kBlockTokens).ok());
  EXPECT_EQ(kv.append(b, 1).code(), StatusCode::kResourceExhausted)
      << "five blocks are free, none is its own";
  EXPECT_EQ(kv.free_blocks(), 5);
  ASSERT_TRUE(kv.append(a, 5 * kBlockTokens).ok());
  kv.truncate(a, 2 * kBlockTokens + 1);
  EXPECT_EQ(kv.append(b, 1).code(), StatusCode::kResourceExhausted);
  // A fork belongs to its parent's user, whoever is the present one.
  const KvHandle fork = kv.fork(a);
  ASSERT_TRUE(kv.append(fork, 2).ok()) << "copies the shared tail";
  EXPECT_EQ(kv.append(fork, 2 * kBlockTokens).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(kv.check_invariants().ok()) << kv.check_invariants().message();
  kv.release(a);
  ASSERT_TRUE(kv.append(fork, 2 * kBlockTokens).ok()) << "shared blocks count once";
  kv.release(fork);
  kv.release(b);
  EXPECT_EQ(kv.free_blocks(), 8);
  EXPECT_TRUE(kv.check_invariants().ok()) << kv.check_invariants().message();
}

TEST(KvCache, ForkSharesAndCopiesOnWrite) {
  HostKv kv(8);
  const KvHandle a = kv.create();
  ASSERT_TRUE(kv.append(a, 20).ok());
  for (int64_t p = 0; p < 20; ++p) write(kv, a, p, 1);
  const uint64_t before = kv.content_hash(a);
  const KvHandle b = kv.fork(a);
  EXPECT_EQ(kv.free_blocks(), 6);  // nothing copied yet
  EXPECT_EQ(kv.content_hash(b), before);
  ASSERT_TRUE(kv.append(b, 1).ok());
  EXPECT_EQ(kv.free_blocks(), 5);  // the shared tail block only
  write(kv, b, 20, 2);
  EXPECT_EQ(kv.content_hash(a), before);
  ASSERT_TRUE(kv.append(a, 1).ok());
  EXPECT_EQ(kv.free_blocks(), 5);  // the parent is the only owner again
  write(kv, a, 20, 3);
  EXPECT_NE(kv.content_hash(a), kv.content_hash(b));
  kv.release(a);
  kv.release(b);
  EXPECT_EQ(kv.free_blocks(), 8);
  EXPECT_TRUE(kv.check_invariants().ok());
}

// Nodes 1, 2, 4 of six behind 14 tokens: over a block's border, and into the blocks of a fork.
TEST(KvCache, KeepsThePathThroughATree) {
  HostKv kv(8);
  const KvHandle tree = kv.create(), chain = kv.create();
  ASSERT_TRUE(kv.append(tree, 20).ok());
  for (int64_t p = 0; p < 14; ++p) write(kv, tree, p, 1);
  // A node that stays has what its place in the chain would have; the others have something else.
  const std::map<int64_t, int64_t> kept{{15, 14}, {16, 15}, {18, 16}};
  for (int64_t slot = 14; slot < 20; ++slot)
    kept.contains(slot) ? write_at(kv, tree, slot, kept.at(slot), 1) : write(kv, tree, slot, 7);
  ASSERT_TRUE(kv.append(chain, 17).ok());
  for (int64_t p = 0; p < 17; ++p) write(kv, chain, p, 1);
  EXPECT_EQ(kv.free_blocks(), 4);

  const KvHandle fork = kv.fork(tree), full = kv.create();
  const uint64_t before = kv.content_hash(fork);
  ASSERT_TRUE(kv.append(full, 3 * kBlockTokens).ok());
  const std::vector<int32_t> nodes{1, 2, 4};
  EXPECT_EQ(kv.keep_path(tree, 14, nodes).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(kv.length(tree), 20);
  EXPECT_EQ(kv.content_hash(tree), before);
  kv.release(full);

  ASSERT_TRUE(kv.keep_path(tree, 14, nodes).ok());
  EXPECT_EQ(kv.length(tree), 17);
  EXPECT_EQ(kv.content_hash(tree), kv.content_hash(chain));
  EXPECT_EQ(kv.content_hash(fork), before);
  EXPECT_EQ(kv.free_blocks(), 2);  // the fork's two and two of its own
  EXPECT_TRUE(kv.check_invariants().ok());

  // Alone it moves in place; what is in place is not touched, and blocks that fall empty are free.
  kv.release(tree);
  ASSERT_TRUE(kv.keep_path(fork, 14, nodes).ok());
  EXPECT_EQ(kv.content_hash(fork), kv.content_hash(chain));
  const KvHandle sharing = kv.fork(fork);
  const std::vector<int32_t> straight{0, 1};
  ASSERT_TRUE(kv.keep_path(fork, 14, straight).ok());
  EXPECT_EQ(kv.length(fork), 16);
  EXPECT_EQ(kv.content_hash(sharing), kv.content_hash(chain));
  EXPECT_EQ(kv.free_blocks(), 4);
  ASSERT_TRUE(kv.keep_path(fork, 14, {}).ok());
  EXPECT_EQ(kv.length(fork), 14);
  for (const KvHandle handle : {fork, sharing, chain}) kv.release(handle);
  EXPECT_EQ(kv.free_blocks(), 8);
  EXPECT_TRUE(kv.check_invariants().ok());
}

TEST(KvCache, RandomHistoriesLeakNothing) {
  std::mt19937 random(5);
  HostKv kv(64);
  std::map<int32_t, KvHandle> open;
  for (int step = 0; step < 4000; ++step) {
    const auto pick = [&] {
      return std::next(open.begin(), static_cast<ptrdiff_t>(random() % open.size()))->second;
    };
    switch (open.empty() ? 0 : random() % 6) {
      case 0: {
        if (open.size() >= 12) break;
        const KvHandle h = kv.create();
        open[h.index] = h;
        break;
      }
      case 1: {
        if (open.size() >= 12) break;
        const KvHandle h = kv.fork(pick());
        open[h.index] = h;
        break;
      }
      case 2:
        (void)kv.append(pick(), random() % 40);
        break;
      case 3: {
        const KvHandle h = pick();
        kv.truncate(h, static_cast<int64_t>(random() % static_cast<uint32_t>(kv.length(h) + 1)));
        break;
      }
      case 4: {
        const KvHandle h = pick();
        const auto nodes = static_cast<int64_t>(random() % static_cast<uint32_t>(kv.length(h) + 1));
        std::vector<int32_t> path;
        for (int32_t node = 0; node < static_cast<int32_t>(nodes); ++node)
          if (random() % 2 == 0) path.push_back(node);
        (void)kv.keep_path(h, kv.length(h) - nodes, path);
        break;
      }
      case 5: {
        const KvHandle h = pick();
        open.erase(h.index);
        kv.release(h);
        break;
      }
    }
    ASSERT_TRUE(kv.check_invariants().ok()) << step << ": " << kv.check_invariants().message();
  }
  for (auto& [index, h] : open) kv.release(h);
  EXPECT_EQ(kv.free_blocks(), kv.num_blocks());
}

TEST(KvCache, WhatIsKeptOutlivesItsSequence) {
  HostKv kv(8);
  const KvHandle a = kv.create();
  ASSERT_TRUE(kv.append(a, 40).ok());
  for (int64_t p = 0; p < 40; ++p) write(kv, a, p, 1);
  const KvPrefix kept = kv.keep(a, 40);
  EXPECT_EQ(kv.length(kept), 40);
  EXPECT_EQ(kv.free_blocks(), 5);  // nothing was copied
  const uint64_t before = kv.content_hash(a);
  kv.release(a);
  EXPECT_EQ(kv.free_blocks(), 5);
  const KvHandle b = kv.create(kept, 40), c = kv.create(kept, 36);
  EXPECT_EQ(kv.content_hash(b), before);
  ASSERT_TRUE(kv.append(c, 1).ok());
  EXPECT_EQ(kv.free_blocks(), 4);  // the last block, which c writes to
  write(kv, c, 36, 2);
  EXPECT_EQ(kv.content_hash(b), before);
  kv.cut(kept, 32);
  EXPECT_EQ(kv.free_blocks(), 4);  // b has it still
  kv.release(b);
  EXPECT_EQ(kv.free_blocks(), 5);
  EXPECT_TRUE(kv.check_invariants().ok());
  kv.release(c);
  EXPECT_EQ(kv.free_blocks(), 6);
  const KvHandle d = kv.create(kept, 16);
  kv.cut(kept, 0);
  EXPECT_EQ(kv.free_blocks(), 7);
  EXPECT_EQ(kv.length(d), 16);
  kv.release(d);
  EXPECT_EQ(kv.free_blocks(), 8);
  EXPECT_TRUE(kv.check_invariants().ok());
}

TEST(KvCacheDeathTest, APrefixIsNoLongerThanItsSequence) {
  HostKv kv(8);
  const KvHandle a = kv.create();
  ASSERT_TRUE(kv.append(a, 20).ok());
  const KvPrefix kept = kv.keep(a, 17);
  EXPECT_DEATH(kv.keep(a, 21), "keep 21 of 20");
  EXPECT_DEATH(kv.create(kept, 18), "18 tokens of a prefix of 17");
  kv.cut(kept, 0);
  EXPECT_DEATH(kv.cut(kept, 0), "is not kept");
}

}  // namespace
}  // namespace outrider
