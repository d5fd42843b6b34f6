#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "coordinator/gamma/policies.h"
#include "tests/support/source_dir.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

const GammaContext kAny{.limit = 64, .batch_size = 1, .context_length = 10};

std::string error_of(std::string_view text) {
  auto policy = parse_gamma_policy(text);
  return policy.ok() ? "" : policy.status().message();
}

class GammaFile : public ::testing::Test {
 protected:
  std::string write(const std::string& text) { return directory_.write("gammas.txt", text); }
  const TemporaryDirectory directory_;
};

TEST(GammaPolicy, FixedIsFixed) {
  auto policy = parse_gamma_policy("fixed:gamma=3").value()();
  EXPECT_EQ(policy->next(kAny), 3);
  policy->update({.drafted = 3, .accepted = 0});
  EXPECT_EQ(policy->next(kAny), 3);
  EXPECT_EQ(parse_gamma_policy("fixed").value()()->next(kAny), 5);
}

TEST(GammaPolicy, HeuristicMatchesTheReferenceTrace) {
  std::ifstream file(outrider::source_dir() / "tests/vectors/policies.json");
  const auto trace = nlohmann::json::parse(file)["heuristic"];
  auto policy = make_heuristic_gamma(
      {.start = trace["g0"], .min = trace["gmin"], .max = trace["gmax"], .guard = false});
  ASSERT_GT(trace["rows"].size(), 20u);
  for (const auto& row : trace["rows"]) {
    EXPECT_EQ(policy->next(kAny), row[0]);
    policy->update({.drafted = row[0], .accepted = row[1]});
    EXPECT_EQ(policy->next(kAny), row[2]);
  }
}

TEST(GammaPolicy, HeuristicKeepsItsBoundsAndIgnoresPlainRounds) {
  auto policy = parse_gamma_policy("heuristic:start=3,max=4").value()();
  policy->update({.drafted = 3, .accepted = 3});
  EXPECT_EQ(policy->next(kAny), 4);
  policy->update({.drafted = 0, .accepted = 0});
  EXPECT_EQ(policy->next(kAny), 4);
  for (int i = 0; i < 9; ++i) policy->update({.drafted = 4, .accepted = 0});
  EXPECT_EQ(policy->next(kAny), 1);
}

TEST(GammaPolicy, EachSequenceHasItsOwnState) {
  const auto factory = parse_gamma_policy("heuristic").value();
  auto one = factory(), other = factory();
  one->update({.drafted = 5, .accepted = 0});
  EXPECT_EQ(one->next(kAny), 4);
  EXPECT_EQ(other->next(kAny), 5);
}

// By SGLang's rule: the average begins at length - 1; decisions after 10 batches, then after every 5th.
TEST(GammaPolicy, TiersFollowTheAverageOfAcceptedTokens) {
  const auto make = parse_gamma_policy("tiers").value();
  const auto policy = make(), beside = make();
  const auto rounds = [&](int count, int32_t accepted, int32_t batch) {
    for (int i = 0; i < count; ++i)
      policy->update({.proposed = 5, .drafted = 5, .accepted = accepted, .round_ns = 1, .batch_size = batch});
  };
  const auto length = [&](int32_t batch) { return policy->next({.limit = 100, .batch_size = batch}); };
  EXPECT_EQ(length(1), 5);
  rounds(14, 5, 1);
  EXPECT_EQ(length(1), 5) << "no decision yet";
  rounds(1, 5, 1);  // the average is 5 - 0.8^15 = 4.96, above 4.5
  EXPECT_EQ(length(1), 7);
  EXPECT_EQ(beside->next({.limit = 100, .batch_size = 1}), 7) << "sequences share the average";
  rounds(5, 0, 1);  // 4.96 * 0.8^5 = 1.63, at most 2.5 - 0.25 and 4.5 - 0.25, above 0.5 - 0.25
  EXPECT_EQ(length(1), 3);
  rounds(20, 0, 1);
  EXPECT_EQ(length(1), 1) << "the tier of small batches never decodes plainly";

  EXPECT_EQ(length(8), 1) << "another tier";
  EXPECT_EQ(length(31), 1);
  rounds(8 * 15, 0, 8);  // 15 batches of 8 sequences; the average began at 0
  EXPECT_EQ(length(8), 0);
  rounds(8 * 5, 0, 8);
  EXPECT_EQ(length(8), 1) << "five plain batches later it tries again";
  EXPECT_EQ(length(64), 0);
  EXPECT_EQ(parse_gamma_policy("tiers:warmup=0,interval=1,steps=1:2-4").value()()->next({.limit = 100}), 4);
  for (const char* wrong : {"tiers:steps=1", "tiers:steps=1:3-1", "tiers:steps=8:1/1:2", "tiers:steps=1:",
                            "tiers:steps=", "tiers:steps=1:1-x", "tiers:alpha=0", "tiers:interval=0"})
    EXPECT_FALSE(parse_gamma_policy(wrong).ok()) << wrong;
}

TEST_F(GammaFile, ReplaysLinesAndArrays) {
  for (const char* text : {"3\n0 # plain\n7\n", "[3, 0,\n 7]\n"}) {
    const auto factory = parse_gamma_policy("replay:file=" + write(text)).value();
    for (int copy = 0; copy < 2; ++copy) {
      auto policy = factory();
      for (int32_t expected : {3, 0, 7, 7, 7}) EXPECT_EQ(policy->next(kAny), expected);
    }
  }
}

