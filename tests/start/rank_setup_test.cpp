// Ranks compare their settings before they load. A rank that differs in a setting which affects texts or
// sizes is named on every rank.
#include "start/rank_setup.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "start/describe.h"
#include "start/model_fingerprint.h"
#include "tests/support/test_models.h"

namespace outrider::testing {
namespace {

std::filesystem::path demo(const char* name) { return source_dir() / "launch/demo_pair" / name; }

RoleSettings settings_of(const std::filesystem::path& model) {
  RoleSettings settings{.models = {}, .speculation = {}, .quiet = true};
  settings.models.model = model.string();
  settings.models.tensor_parallel_size = 2;
  return settings;
}

// Replaces `bytes` bytes in the middle of the largest tensor with zeros, like an interrupted copy into a file
// that has its final size.
void break_off(const std::filesystem::path& model, int64_t bytes) {
  int64_t at = 0;
  {
    const auto files = MappedFile::open(model / "model.safetensors").value();
    const auto tensors = parse_safetensors(files.bytes(), "model").value();
    const TensorInfo* largest = &tensors.front();
    for (const TensorInfo& tensor : tensors)
      if (tensor.data.size() > largest->data.size()) largest = &tensor;
    ASSERT_GT(largest->data.size(), 1024u);
    at = largest->data.data() - files.bytes().data() + static_cast<int64_t>(largest->data.size() / 2);
  }
  std::fstream file(model / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(at);
  file << std::string(static_cast<size_t>(bytes), '\0');
}

// The message of each of two ranks.
std::vector<std::string> compare(const RoleSettings& first, const RoleSettings& second, bool drafts = false) {
  const auto group = make_thread_collectives(2);
  std::vector<std::string> said(2);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      const RoleSettings& own = rank == 0 ? first : second;
      const Preparation prepared = prepare(own).value();
      const std::string name = "rank " + std::to_string(rank);
      const RankSetup setup = drafts ? draft_setup(own, prepared, "draft worker 0", name).value()
                                     : target_setup(own, prepared, name).value();
      said[static_cast<size_t>(rank)] = compare_setups(*group[static_cast<size_t>(rank)], setup, 2).message();
    });
  ranks.clear();
  return said;
}

void expect_told(const std::vector<std::string>& said, const std::vector<std::string>& parts) {
  for (const std::string& text : said)
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(RankSetupTest, RanksThatAreAlikeMayLoad) {
  const TemporaryDirectory dir;
  const auto one = settings_of(demo("target"));
  EXPECT_EQ(compare(one, one), std::vector<std::string>(2));
  EXPECT_EQ(compare(one, settings_of(dir.copy(demo("target"), "copy"))), std::vector<std::string>(2));
}

TEST(RankSetupTest, ACopyOfWhichAPartIsMissingIsNamed) {
  const TemporaryDirectory dir;
  const auto broken = dir.copy(demo("target"), "broken");
  break_off(broken, 16);
  const auto said = compare(settings_of(demo("target")), settings_of(broken));
  expect_told(said, {"the target ranks differ in the weights of --model", "rank 0 on host " + this_host(),
                     "rank 1 on host", "copy the model again"});
  EXPECT_EQ(said[0], said[1]);
}

TEST(RankSetupTest, AnotherShapeAndAnotherModelAreNamed) {
  const auto said = compare(settings_of(demo("target")), settings_of(demo("draft")));
  expect_told(said, {"config.json of --model", "the names, types and shapes of the tensors of --model"});
}

TEST(RankSetupTest, EveryFlagThatDecidesATextOrASizeIsNamed) {
  using Change = std::function<void(RoleSettings&)>;
  const std::vector<std::pair<std::string, Change>> changes{
      {"--max-model-len", [](RoleSettings& s) { s.models.max_model_len = 96; }},
      {"--max-num-seqs", [](RoleSettings& s) { s.models.max_num_seqs = 3; }},
      {"--kv-cache-tokens", [](RoleSettings& s) { s.models.kv_cache_tokens = 4096; }},
      {"--weight-format", [](RoleSettings& s) { s.models.weight_format = "int8"; }},
      {"--kv-dtype", [](RoleSettings& s) { s.models.kv_dtype = "bf16"; }},
      {"--speculative-tree", [](RoleSettings& s) { s.speculation.speculative_tree = "best-first:8"; }},
      {"--q-format", [](RoleSettings& s) { s.speculation.q_format = "dense"; }},
      {"--synthetic-acceptance", [](RoleSettings& s) { s.speculation.synthetic_acceptance = "rates:0.8"; }}};
  const auto one = settings_of(demo("target"));
  for (const auto& [flag, change] : changes) {
    RoleSettings other = one;
    change(other);
    const auto said = compare(one, other);
    expect_told(said, {"the target ranks differ in " + flag + " (", "rank 0 on host", "rank 1 on host",
                       "the same flags and variables"});
    EXPECT_EQ(said[0], said[1]);
  }
}

TEST(RankSetupTest, RanksOfADraftWorkerCompareTheirModel) {
  const TemporaryDirectory dir;
  const auto broken = dir.copy(demo("target"), "broken");
  break_off(broken, 16);
  RoleSettings one = settings_of(demo("target")), other = one;
  one.models.draft_model = demo("target").string();
  other.models.draft_model = broken.string();
  expect_told(compare(one, other, true),
              {"the ranks of draft worker 0 differ in the weights of --draft-model", "rank 1 on host"});
  other = one;
  other.speculation.fanout_budget = 4;
  expect_told(compare(one, other, true), {"--fanout-budget (8 at rank 0", "4 at rank 1"});
}

// A rank without a valid input of its own takes part, and the others may go on to tell of it.
TEST(RankSetupTest, ARankThatFailedHoldsNobodyUp) {
  const auto group = make_thread_collectives(2);
  const auto settings = settings_of(demo("target"));
  const Preparation prepared = prepare(settings).value();
  std::vector<Status> said(2);
  {
    std::jthread failed([&] { said[0] = compare_setups(*group[0], {}, 1); });
    said[1] = compare_setups(*group[1], target_setup(settings, prepared, "rank 1").value(), 1);
  }
  EXPECT_TRUE(said[0].ok() && said[1].ok());
}

TEST(WholeFingerprintTest, SeesEveryByteAndIsTheSameForEveryShareOfTheWork) {
  const TemporaryDirectory dir;
  const auto model = golden_model("llama-bias-sharded");
  const uint64_t whole = weights_sum(model, 0, 1, 1).value();
  uint64_t shared = 0;
  for (int part = 0; part < 3; ++part) shared += weights_sum(model, part, 3, 2).value();
  EXPECT_EQ(whole, shared);
  const auto broken = dir.copy(golden_model("qwen3"), "broken");
  break_off(broken, 4);
  EXPECT_NE(whole_fingerprint_of_model(broken, 1, 2).value(),
            whole_fingerprint_of_model(golden_model("qwen3"), 1, 2).value());
  EXPECT_EQ(fingerprint_of_shapes(broken).value(), fingerprint_of_shapes(golden_model("qwen3")).value());
}

// Some bytes amid a tensor make another model: its results are not resumed, and its drafts are another's.
TEST(WholeFingerprintTest, OfDraftersAndResultsReadsTheMiddleOfTensors) {
  const TemporaryDirectory dir;
  const auto other = dir.copy(demo("draft"), "other");
  break_off(other, 64);
  ModelSettings one, two;
  one.model = demo("draft").string();
  two.model = other.string();
  PromptRequest asked;
  EXPECT_NE(request_fingerprints(one, {}).value()(asked), request_fingerprints(two, {}).value()(asked));
  const auto drafter = [](const std::filesystem::path& draft) {
    RoleSettings settings;
    settings.models.draft_model = draft.string();
    return prepare_drafter(settings).value().draft_info.fingerprint;
  };
  EXPECT_NE(drafter(demo("draft")), drafter(other));
  EXPECT_EQ(drafter(demo("draft")), drafter(demo("draft")));
}

}  // namespace
}  // namespace outrider::testing
