// The published models that `launch/models` fetches, through the program: what a user runs. A test without
// its files is skipped, aloud. A text is compared with another text of this build, never with a stored one:
// machines differ in the last bits of attention.
#include <gtest/gtest.h>

#include <cctype>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tests/support/program.h"
#include "tests/support/source_dir.h"

namespace outrider::testing {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

constexpr const char* kTarget = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf";
constexpr const char* kDraft = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";
constexpr const char* kCode =
    "def quicksort(values):\n    \"\"\"Return the values in ascending order.\"\"\"\n";

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The path of a fetched model. Empty: the file is missing; standard error has a line about it.
std::string model(const std::string& file) {
  const auto path = source_dir() / "models" / file;
  if (std::filesystem::exists(path)) return path.string();
  std::fprintf(stderr, "\n*** SKIPPED: no models/%s; launch/models fetches it. ***\n", file.c_str());
  return {};
}

std::string text_of(const std::string& path, const Arguments& more) {
  const Outcome run = outrider_program(Arguments{"generate", "--model", path, "--quiet"} + more,
                                       {.limit = std::chrono::minutes(5)});
  EXPECT_TRUE(run.succeeded()) << run.describe();
  return run.out;
}

struct Published {
  const char *file, *prompt, *continued;  // what a greedy continuation of 24 tokens contains
};

class RealModels : public ::testing::TestWithParam<Published> {};

TEST_P(RealModels, KnowWhatTheyLearnt) {
  const std::string path = model(GetParam().file);
  if (path.empty()) GTEST_SKIP();
  const std::string text =
      text_of(path, {"--prompt", GetParam().prompt, "--max-tokens", "24", "--temperature", "0"});
  EXPECT_NE(text.find(GetParam().continued), std::string::npos) << text;
}

TEST_P(RealModels, WriteTheSameTextOnEveryNumberOfRanksAndInABatch) {
  const std::string path = model(GetParam().file);
  if (path.empty()) GTEST_SKIP();
  const TemporaryDirectory dir;
  std::string lines;
  for (int i = 0; i < 3; ++i)
    lines += json{{"prompt", std::string(GetParam().prompt) + std::string(static_cast<size_t>(i), ' ')},
                  {"seed", i}}
                 .dump() +
             "\n";
  const Arguments what{
      "--prompts",   dir.write("in.jsonl", lines), "--max-tokens", "16", "--temperature", "0.8",
      "--ignore-eos"};
  const std::string alone = text_of(path, what + Arguments{"--max-num-seqs", "1"});
  EXPECT_EQ(text_of(path, what + Arguments{"--max-num-seqs", "3"}), alone) << "in a batch";
  EXPECT_EQ(text_of(path, what + Arguments{"--max-num-seqs", "1", "--tensor-parallel-size", "2"}), alone)
      << "two ranks";
}

TEST_P(RealModels, WriteTheSameTextWithDraftsFromTheText) {
  const std::string path = model(GetParam().file);
  if (path.empty()) GTEST_SKIP();
  const Arguments what{"--prompt", GetParam().prompt, "--max-tokens", "48", "--temperature",
                       "0",        "--ignore-eos"};
  EXPECT_EQ(text_of(path, what + Arguments{"--drafter", "suffix", "-g", "6"}), text_of(path, what));
}

INSTANTIATE_TEST_SUITE_P(
    Published, RealModels,
    ::testing::Values(Published{"SmolLM2-135M-Instruct.Q4_1.gguf", "The capital of France is", "Paris"},
                      Published{"gemma-3-270m-q4_k_m.gguf", "The capital of France is", "France"},
                      Published{kDraft, "def fibonacci(n):", "return"},
                      Published{kTarget, "def fibonacci(n):", "return"}),
    [](const auto& published) {
      std::string name = published.param.file;
      std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
      return name;
    });

// Drafts of the smaller model, greedy and sampled, as chains and trees: the text of the larger one alone, of
// which it guesses most.
TEST(RealPair, SpeculationWritesTheTextOfTheTarget) {
  const std::string target = model(kTarget), draft = model(kDraft);
  if (target.empty() || draft.empty()) GTEST_SKIP();
  const TemporaryDirectory dir;
  for (const char* temperature : {"0", "0.8"}) {
    const Arguments what{"--prompt",      kCode,       "--max-tokens", "40",
                         "--temperature", temperature, "--ignore-eos"};
    const std::string plain = text_of(target, what);
    for (const Arguments& way :
         {Arguments{"-g", "4"}, Arguments{}, Arguments{"-g", "4", "--speculative-tree", "best-first:8"},
          Arguments{"-g", "4", "--draft-vocab-size", "32768"}}) {
      EXPECT_EQ(text_of(target, what + Arguments{"--draft-model", draft, "--report", dir / "r.json"} + way),
                plain)
          << temperature << " " << (way.empty() ? "default" : way.back());
      const json rounds = json::parse(read_file(dir / "r.json"))["metrics"]["rounds"];
      if (!way.empty() && way.size() == 2) {
        EXPECT_GT(rounds["accepted_tokens"].get<double>(), 0.5 * rounds["tested_tokens"].get<double>())
            << rounds;
      }
    }
  }
}

}  // namespace
}  // namespace outrider::testing
