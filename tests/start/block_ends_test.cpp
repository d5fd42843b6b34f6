// Memory that blocks of other groups' prompts may take.
#include "start/block_ends.h"

#include <gtest/gtest.h>

#include "tests/support/test_models.h"

namespace outrider::testing {
namespace {

// Reports blocks of any size and holds none.
class SizeOnly final : public KvStorage {
 public:
  explicit SizeOnly(int64_t bytes) : bytes_(bytes) {}
  void copy_block(int32_t, int32_t) override {}
  void copy_slots(std::span<const KvMove>) override {}
  uint64_t content_hash(std::span<const int32_t>, int64_t) const override { return 0; }
  int64_t block_bytes() const override { return bytes_; }

 private:
  const int64_t bytes_;
};

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = kMiB << 10;

int64_t inbox_bytes(int64_t block, int64_t blocks, int64_t max_context) {
  return block_inbox_bytes(KvCache(std::make_unique<SizeOnly>(block), blocks), max_context);
}

TEST(BlockEnds, AnInboxHoldsTheCacheOrAGibibyteOrTheLongestText) {
  EXPECT_EQ(inbox_bytes(kMiB, 100, 16 * 50), 100 * kMiB);
  EXPECT_EQ(inbox_bytes(kMiB, 100'000, 16 * 50), kGiB);
  EXPECT_EQ(inbox_bytes(5 * kMiB, 10'000, 32'768), 5 * kMiB * 2048);
}

// Messages are of a mebibyte, or of one block if that is larger.
TEST(BlockEnds, UnreadMessagesAreBoundedByBytes) {
  ModelSettings models;
  models.prefill_groups = 1;
  Preparation prepared;
  prepared.target = read_model_config(source_dir() / "launch/demo_pair/target").value();
  EXPECT_EQ(block_queue_limit(models, prepared), kMostUnreadBlockBytes / kMiB);
  models.prefill_groups = 2;
  EXPECT_EQ(block_queue_limit(models, prepared), kMostUnreadBlockBytes / kMiB / 2);
  prepared.target.num_layers = 80;
  prepared.target.layers = {};
  prepared.target.num_heads = prepared.target.num_kv_heads = 8;
  prepared.target.head_dim = 128;  // 80 x 2 x 8 x 128 x 16 x 4 bytes
  EXPECT_EQ(block_queue_limit(models, prepared), kMostUnreadBlockBytes / (10 * kMiB) / 2);
}

}  // namespace
}  // namespace outrider::testing
