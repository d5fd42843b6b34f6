// Arguments of a call that are not written as JSON, turned into JSON as they arrive:
//   (key='a text', other=[1, True, None])         Python
//   {key:<|"|>a text<|"|>,other:[1,true,null]}    Gemma 4
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace outrider {

enum class Notation : uint8_t { kJson, kPython, kGemma };

inline constexpr std::string_view kGemmaQuote = "<|\"|>";

// A piece of a JSON string. Pieces may end within a character.
std::string json_escaped(std::string_view text);

class LooseArguments {
 public:
  explicit LooseArguments(Notation notation) : notation_(notation) {}

  // Reads as much of `text` as can be told, from the bracket that opens the arguments to the one that closes
  // them, and appends it to `json`. The number of bytes that were read. `is_end`: no more text will come.
  size_t read(std::string_view text, bool is_end, std::string& json);
  bool is_over() const { return is_over_; }

 private:
  size_t read_text(std::string_view text, bool is_end, std::string& json);
  size_t read_escape(std::string_view text, bool is_end, std::string& json) const;
  size_t read_outside(std::string_view text, bool is_end, std::string& json);
  size_t quote_at(std::string_view text, bool is_end);
  void begin_value(std::string& json);
  void end_word(std::string& json);
  void open(char bracket, std::string& json);
  void close(std::string& json);

  const Notation notation_;
  std::string nest_;          // the brackets of JSON that close what is open
  std::string word_;          // a key, a number or a constant, as far as it has come
  std::string quote_;         // that ends the open text; empty: none is open
  bool is_key_ = false;       // a key of an object comes
  bool needs_comma_ = false;  // before the next value
  bool is_over_ = false;
};

}  // namespace outrider
