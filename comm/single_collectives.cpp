#include <algorithm>

#include "base/log.h"
#include "comm/collectives.h"

namespace outrider {
namespace {

class SingleCollectives final : public Collectives {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  void all_reduce_sum(std::span<float>) override { check_alive(); }
  void all_reduce_sum(std::span<uint64_t>) override { check_alive(); }
  void all_reduce_max(std::span<uint64_t>) override { check_alive(); }
  void all_reduce_min(std::span<uint64_t>) override { check_alive(); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    CHECK(all.size() == mine.size(), "mine={} all={}", mine.size(), all.size());
    check_alive();
    std::copy(mine.begin(), mine.end(), all.begin());
  }
  void broadcast(std::span<std::byte>, int root) override {
    CHECK(root == 0, "root={}", root);
    check_alive();
  }
  void barrier() override { check_alive(); }
  void meet() override { check_alive(); }
  void broadcast_message(std::vector<std::byte>& bytes, int root, size_t max_bytes) override {
    CHECK(root == 0 && bytes.size() <= max_bytes, "root={} bytes={} max={}", root, bytes.size(), max_bytes);
    check_alive();
  }
  void abort() noexcept override { aborted_ = true; }

 private:
  void check_alive() const {
    if (aborted_) throw CollectiveError("the group was aborted");
  }
  bool aborted_ = false;
};

}  // namespace

std::unique_ptr<Collectives> make_single_collectives() { return std::make_unique<SingleCollectives>(); }

}  // namespace outrider
