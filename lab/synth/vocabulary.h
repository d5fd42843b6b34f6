// A tokenizer of any size for untrained models: bytes, so that every text can be encoded, and made-up words,
// so that their output is readable.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace outrider {

constexpr int32_t kSynthBos = 0, kSynthEos = 1;
constexpr int64_t kMinSynthVocabulary = 2 + 256;
constexpr int64_t kMaxSynthVocabulary = 600'000;  // as many words of two or three syllables exist

// tokenizer.json: byte-level BPE without merges; words are looked up whole.
nlohmann::json synth_tokenizer(int64_t vocab);
nlohmann::json synth_tokenizer_config(int64_t max_positions);

}  // namespace outrider
