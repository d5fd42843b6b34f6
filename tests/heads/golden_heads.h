// The tiny committed heads (tests/goldens/heads), all of the golden model qwen3.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "heads/block_head.h"
#include "heads/hydra_head.h"
#include "heads/medusa_head.h"
#include "heads/pair_head.h"
#include "kernels/cpu/isa.h"
#include "tests/support/test_models.h"

namespace outrider::testing {

struct GoldenHead {
  std::string name;
  HeadKind kind;
};
constexpr const char* kHeadsTarget = "qwen3";

inline std::filesystem::path golden_head(const std::string& name) {
  return outrider::source_dir() / "tests/goldens/heads" / name;
}

// Those that are there: launch/gpu_suite packs some, and head_files_test wants all.
inline std::vector<GoldenHead> golden_heads_of(HeadKind kind, std::vector<std::string> names) {
  std::erase_if(names, [](const std::string& name) { return !std::filesystem::exists(golden_head(name)); });
  std::vector<GoldenHead> heads;
  for (std::string& name : names) heads.push_back({std::move(name), kind});
  return heads;
}
inline std::vector<GoldenHead> together(std::initializer_list<std::vector<GoldenHead>> lists) {
  std::vector<GoldenHead> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}
inline const std::vector<GoldenHead> kPairHeads =
    together({golden_heads_of(HeadKind::kEagle3, {"eagle3", "eagle3-speculators", "eagle3-fc-norm"}),
              golden_heads_of(HeadKind::kEagle, {"eagle"}),
              golden_heads_of(HeadKind::kMtp, {"mtp", "mtp-deepseek", "mtp-qwen", "mtp-qwen-moe", "mtp-glm",
                                               "mtp-qwen35", "mtp-qwen-next"})});
inline const std::vector<GoldenHead> kMedusaHeads =
    golden_heads_of(HeadKind::kMedusa, {"medusa", "medusa-renamed", "medusa-shared"});
inline const std::vector<GoldenHead> kHydraHeads =
    golden_heads_of(HeadKind::kHydra, {"hydra", "hydra-prefix", "hydra-ungrounded"});
inline const std::vector<GoldenHead> kBlockHeads =
    golden_heads_of(HeadKind::kDFlash, {"dflash", "dflash-causal", "dflash-window", "dspark"});
// Devices refuse them.
inline const GoldenHead kBlockThatLooksAheadOfWindows{"dflash-window-ahead", HeadKind::kDFlash},
    kDFlash2{"dflash2", HeadKind::kDFlash};
inline const std::vector<GoldenHead> kHeadsOfTheHost{kBlockThatLooksAheadOfWindows, kDFlash2};
inline const std::vector<GoldenHead> kGoldenHeads =
    together({kPairHeads, kMedusaHeads, kBlockHeads, kHydraHeads});
// For INSTANTIATE_TEST_SUITE_P.
inline std::string head_test_name(const ::testing::TestParamInfo<GoldenHead>& instance) {
  std::string name = instance.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
// Where heads of a program's tests compute; null: on the host. Set by device_suite.cpp.
inline std::shared_ptr<HeadCompute> (*suite_compute)() = [] { return std::shared_ptr<HeadCompute>(); };
inline bool suite_is_on_a_device() { return suite_compute() != nullptr; }
// The instruction sets of this suite, because a head's bits may differ between them. On a device there is
// one.
inline std::vector<std::string> suite_isas() {
  return suite_is_on_a_device() ? std::vector{available_isas().front()} : available_isas();
}

// A device skips the heads that compute on the host alone.
class TestOfAnyHead : public ::testing::TestWithParam<GoldenHead> {
 protected:
  void SetUp() override {
    const auto is_it = [&](const GoldenHead& head) { return head.name == GetParam().name; };
    if (suite_is_on_a_device() && std::any_of(kHeadsOfTheHost.begin(), kHeadsOfTheHost.end(), is_it))
      GTEST_SKIP() << "a device refuses this head";
  }
};

// Numbers of the host as rows where a head computes.
class RowsThere {
 public:
  RowsThere(HeadCompute& compute, std::span<const float> numbers, int64_t rows)
      : buffer_(compute.rows(rows, static_cast<int64_t>(numbers.size()) / rows)) {
    const FloatRows written = compute.open(all());
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(numbers.begin() + r * buffer_.columns, buffer_.columns, written.row(r).begin());
    compute.close(all());
  }
  FloatRows all() const { return buffer_.rows(buffer_.capacity); }
  FloatRows from(int64_t first, int64_t count) const { return buffer_.from(first, count); }

 private:
  RowBuffer buffer_;
};
// Rows of a head, brought to the host.
inline std::vector<float> numbers_of(HeadCompute& compute, FloatRows rows) {
  const FloatRows here = compute.fetch(rows);
  std::vector<float> out;
  for (int64_t r = 0; r < here.extent(0); ++r) out.insert(out.end(), here.row(r).begin(), here.row(r).end());
  return out;
}

template <class AnyHead = Head>
std::unique_ptr<AnyHead> load_head_or_die(const GoldenHead& head, HeadOptions options = {}) {
  options.kind = head.kind;
  if (!options.compute) options.compute = suite_compute();
  auto loaded = AnyHead::load(golden_head(head.name), golden_model(kHeadsTarget), options);
  if (!loaded.ok()) throw std::runtime_error(loaded.status().message());
  return std::move(loaded).value();
}

}  // namespace outrider::testing
