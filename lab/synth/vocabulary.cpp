#include "lab/synth/vocabulary.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "text/tokenizer/byte_alphabet.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr std::string_view kConsonants = "bdfghjklmnprstvwz";
constexpr std::string_view kVowels = "aeiou";
constexpr int64_t kSyllables = static_cast<int64_t>(kConsonants.size() * kVowels.size());

std::string syllable(int64_t n) {
  const auto i = static_cast<size_t>(n);
  return {kConsonants[i / kVowels.size()], kVowels[i % kVowels.size()]};
}

// The n-th word: two syllables while they last, then three.
std::string word(int64_t n) {
  const int64_t pairs = kSyllables * kSyllables;
  if (n < pairs) return syllable(n % kSyllables) + syllable(n / kSyllables);
  n -= pairs;
  return syllable(n % kSyllables) + syllable(n / kSyllables % kSyllables) + syllable(n / pairs);
}
static_assert(kSyllables * kSyllables * (kSyllables + 1) + kMinSynthVocabulary > kMaxSynthVocabulary);

json special_token(int32_t id, const char* content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

}  // namespace

json synth_tokenizer(int64_t vocab) {
  json words = json::object();
  words["<s>"] = kSynthBos;
  words["</s>"] = kSynthEos;
  for (int byte = 0; byte < 256; ++byte)
    words[std::string(byte_character(static_cast<uint8_t>(byte)))] = 2 + byte;
  const std::string space(byte_character(' '));
  for (int64_t id = kMinSynthVocabulary; id < vocab; ++id) words[space + word(id - kMinSynthVocabulary)] = id;
  const json bos_then_text = json::array(
      {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}});
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", {special_token(kSynthBos, "<s>"), special_token(kSynthEos, "</s>")}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", bos_then_text},
            {"pair", bos_then_text},
            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {kSynthBos}}, {"tokens", {"<s>"}}}}}}}},
          {"decoder",
           {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", true},
            {"vocab", std::move(words)},
            {"merges", json::array()}}}};
}

json synth_tokenizer_config(int64_t max_positions) {
  return {{"tokenizer_class", "PreTrainedTokenizerFast"},
          {"bos_token", "<s>"},
          {"eos_token", "</s>"},
          {"add_bos_token", true},
          {"add_eos_token", false},
          {"clean_up_tokenization_spaces", false},
          {"model_max_length", max_positions}};
}

}  // namespace outrider
