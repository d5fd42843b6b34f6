#include "text/tokenizer/gguf_pre_tokenizers.h"

#include <algorithm>
#include <array>

namespace outrider {
namespace {

// Patterns as llama.cpp has them (llama-vocab.cpp, llm_tokenizer_bpe), those of a tokenizer.json where it states
// them.
// clang-format off
constexpr auto kDefault = std::to_array<const char*>({
    R"re([\p{P}\$\+<=>\^~\|]+)re",
    R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))re",
    R"re(\p{N}+)re",
    R"re([0-9][0-9][0-9])re",
});
constexpr auto kLlama3 = std::to_array<const char*>({
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n])re"
    R"re(+|\s+(?!\S)|\s+)re",
});
constexpr auto kQwen2 = std::to_array<const char*>({
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+)re"
    R"re((?!\S)|\s+)re",
});
constexpr auto kQwen35 = std::to_array<const char*>({
    R"re((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^)re"
    R"re(\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
});
constexpr auto kGpt2 = std::to_array<const char*>({
    R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))re",
});
constexpr auto kStarcoder = std::to_array<const char*>({
    R"re(\p{N})re",
    R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))re",
});
constexpr auto kDeepseekLlm = std::to_array<const char*>({
    R"re([\r\n])re",
    R"re(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ)re"
    R"re(Ὗ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ)re"
    R"re(𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)re",
    R"re(\s?[!-/:-~！-／：-～‘-‟　-。]+)re",
    R"re(\s+$)re",
    R"re([一-龥ࠀ-一가-퟿]+)re",
    R"re(\p{N}+)re",
});
constexpr auto kDeepseekCoder = std::to_array<const char*>({
    R"re([\r\n])re",
    R"re(\s?\p{L}+)re",
    R"re(\s?\p{P}+)re",
    R"re([一-龥ࠀ-一가-퟿]+)re",
    R"re(\p{N})re",
});
constexpr auto kDeepseek3Llm = std::to_array<const char*>({
    R"re(\p{N}{1,3})re",
    R"re([一-龥぀-ゟ゠-ヿ]+)re",
    R"re([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+)re"
    R"re([\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
});
constexpr auto kSpark25 = std::to_array<const char*>({
    R"re(\p{N}{1,3})re",
    R"re([一-龥぀-ゟ゠-ヿ]+)re",
    R"re([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+)re"
    R"re(|[\r\n]|\s+(?!\S)|\s+)re",
    R"re(\p{N})re",
});
constexpr auto kYoutu = std::to_array<const char*>({
    R"re([가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+)re",
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE])re"
    R"re(|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p)re"
    R"re({Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/)re"
    R"re(]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
});
constexpr auto kFalcon = std::to_array<const char*>({
    R"re([\p{P}\$\+<=>\^~\|`]+)re",
    R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))re",
    R"re([0-9][0-9][0-9])re",
});
constexpr auto kPoro = std::to_array<const char*>({
    R"re( ?[^(\s|.,!?…。，、।۔،)]+)re",
});
constexpr auto kViking = std::to_array<const char*>({
    R"re( ?[^(\s|.,!?…。，、।۔،)]+)re",
    R"re(\p{N})re",
});
constexpr auto kTekken = std::to_array<const char*>({
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{L)re"
    R"re(u}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s)re"
    R"re(+(?!\S)|\s+)re",
});
constexpr auto kGpt4o = std::to_array<const char*>({
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll)re"
    R"re(|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|)re"
    R"re('m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
});
constexpr auto kGraniteEmbMulti = std::to_array<const char*>({
    R"re([^\r\n\p{L}\p{N}]?((?=[\p{L}\p{M}])([^a-z]))*((?=[\p{L}\p{M}])([^A-Z]))+(?:'[sS]|'[tT]|'[rR][eE]|'[v)re"
    R"re(V][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?((?=[\p{L}\p{M}])([^a-z]))+((?=[\p{L}\p{M}])([^A-Z])re"
    R"re())*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)re"
    R"re(\s*[\r\n]+|\s+(?!\S)|\s+)re",
});
constexpr auto kTinyAya = std::to_array<const char*>({
    R"re(\d{1,3}(?=(?:\d{3})*\b))re",
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE])re"
    R"re(|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p)re"
    R"re({Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[)re"
    R"re(\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
});
constexpr auto kBailingmoe = std::to_array<const char*>({
    R"re('(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)re"
    R"re(\s*[\r\n]|\s+(?!\S)|\s+)re",
});
constexpr auto kSeedCoder = std::to_array<const char*>({
    R"re((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p)re"
    R"re({L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)re",
});
constexpr auto kJais2 = std::to_array<const char*>({
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n])re"
    R"re(+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4})re"
    R"re((?!\S)|\s{1,2}(?!\S)|\s{1})re",
});
constexpr auto kMinicpm5 = std::to_array<const char*>({
    R"re(\p{N}{1,3})re",
    R"re((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L)re"
    R"re(}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
});
constexpr auto kUfakzeka = std::to_array<const char*>({
    R"re([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
});
constexpr auto kLaguna = std::to_array<const char*>({
    R"re([^\n]+|[\n]+)re",
    R"re((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L})re"
    R"re(\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
});
constexpr auto kExaoneMoe = std::to_array<const char*>({
    R"re((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\)re"
    R"re(p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)re",
});

