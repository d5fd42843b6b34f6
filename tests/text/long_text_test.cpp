// A megabyte of texts on which a careless tokenizer takes quadratic time.
#include <chrono>

#include "tests/text/tokenizer_fixtures.h"

namespace outrider {
namespace {

constexpr size_t kBytes = 1'000'000;
// Quadratic work on a megabyte is hours; the limit leaves room for sanitizers on a busy machine.
constexpr auto kLimit = std::chrono::seconds(30);

std::string repeat(const std::string& unit) {
  std::string text;
  while (text.size() < kBytes) text += unit;
  return text;
}

class LongText : public testing::TestWithParam<const char*> {};

TEST_P(LongText, IsEncodedInTime) {
  const auto tokenizer = load_or_die(golden_directory() / GetParam());
  std::string marks = "e";  // out of canonical order
  while (marks.size() < kBytes) marks += "\u0301\u0316";
  const std::string texts[] = {repeat("a"), repeat(" "), repeat(" ") + "x", repeat("\n "), repeat("7"),
                               repeat("é"), repeat("<"), repeat("▁"),       marks};
  for (const std::string& text : texts) {
    const auto start = std::chrono::steady_clock::now();
    const auto ids = tokenizer->encode(text, SpecialTokens::kOmit);
    EXPECT_LT(std::chrono::steady_clock::now() - start, kLimit) << text.substr(0, 8);
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_GT(ids->size(), kBytes / 100);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, LongText,
                         testing::Values("gpt2", "qwen", "llama2_legacy", "gemma", "sentencepiece"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace outrider
