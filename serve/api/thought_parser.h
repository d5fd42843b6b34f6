// Parts a model's text, while it is generated, into what it thinks, between marks such as <think> and
// </think>, and what it answers. Thoughts are at the text's beginning. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

struct ThoughtMarks {
  std::string_view open = "<think>", close = "</think>";
};

// How the thoughts of an answer are found.
struct ThoughtReading {
  bool is_open = false;  // the prompt ends with the opening mark
  bool is_told = true;   // else thoughts are dropped
  ThoughtMarks marks = {};
};

struct TextPart {
  bool is_thought = false;
  std::string text;  // not empty
};

class ThoughtParser {
 public:
  explicit ThoughtParser(ThoughtReading reading)
      : reading_(reading), state_(reading.is_open ? State::kOpen : State::kBegin) {}

  // Blanks around thoughts are left out. What may be part of a mark, or a blank at the end, waits for more.
  void append(std::string_view text, std::vector<TextPart>& parts);
  void finish(std::vector<TextPart>& parts);  // no more text will come
  bool is_thinking() const { return state_ == State::kOpen || state_ == State::kThought; }

 private:
  enum class State : uint8_t {
    kBegin,    // before the first character that is no blank
    kOpen,     // behind the opening mark, before the first thought
    kThought,  // within thoughts
    kClosed,   // behind the closing mark, before the answer
    kAnswer,
  };
  bool step(bool is_end, std::vector<TextPart>& parts);
  bool read_thought(bool is_end, std::vector<TextPart>& parts);

  const ThoughtReading reading_;
  State state_;
  std::string pending_;  // not told yet
};

// Counts the tokens of thoughts, with those of their marks.
class ThoughtCounter {
 public:
  explicit ThoughtCounter(ThoughtReading reading) : parser_(reading) {}
  void add(std::string_view text);  // of the next token
  int64_t count() const { return count_; }

 private:
  ThoughtParser parser_;
  int64_t tokens_ = 0, count_ = 0;
};

// The marks that models of a chat template write around thoughts; nothing: they write none.
std::optional<ThoughtMarks> thought_marks(std::string_view chat_template);

}  // namespace outrider
