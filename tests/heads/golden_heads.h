// The tiny committed heads (tests/goldens/heads), all of the golden model qwen3.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "heads/block_head.h"
#include "heads/hydra_head.h"
#include "heads/medusa_head.h"
#include "heads/pair_head.h"
#include "tests/support/test_models.h"

namespace outrider::testing {

struct GoldenHead {
  std::string name;
  HeadKind kind;
};
inline const std::vector<GoldenHead> kPairHeads{{"eagle3", HeadKind::kEagle3},
                                                {"eagle3-speculators", HeadKind::kEagle3},
                                                {"eagle3-fc-norm", HeadKind::kEagle3},
                                                {"eagle", HeadKind::kEagle},
                                                {"mtp", HeadKind::kMtp}};
inline const std::vector<GoldenHead> kMedusaHeads{{"medusa", HeadKind::kMedusa},
                                                  {"medusa-renamed", HeadKind::kMedusa},
                                                  {"medusa-shared", HeadKind::kMedusa}};
inline const std::vector<GoldenHead> kHydraHeads{
    {"hydra", HeadKind::kHydra}, {"hydra-prefix", HeadKind::kHydra}, {"hydra-ungrounded", HeadKind::kHydra}};
inline const std::vector<GoldenHead> kBlockHeads{
    {"dflash", HeadKind::kDFlash}, {"dflash-causal", HeadKind::kDFlash}, {"dspark", HeadKind::kDFlash}};
inline const std::vector<GoldenHead> kGoldenHeads = [] {
  std::vector<GoldenHead> all = kPairHeads;
  all.insert(all.end(), kMedusaHeads.begin(), kMedusaHeads.end());
  all.insert(all.end(), kBlockHeads.begin(), kBlockHeads.end());
  all.insert(all.end(), kHydraHeads.begin(), kHydraHeads.end());
  return all;
}();
// For INSTANTIATE_TEST_SUITE_P.
inline std::string head_test_name(const ::testing::TestParamInfo<GoldenHead>& instance) {
  std::string name = instance.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
constexpr const char* kHeadsTarget = "qwen3";

inline std::filesystem::path golden_head(const std::string& name) {
  return outrider::source_dir() / "tests/goldens/heads" / name;
}

template <class AnyHead = Head>
std::unique_ptr<AnyHead> load_head_or_die(const GoldenHead& head, HeadOptions options = {}) {
  options.kind = head.kind;
  auto loaded = AnyHead::load(golden_head(head.name), golden_model(kHeadsTarget), options);
  if (!loaded.ok()) throw std::runtime_error(loaded.status().message());
  return std::move(loaded).value();
}

}  // namespace outrider::testing
