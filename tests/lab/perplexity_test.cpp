// `outrider perplexity`: its sums, and the command on the demo pair.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "lab/perplexity/scores.h"
#include "tests/support/program.h"
#include "tests/support/source_dir.h"

namespace outrider::testing {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

TEST(Scores, PerplexityIsTheExponentOfTheMean) {
  Likelihood likelihood;
  for (const double nll : {1.0, 2.0, 3.0}) likelihood.add(nll);
  EXPECT_EQ(likelihood.count(), 3);
  EXPECT_NEAR(likelihood.perplexity(), std::exp(2.0), 1e-12);
  EXPECT_NEAR(likelihood.error(), std::exp(2.0) * std::sqrt(2.0 / 3 / 2), 1e-12);
}

// By the delta method: the perplexity's error is that of the mean, times the perplexity.
TEST(Scores, ADifferenceIsKnownBetterThanItsParts) {
  PairedLikelihood paired;
  for (const double nll : {1.0, 2.0, 3.0}) paired.add(nll + 0.5, nll);
  EXPECT_NEAR(paired.ratio(), std::exp(0.5), 1e-12);
  EXPECT_NEAR(paired.ratio_error(), 0, 1e-6) << "the difference is the same everywhere";
  EXPECT_NEAR(paired.difference(), std::exp(2.5) - std::exp(2.0), 1e-12);
  EXPECT_NEAR(paired.difference_error(), (std::exp(2.5) - std::exp(2.0)) * std::sqrt(2.0 / 3 / 2), 1e-6);
  PairedLikelihood apart;
  apart.add(1, 2);
  apart.add(3, 2);
  EXPECT_NEAR(apart.ratio_error(), std::sqrt(1.0 / 1), 1e-12);
}

TEST(Scores, DivergenceOfTwoDistributions) {
  // (1/2, 1/4, 1/4) against (1/4, 1/2, 1/4), logits with an offset: ln(2) / 2 - ln(2) / 4.
  const std::vector<float> base{std::log(2.0f), 0, 0}, model{1000, 1000 + std::log(2.0f), 1000};
  Difference difference;
  add_difference(base, base, difference);
  EXPECT_EQ(difference.divergence_sum, 0);
  EXPECT_EQ(difference.same_top, 1);
  add_difference(base, model, difference);
  EXPECT_NEAR(difference.divergence_max, std::log(2.0) / 4, 1e-4);
  EXPECT_NEAR(difference.mean_divergence(), std::log(2.0) / 8, 1e-4);
  EXPECT_EQ(difference.same_top_share(), 0.5);
  EXPECT_NEAR(log_sum_exp(model), 1000 + std::log(4.0), 1e-4);
}

class Perplexity : public ::testing::Test {
 protected:
  Outcome perplexity(const Arguments& more) {
    Arguments arguments{"perplexity", (source_dir() / "launch/demo_pair/target").string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return outrider_program(arguments);
  }
  const TemporaryDirectory dir_;
};

// The log-probabilities that `generate` reports for its tokens are those that the text is scored with.
TEST_F(Perplexity, IsThatOfTheTokensLogProbabilities) {
  const std::string prompt = "Once upon a time";
  const Outcome generated = outrider_program(
      {"generate", "--model", source_dir() / "launch/demo_pair/target", "--prompt", prompt, "--max-tokens",
       "60", "--ignore-eos", "--temperature", "1", "--logprobs", "0", "--output", dir_ / "out.jsonl"});
  ASSERT_TRUE(generated.succeeded()) << generated.describe();
  const json result = json::parse(read_file(dir_ / "out.jsonl"));
  const std::string text = prompt + result["text"].get<std::string>();
  const auto first = result["usage"]["prompt_tokens"].get<size_t>(), length = first + 60;
  double nll = 0;
  size_t count = 0;
  for (size_t i = length / 2 + 1 - first; i < 60; ++i, ++count)
    nll -= result["logprobs"][i]["logprob"].get<double>();

  const Outcome run = perplexity({"--file", dir_.write("text.txt", text), "--ctx-size",
                                  std::to_string(length), "--report", dir_ / "report.json"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  const json report = json::parse(read_file(dir_ / "report.json"));
  EXPECT_EQ(report["scored_tokens"], count);
  EXPECT_NEAR(std::log(report["model"]["perplexity"].get<double>()), nll / static_cast<double>(count), 1e-4);
  EXPECT_NE(run.out.find("perplexity "), std::string::npos) << run.describe();
  EXPECT_FALSE(report.contains("base"));
}

TEST_F(Perplexity, OfABaseTellsWhatTheFormatChanged) {
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += "The little dog was happy. She saw a big red ball in the park and ran to it. ";
  const std::filesystem::path file = dir_.write("text.txt", text);
  const auto compared = [&](const Arguments& more) {
    Arguments arguments{"--file",   file, "--ctx-size", "64",
                        "--chunks", "3",  "--report",   dir_ / "report.json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome run = perplexity(arguments);
    EXPECT_TRUE(run.succeeded()) << run.describe();
    EXPECT_NE(run.out.find("KL divergence"), std::string::npos) << run.describe();
    return json::parse(read_file(dir_ / "report.json"));
  };
  const json same = compared({"--base", source_dir() / "launch/demo_pair/target"});
  EXPECT_EQ(same["scored_tokens"], 3 * 31);
  EXPECT_EQ(same["ratio"], 1);
  EXPECT_EQ(same["kl_divergence"]["largest"], 0);
  EXPECT_EQ(same["same_top_token"], 1);

  const json coarse = compared({"--weight-format", "int4", "--base-weight-format", "bf16"});
  EXPECT_GT(coarse["kl_divergence"]["mean"].get<double>(), 0);
  EXPECT_LT(coarse["kl_divergence"]["mean"].get<double>(), 1);
  EXPECT_EQ(coarse["base"]["perplexity"], same["model"]["perplexity"]);
}

TEST_F(Perplexity, QuantizeTellsWhatItLost) {
  std::string text;
  for (int i = 0; i < 60; ++i)
    text += "The little dog was happy. She saw a big red ball in the park and ran to it. ";
  const Outcome run =
      outrider_program({"quantize", source_dir() / "launch/demo_pair/target", "--weight-format", "q8_0",
                        "--output", dir_ / "q8_0", "--perplexity", dir_.write("text.txt", text)});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_NE(run.out.find("/q8_0\n"), std::string::npos) << run.describe();
  EXPECT_NE(run.out.find("difference "), std::string::npos) << run.describe();
  EXPECT_NE(run.out.find(" tokens scored"), std::string::npos) << run.describe();
}

// Quantising may take hours, so scoring is checked before.
TEST_F(Perplexity, NothingIsQuantisedThatCannotBeScored) {
  const std::string model = source_dir() / "launch/demo_pair/target";
  const std::filesystem::path mute = dir_ / "mute";
  std::filesystem::create_directory(mute);
  for (const auto& file : std::filesystem::directory_iterator(model))
    if (file.path().filename().string().find("token") == std::string::npos)
      std::filesystem::create_symlink(file.path(), mute / file.path().filename());
  std::string text;
  for (int i = 0; i < 600; ++i) text += "The dog ran. ";
  const std::string good = dir_.write("good.txt", text);
  for (const auto& [from, format, scored, words] : std::vector<std::array<std::string, 4>>{
           {model, "q8_0", dir_ / "no.txt", "no.txt: no such file"},
           {model, "q8_0", dir_.write("short.txt", "Once upon a time"), "short.txt: has "},
           {model, "q8_0", dir_.write("bytes.txt", "\xff\xfe"), "bytes.txt: is not UTF-8"},
           {model, "fp8", good, "fp8 weights are for CUDA devices"},
           {mute, "q8_0", good, "tokenizer"}}) {
    const Outcome run = outrider_program(
        {"quantize", from, "--weight-format", format, "--output", dir_ / "none", "--perplexity", scored});
    EXPECT_EQ(run.code, 2) << run.describe();
    EXPECT_NE(run.err.find(words), std::string::npos) << run.describe();
    EXPECT_EQ(run.err.find("--file"), std::string::npos) << run.describe();
    EXPECT_FALSE(std::filesystem::exists(dir_ / "none")) << run.describe();
  }
}

TEST_F(Perplexity, RefusesWhatItCannotScore) {
  const std::string text =
      dir_.write("text.txt", "A short text of a few more words, which are read.").string();
  for (const auto& [arguments, words] : std::vector<std::pair<Arguments, std::string>>{
           {{"--file", text}, "--ctx-size"},
           {{"--file", (dir_ / "none.txt").string()}, "none.txt"},
           {{"--file", (dir_ / "").string()}, "not a regular file"},
           {{"--file", dir_.write("bytes.txt", "\xff\xfe").string()}, "UTF-8"},
           {{"--file", text, "--ctx-size", "100000"}, "supports"},
           {{"--file", text, "--ctx-size", "2"}, "--ctx-size"},
           {{"--file", text, "--weight-format", "int5"}, "int5"},
           {{"--file", text, "--ctx-size", "8", "--base", (dir_ / "model").string()}, "--base"}}) {
    const Outcome run = perplexity(arguments);
    EXPECT_EQ(run.code, 2) << run.describe();
    EXPECT_NE(run.err.find(words), std::string::npos) << run.describe();
  }
}

// A tokenizer may know more tokens than the model embeds, such as those of images.
TEST_F(Perplexity, ATokenThatTheModelCannotReadIsNamed) {
  const std::filesystem::path model = dir_ / "model";
  std::filesystem::create_directory(model);
  for (const auto& file : std::filesystem::directory_iterator(source_dir() / "launch/demo_pair/target"))
    if (file.path().filename() != "tokenizer.json")
      std::filesystem::create_symlink(file.path(), model / file.path().filename());
  json tokenizer = json::parse(read_file(source_dir() / "launch/demo_pair/target/tokenizer.json"));
  json image = tokenizer["added_tokens"][0];
  image.update({{"id", json::parse(read_file(model / "config.json"))["vocab_size"]}, {"content", "<image>"}});
  tokenizer["added_tokens"].push_back(image);
  dir_.write("model/tokenizer.json", tokenizer.dump());
  const Outcome run = outrider_program({"perplexity", model, "--file",
                                        dir_.write("text.txt", "Once upon a time <image> there was a dog."),
                                        "--ctx-size", "8"});
  EXPECT_EQ(run.code, 2) << run.describe();
  EXPECT_NE(run.err.find("has the special token <image>"), std::string::npos) << run.describe();
}

}  // namespace
}  // namespace outrider::testing