// Names, patterns, ignore_merges, begins, composes.
constexpr auto kPreTokenizers = std::to_array<GgufPreTokenizer>({
    {"default", kDefault, false, false, false},
    {"llama3", kLlama3, true, true, false},
    {"llama-v3", kLlama3, true, true, false},
    {"llama-bpe", kLlama3, true, true, false},
    {"falcon3", kLlama3, true, true, false},
    {"falcon-h1", kLlama3, true, true, false},
    {"pixtral", kLlama3, true, true, false},
    {"midm-2.0", kLlama3, true, true, false},
    {"lfm2", kLlama3, true, true, false},
    {"jina-v5-nano", kLlama3, true, true, false},
    {"dbrx", kLlama3, false, false, false},
    {"smaug-bpe", kLlama3, false, false, false},
    {"chatglm-bpe", kLlama3, false, false, false},
    {"glm4", kLlama3, true, false, false},
    {"glm5", kLlama3, true, false, false},
    {"qwen2", kQwen2, false, false, true},
    {"deepseek-r1-qwen", kQwen2, false, false, false},
    {"kormo", kQwen2, false, false, false},
    {"f2llmv2", kQwen2, false, false, false},
    {"megrez", kQwen2, false, false, false},
    {"stablelm2", kQwen2, false, false, false},
    {"hunyuan", kQwen2, false, false, false},
    {"solar-open", kQwen2, false, false, false},
    {"grok-2", kQwen2, false, false, false},
    {"qwen35", kQwen35, false, false, true},
    {"gpt-2", kGpt2, false, false, false},
    {"phi-2", kGpt2, false, false, false},
    {"jina-es", kGpt2, false, false, false},
    {"jina-de", kGpt2, false, false, false},
    {"gigachat", kGpt2, false, false, false},
    {"jina-v2-es", kGpt2, false, false, false},
    {"jina-v2-de", kGpt2, false, false, false},
    {"a.x-4.0", kGpt2, false, false, false},
    {"mellum", kGpt2, false, false, false},
    {"modern-bert", kGpt2, false, false, false},
    {"jina-v1-en", kGpt2, false, false, false},
    {"jina-v2-code", kGpt2, false, false, false},
    {"roberta-bpe", kGpt2, false, false, false},
    {"exaone4", kGpt2, false, false, false},
    {"mpt", kGpt2, false, false, false},
    {"olmo", kGpt2, false, false, false},
    {"jais", kGpt2, false, false, false},
    {"trillion", kGpt2, false, false, false},
    {"granite-docling", kGpt2, false, false, false},
    {"starcoder", kStarcoder, false, false, false},
    {"refact", kStarcoder, false, false, false},
    {"command-r", kStarcoder, false, false, false},
    {"smollm", kStarcoder, false, false, false},
    {"codeshell", kStarcoder, false, false, false},
    {"exaone", kStarcoder, false, false, false},
    {"minerva-7b", kStarcoder, false, false, false},
    {"mellum2", kStarcoder, false, false, false},
    {"deepseek-llm", kDeepseekLlm, false, false, false},
    {"deepseek-coder", kDeepseekCoder, false, false, false},
    {"deepseek-v3", kDeepseek3Llm, false, false, false},
    {"hunyuan-dense", kDeepseek3Llm, false, false, false},
    {"joyai-llm", kDeepseek3Llm, false, false, false},
    {"hy_v4", kDeepseek3Llm, false, false, false},
    {"spark2_5", kSpark25, false, false, false},
    {"youtu", kYoutu, true, false, false},
    {"falcon", kFalcon, false, false, false},
    {"poro-chat", kPoro, false, false, false},
    {"bloom", kPoro, false, false, false},
    {"gpt3-finnish", kPoro, false, false, false},
    {"viking", kViking, false, false, false},
    {"tekken", kTekken, true, true, false},
    {"gpt-4o", kGpt4o, false, false, false},
    {"llama4", kGpt4o, false, false, false},
    {"kanana2", kGpt4o, false, false, false},
    {"talkie", kGpt4o, false, false, false},
    {"minimax-m2", kGpt4o, false, false, false},
    {"granite-embed-multi-97m", kGraniteEmbMulti, true, false, false},
    {"tiny_aya", kTinyAya, false, false, false},
    {"cohere2moe", kTinyAya, false, false, false},
    {"bailingmoe", kBailingmoe, false, false, false},
    {"bailingmoe2", kBailingmoe, false, false, false},
    {"llada-moe", kBailingmoe, false, false, false},
    {"seed-coder", kSeedCoder, false, false, false},
    {"jais-2", kJais2, false, false, false},
    {"minicpm5", kMinicpm5, true, false, false},
    {"ufakzeka", kUfakzeka, false, false, false},
    {"laguna", kLaguna, false, false, false},
    {"exaone-moe", kExaoneMoe, false, false, false},
});
// clang-format on

}  // namespace

std::span<const GgufPreTokenizer> gguf_pre_tokenizers() { return kPreTokenizers; }

const GgufPreTokenizer* find_gguf_pre_tokenizer(std::string_view name) {
  const auto found = std::find_if(kPreTokenizers.begin(), kPreTokenizers.end(),
                                  [&](const GgufPreTokenizer& known) { return known.name == name; });
  return found == kPreTokenizers.end() ? nullptr : &*found;
}

}  // namespace outrider
