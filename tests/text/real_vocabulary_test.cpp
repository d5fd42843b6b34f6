// Vocabularies of real families against llama.cpp's own test vectors. The files are not part of the project;
// OUTRIDER_TEST_DATA names their directory.
#include "tests/text/tokenizer_fixtures.h"

namespace outrider {
namespace {

struct Family {
  const char* directory;
  const char* vectors;
};

class RealVocabulary : public testing::TestWithParam<Family> {};

TEST_P(RealVocabulary, EncodesThePublishedVectors) {
  const auto directory = test_data() / "tokenizers" / GetParam().directory;
  const auto vectors = test_data() / "tokenizers/gguf-vocab" / GetParam().vectors;
  SKIP_WITHOUT(directory);
  const auto tokenizer = load_or_die(directory);
  const std::string inputs = read_file(vectors.string() + ".inp");
  std::istringstream outputs(read_file(vectors.string() + ".out"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  int cases = 0;
  size_t at = 0;
  for (size_t end; (end = inputs.find(separator, at)) != std::string::npos;
       at = end + separator.size(), ++cases) {
    const std::string text = inputs.substr(at, end - at);
    std::string line;
    ASSERT_TRUE(std::getline(outputs, line));
    std::istringstream numbers(line);
    const std::vector<int> want(std::istream_iterator<int>(numbers), {});
    EXPECT_EQ(encode_plain(*tokenizer, text), want) << text;
    EXPECT_EQ(tokenizer->decode(token_ids(want)), text);
  }
  EXPECT_EQ(cases, 46);  // what follows the last separator is empty
}

INSTANTIATE_TEST_SUITE_P(Families, RealVocabulary,
                         testing::Values(Family{"gpt2", "ggml-vocab-gpt-2.gguf"},
                                         Family{"qwen", "ggml-vocab-qwen2.gguf"},
                                         Family{"llama2-spm", "ggml-vocab-llama-spm.gguf"}),
                         [](const auto& family) {
                           std::string name = family.param.directory;
                           std::erase(name, '-');
                           return name;
                         });

TEST(RealVocabularyTable, KnowsSpecialTokensOfQwen) {
  const auto directory = test_data() / "tokenizers/qwen";
  SKIP_WITHOUT(directory);
  const auto tokenizer = load_or_die(directory);
  EXPECT_EQ(tokenizer->vocab_size(), 151669);
  EXPECT_EQ(encode_plain(*tokenizer, "<|im_start|>user\nHi<|im_end|>\n<think>"),
            (std::vector<int>{151644, 872, 198, 13048, 151645, 198, 151667}));
  EXPECT_TRUE(tokenizer->is_special(TokenId(151645)));
  EXPECT_FALSE(tokenizer->is_special(TokenId(151667)));
  EXPECT_EQ(tokenizer->decode(token_ids({151644, 13048, 151667})), "Hi<think>");
  EXPECT_EQ(tokenizer->bos(), std::nullopt);
}

}  // namespace
}  // namespace outrider
