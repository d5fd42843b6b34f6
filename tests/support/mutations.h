// Damaged inputs for fuzz tests. They are the same in every run, so every failure can be reproduced.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace outrider::testing {

// Inputs made of good ones: bytes changed, pieces dropped, repeated, moved or taken from another input, and
// `words` put in, which are those that the format knows.
class Mutations {
 public:
  Mutations(uint64_t seed, std::vector<std::string> good, std::vector<std::string> words)
      : random_(seed), good_(std::move(good)), words_(std::move(words)) {}

  std::string next() {
    std::string text = good_[below(good_.size())];
    for (size_t changes = 1 + below(4); changes > 0; --changes) change(text);
    constexpr size_t kMostBytes = size_t{1} << 20;
    if (text.size() > kMostBytes) text.resize(kMostBytes);
    return text;
  }
  uint64_t below(uint64_t limit) { return limit == 0 ? 0 : random_() % limit; }

 private:
  void change(std::string& text) {
    const size_t at = below(text.size() + 1), length = below(text.size() - at + 1) % (1 + below(64));
    switch (below(8)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < text.size()) text[at] = "\0\x01\x7f\x80\xff\"\\{"[below(8)];
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        for (size_t times = 1 + below(below(20) == 0 ? 300 : 4); times > 0; --times)
          text.insert(at, text.substr(at, length));
        break;
      case 4: {
        const std::string piece = text.substr(at, length);
        text.erase(at, length);
        text.insert(below(text.size() + 1), piece);
        break;
      }
      case 5: {
        const std::string& other = good_[below(good_.size())];
        const size_t from = below(other.size() + 1);
        text.replace(at, length, other.substr(from, below(64)));
        break;
      }
      case 6:
        if (!words_.empty()) text.insert(at, words_[below(words_.size())]);
        break;
      default:
        if (!words_.empty()) text.replace(at, length, words_[below(words_.size())]);
    }
  }

  std::mt19937_64 random_;
  const std::vector<std::string> good_, words_;
};

// Values that are at the ends of something, in JSON.
inline std::vector<std::string> json_words() {
  return {"null",
          "true",
          "false",
          "0",
          "-1",
          "1e400",
          "-0.0",
          "18446744073709551616",
          "9223372036854775807",
          "0.1",
          "\"\"",
          "[]",
          "{}",
          "[",
          "]",
          "{",
          "}",
          ",",
          ":",
          "\"",
          "\\u0000",
          "\\ud800",
          "\xff",
          "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
          "{\"a\":"};
}

// So many rounds; where OUTRIDER_FUZZ_SECONDS is set, further ones until so much time has passed.
template <class Round>
void fuzz(int rounds, const Round& round) {
  const char* const asked = std::getenv("OUTRIDER_FUZZ_SECONDS");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(asked ? std::atoi(asked) : 0);
  for (int i = 0; i < rounds || (asked && std::chrono::steady_clock::now() < end); ++i) round();
}

}  // namespace outrider::testing
