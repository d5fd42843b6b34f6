// Hardware descriptions: what a pass costs and what is held, of presets and of model directories.
#include <gtest/gtest.h>

#include <filesystem>

#include "lab/simulate/hardware.h"
#include "model_files/safetensors.h"
#include "tests/support/source_dir.h"

namespace outrider {
namespace {

TEST(Hardware, APlainStepReadsTheWeightsOnce) {
  const auto cost = hardware_cost("h100:70b:tp4").value();
  // 141 GB over four times 80 % of 3.35 TB/s, and 80 layers of 5 us and two all-reduces of 10 us.
  EXPECT_NEAR(cost.pass.seconds(1, 0), 141.1e9 / (4 * 0.8 * 3.35e12) + 80 * 25e-6, 2e-5);
  EXPECT_GT(cost.kv_tokens, 100'000);
}

TEST(Hardware, RowsAreFreeUntilComputeIsTheLimit) {
  const ForwardCost pass = hardware_cost("h100:8b").value().pass;
  EXPECT_DOUBLE_EQ(pass.seconds(1, 0), pass.seconds(64, 0));
  EXPECT_GT(pass.seconds(1024, 0), 2 * pass.seconds(64, 0));
  EXPECT_GT(pass.seconds(1, 100'000), pass.seconds(1, 0));
}

TEST(Hardware, FasterMemoryAndMoreOfThemAreFaster) {
  const auto step = [](const char* text) { return hardware_cost(text).value().pass.seconds(1, 0); };
  EXPECT_LT(step("h200:8b"), step("h100:8b"));
  EXPECT_LT(step("h100:8b"), step("a100:8b"));
  EXPECT_LT(step("h100:70b:tp8"), step("h100:70b:tp4"));
  EXPECT_LT(step("h100:1b"), step("h100:8b"));
}

// A part of a socket is as much slower; a Xeon reads 2.47 GB at 80 % of 307.2 GB/s in 10 ms.
TEST(Hardware, DraftsMayRunOnPartsOfASocket) {
  const auto step = [](const char* text) { return hardware_cost(text).value().pass.base; };
  EXPECT_NEAR(step("xeon8480:1b"), 2.4716288e9 / (0.8 * 307.2e9), 1e-9);
  EXPECT_NEAR(step("xeon8480:1b:1/4"), 4 * step("xeon8480:1b"), 1e-9);
  const HardwareCost whole = hardware_cost("xeon8480:1b").value();
  EXPECT_TRUE(whole.is_cpu);
  EXPECT_EQ(whole.sources.front().kind, CostSource::Kind::kDataSheet);
  EXPECT_NE(hardware_cost("xeon8480:1b:tp2").status().message().find("1/1 to 1/64"), std::string::npos);
}

// A step of a mixture of experts reads only the experts that its rows are routed to, so more rows read more.
// A latent (MLA) is cached once for all heads, whole on every device.
TEST(Hardware, AMixtureReadsTheExpertsOfItsRowsAndALatentIsCachedOnce) {
  const HardwareCost one = hardware_cost("h100:v2-lite").value(),
                     four = hardware_cost("h100:v2-lite:tp4").value();
  const ModelSize& size = one.model.size;
  EXPECT_EQ(one.weight_bytes, 2.0 * static_cast<double>(size.parameters));
  EXPECT_EQ(one.kv_token_bytes, 27 * 576 * 2);
  EXPECT_EQ(four.weight_bytes, one.weight_bytes / 4);
  EXPECT_EQ(four.kv_token_bytes, one.kv_token_bytes);
  const double read = one.pass.seconds(1, 0) - one.pass.overhead;
  EXPECT_NEAR(read, 2.0 * static_cast<double>(size.active()) / (0.8 * 3.35e12), 1e-9);
  // Two rows share one expert of their six in ten.
  EXPECT_NEAR(one.pass.experts(2) / one.pass.experts(1), 2 - 6.0 / 64, 1e-9);
  EXPECT_NEAR(one.pass.seconds(500, 0), one.pass.base + one.pass.all_experts + one.pass.overhead, 1e-6);
  EXPECT_NEAR(one.pass.seconds(1, 1000) - one.pass.seconds(1, 0), 1000 * one.kv_token_bytes / (0.8 * 3.35e12),
              1e-12);
  EXPECT_NE(one.sources[3].value.find("read for a token"), std::string::npos) << one.sources[3].value;
}

// The sizes of every golden model are the tensors that its files hold.
TEST(Hardware, AModelMayBeADirectory) {
  const std::filesystem::path models = source_dir() / "tests/goldens/models";
  int counted = 0;
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    const auto cost = hardware_cost("h100:" + entry.path().string());
    ASSERT_TRUE(cost.ok()) << cost.status().message();
    const TensorFiles files = TensorFiles::open(entry.path()).value();
    int64_t numbers = 0;
    for (const std::string_view name : files.names()) {
      int64_t count = 1;
      for (const int64_t extent : files.find(name)->shape) count *= extent;
      numbers += count;
    }
    EXPECT_EQ(cost->model.size.parameters, numbers) << entry.path();
    EXPECT_EQ(cost->weight_bytes, 2.0 * static_cast<double>(numbers));
    ++counted;
  }
  EXPECT_GT(counted, 20);
  EXPECT_NE(hardware_cost("h100:" + models.string() + "/qwen3:tp2").value().devices, 1);
  const std::string missing(hardware_cost("h100:" + models.string()).status().message());
  EXPECT_NE(missing.find("config.json"), std::string::npos) << missing;
}

TEST(Hardware, BadDescriptionsNameTheNearestKnownWord) {
  const auto told = [](const char* text) { return hardware_cost(text).status().message(); };
  EXPECT_NE(told("h10:70b:tp4").find("no GPU preset 'h10'; did you mean 'h100'?"), std::string::npos);
  EXPECT_NE(told("h100:7b").find("no model preset '7b'; did you mean"), std::string::npos);
  EXPECT_NE(told("h100:70b:tp3").find("must be tp1, tp2, tp4 or tp8"), std::string::npos);
  EXPECT_NE(told("h100").find("write GPU:MODEL[:tpN]"), std::string::npos);
  EXPECT_NE(told("h100:70b").find("do not fit"), std::string::npos);
  EXPECT_NE(told("h100:70b").find("larger tp"), std::string::npos);
}

TEST(Hardware, TheListNamesItsSources) {
  const std::string list = list_hardware();
  for (const char* word :
       {"a100", "h100", "h200", "1b", "8b", "70b", "data sheet", "config.json", "efficiencies"})
    EXPECT_NE(list.find(word), std::string::npos) << word;
}

}  // namespace
}  // namespace outrider
