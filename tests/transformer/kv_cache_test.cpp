#include "transformer/kv/kv_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "transformer/kv/cpu_kv_storage.h"

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

// Writes a value that names (position, tag) into every layer and head.
void write(HostKv& kv, KvHandle handle, int64_t position, float tag) {
  for (int64_t layer = 0; layer < kShape.layers; ++layer)
    for (int64_t head = 0; head < kShape.kv_heads; ++head) {
      const float base = static_cast<float>(position * 8 + layer * 2 + head) + tag * 4096;
      const std::vector<float> key(4, base), value(4, -base);
      kv.store(layer, handle, position, head, key, value);
    }
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

TEST(KvCache, RandomHistoriesLeakNothing) {
  std::mt19937 random(5);
  HostKv kv(64);
  std::map<int32_t, KvHandle> open;
  for (int step = 0; step < 4000; ++step) {
    const auto pick = [&] {
      return std::next(open.begin(), static_cast<ptrdiff_t>(random() % open.size()))->second;
    };
    switch (open.empty() ? 0 : random() % 5) {
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

}  // namespace
}  // namespace outrider