TEST_F(GammaFile, ErrorsNameFileAndLine) {
  const std::string path = write("3\n4\nfive\n");
  EXPECT_EQ(error_of("replay:file=" + path), path + ":3: 'five' is not a draft length in 0..1024");
  write("3\n-1\n");
  EXPECT_NE(error_of("replay:file=" + path).find(":2: '-1'"), std::string::npos);
  write("# nothing\n");
  EXPECT_NE(error_of("replay:file=" + path).find("holds no draft length"), std::string::npos);
  EXPECT_NE(error_of("replay:file=/nonexistent/x").find("/nonexistent/x: cannot be opened"),
            std::string::npos);
}

// An endless device does not fill the memory, and an error message does not quote a whole file.
TEST_F(GammaFile, AFileOfAnotherKindIsRefused) {
  EXPECT_NE(error_of("replay:file=/dev/zero").find("more than 16 MiB"), std::string::npos);
  EXPECT_LT(error_of("replay:file=" + write(std::string(100000, 'x'))).size(), 300u);
}

TEST_F(GammaFile, ThoseOfAnotherUserAreNotRead) {
  const auto policy = parse_gamma_policy("replay:file=" + write("3\n"), PolicyFiles::kRefused);
  EXPECT_EQ(policy.status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(parse_gamma_policy("fixed:gamma=3", PolicyFiles::kRefused).ok());
}

TEST(GammaPolicy, ErrorsNameTheNearestKnownWord) {
  EXPECT_EQ(error_of("fixd"),
            "there is no gamma policy 'fixd'; did you mean 'fixed'? (`outrider generate --gamma-policy list` "
            "shows all)");
  EXPECT_EQ(error_of("heuristic:stat=3"),
            "gamma policy 'heuristic' has no key 'stat'; did you mean 'start'? (`outrider generate "
            "--gamma-policy list` shows all)");
  EXPECT_EQ(error_of("magic"),
            "there is no gamma policy 'magic' (`outrider generate --gamma-policy list` shows all)");
  EXPECT_EQ(error_of("fixed:speed=3"),
            "gamma policy 'fixed' has no key 'speed' (`outrider generate --gamma-policy list` shows all)");
  EXPECT_EQ(error_of("fixed:gamma=-1"), "gamma policy: gamma=-1 is not an integer in 0..1024");
  EXPECT_EQ(error_of("fixed:gamma=2x"), "gamma policy: gamma=2x is not an integer in 0..1024");
  EXPECT_EQ(error_of("fixed:gamma"), "gamma policy 'fixed': 'gamma' is not key=value");
  EXPECT_EQ(error_of("fixed:gamma=1,gamma=2"), "gamma policy 'fixed': key 'gamma' is given twice");
  EXPECT_EQ(error_of("heuristic:start=9,max=4"), "gamma policy: start=9 is not an integer in 1..4");
  EXPECT_NE(error_of("replay").find("needs file="), std::string::npos);
}

TEST(GammaPolicy, NoPolicyOfARequestDraftsMoreThanItMay) {
  const auto error = [](std::string_view text) {
    return parse_capped_gamma_policy(text, PolicyFiles::kRefused, 8).status();
  };
  for (const char* text :
       {"fixed:gamma=9", "fixed:gamma=1024", "heuristic:start=9,max=9", "ewma:max=64", "ewma:found-max=9",
        "table:steps=1:5/8:9", "tiers:steps=1:1-9/8:0", "confidence:threshold=0.5,max=9"})
    EXPECT_NE(error(text).message().find("the longest draft that a request may ask for"), std::string::npos)
        << text << ": " << error(text).message();
  EXPECT_TRUE(error("table:steps=9:8/16:1").ok()) << "batch sizes are no lengths";
  for (const GammaPolicyInfo& info : gamma_policy_table()) {
    if (info.reads_file) continue;
    const auto made = parse_capped_gamma_policy(info.name, PolicyFiles::kRefused, 3);
    ASSERT_TRUE(made.ok()) << info.name << ": " << made.status().message();
  }
  auto fixed = parse_capped_gamma_policy("fixed", PolicyFiles::kRefused, 3).value()();
  EXPECT_EQ(fixed->next(kAny), 3) << "also where the length is the policy's own default";
}

// A request may name a policy of a megabyte.
TEST(GammaPolicy, ErrorsDoNotRepeatLongValues) {
  const std::string much(1 << 20, 'x'), number(1 << 20, '1');
  for (const std::string& text :
       {much, "fixed:" + much, "fixed:" + much + "=1", "fixed:gamma=" + number, "ewma:decay=" + much,
        "table:steps=" + much, "table:steps=1:" + number, "tiers:steps=" + much, "tiers:steps=1:" + number})
    EXPECT_LT(error_of(text).size(), 300u) << text.substr(0, 20);
}

TEST(GammaPolicy, ListNamesEveryPolicyAndKey) {
  const std::string text = list_gamma_policies();
  for (const GammaPolicyInfo& policy : gamma_policy_table()) {
    EXPECT_NE(text.find(policy.name), std::string::npos);
    for (const GammaKey& key : policy.keys) EXPECT_NE(text.find(key.name + "="), std::string::npos);
  }
}

}  // namespace
}  // namespace outrider
