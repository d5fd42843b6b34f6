// Arguments of a call that are not written as JSON, turned into JSON as they arrive:
//   (key='a text', other=[1, True, None])         Python
//   {key:<|"|>a text<|"|>,other:[1,true,null]}    Gemma 4
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

enum class Notation : uint8_t { kJson, kPython, kGemma };

inline constexpr std::string_view kGemmaQuote = "<|\"|>";

// A piece of a JSON string. Pieces may end within a character.
std::string json_escaped(std::string_view text);

// Values without a key are left out, and so is what stands behind a value. A key without a value has null.
class LooseArguments {
 public:
  explicit LooseArguments(Notation notation) : notation_(notation) {}

  // Reads as much of `text` as can be told, from the bracket that opens the arguments to the one that closes
  // them, and appends it to `json`. The number of bytes that were read. `is_end`: no more text will come.
  size_t read(std::string_view text, bool is_end, std::string& json);
  // Closes what is open, so that the JSON is valid.
  void close_all(std::string& json);
  bool is_over() const { return is_over_; }

 private:
  // The parts that may follow in the innermost bracket.
  enum class Slot : uint8_t { kKey, kValue, kNothing };
  struct Level {
    char close;  // bracket of JSON
    bool is_empty = true;
  };

  size_t read_text(std::string_view text, bool is_end, std::string& json);
  size_t read_escape(std::string_view text, bool is_end, std::string& json) const;
  size_t read_code(std::string_view text, bool is_end, std::string& json) const;
  size_t read_outside(std::string_view text, bool is_end, std::string& json);
  size_t quote_at(std::string_view text, bool is_end) const;
  void open_text(std::string_view quote, std::string& json);
  void end_text(std::string& json);
  void begin_item(std::string& json);
  void end_key(std::string& json);
  void end_value(std::string& json);
  void open(char bracket, std::string& json);
  void close(std::string& json);
  bool has_escapes() const { return notation_ == Notation::kPython || quote_ == "\""; }

  const Notation notation_;
  std::vector<Level> levels_;  // open brackets
  std::string word_;           // a key, a number or a constant, as far as it has come
  std::string key_;            // of a key in quotes
  bool has_key_ = false;       // key_ is whole
  std::string quote_;          // that ends the open text; empty: none is open
  bool is_raw_ = false;        // a backslash of the open text is no escape
  Slot slot_ = Slot::kValue;
  size_t dropped_ = 0;  // the level from which on all is left out; 0: none
  bool is_over_ = false;
};

// Whether the text behind a tool's name begins arguments: a bracket, and a key or nothing in it. Nothing:
// more must come.
std::optional<bool> begins_arguments(std::string_view text, Notation notation);

}  // namespace outrider
