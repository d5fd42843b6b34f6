// Finds tool calls in a model's text while it is generated: names as soon as they are complete, arguments
// piece by piece, exactly as the model wrote them. Text that only looks like a call stays text, and later
// calls are still found. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/api/tagged_calls.h"
#include "serve/api/tool_format.h"

namespace outrider {

struct ToolEvent {
  enum class Kind : uint8_t {
    kText,       // `text` is shown
    kCall,       // call `index` of tool `text` begins
    kArguments,  // `text` continues the arguments of call `index`
    kThought,    // `text` is reasoning (thought_parser.h); not of this parser
  };
  Kind kind = Kind::kText;
  int index = 0;
  std::string text;
  std::string id = {};  // of kCall: what the model named the call; empty: nothing
};

// Brackets and strings of JSON that is read in pieces.
struct JsonNesting {
  int depth = 0;
  bool in_text = false, is_escaped = false;
  bool breaks_line = false;  // a string contains a line break, which JSON forbids
  // Whether the value, an object or a list, ends with this character.
  bool ends_at(char c);
};

// An answer that is one JSON object with a call of an offered tool, which models of Hermes' format write at
// times, alone or as a block. Where a grammar exists, such an object is what it allows as text.
//   ```json
//   {"name": "f", "arguments": {...}}
//   ```
class FencedCall {
 public:
  explicit FencedCall(std::vector<std::string> names) : names_(std::move(names)) {}

  // Whether the text may still become such an answer.
  bool append(std::string_view text);
  const std::string& text() const { return text_; }
  // The call of a whole text: its name and its arguments.
  std::optional<std::pair<std::string, std::string>> call() const;

 private:
  bool read_name();
  bool is_end(std::string_view rest) const;

  const std::vector<std::string> names_;
  std::string text_;
  size_t scanned_ = 0;  // of the text; 0: the name is incomplete
  JsonNesting nesting_;
  bool is_whole_ = false;
};

class ToolCallParser {
 public:
  explicit ToolCallParser(ToolReading reading);

  void append(std::string_view text, std::vector<ToolEvent>& events);
  void finish(std::vector<ToolEvent>& events);  // no more text will come
  int calls() const { return tagged_ ? tagged_->calls() : calls_; }

 private:
  enum class State : uint8_t {
    kText,
    kBegin,      // of a call
    kArguments,  // within them
    kTail,       // after the arguments, inside the object of the call
    kBetween,    // after a call
  };

  // The end of a value in pending_.
  struct Extent {
    size_t end = 0;
    bool is_whole = false;    // the value ends there
    bool is_damaged = false;  // the end mark of a call stands there, where no value can contain it
  };

  void end_fenced(std::vector<ToolEvent>& events);
  bool step(std::vector<ToolEvent>& events);
  bool read_text(std::vector<ToolEvent>& events);
  bool read_begin(std::vector<ToolEvent>& events);
  bool read_named(std::vector<ToolEvent>& events);
  bool read_object(std::vector<ToolEvent>& events);
  bool read_whole_object(std::vector<ToolEvent>& events);
  bool read_arguments(std::vector<ToolEvent>& events);
  bool read_tail();
  bool read_between();
  Extent extent(size_t from);
  bool is_offered(std::string_view name) const;
  bool is_marked() const { return !form_.begin.empty(); }
  bool is_mistral() const;
  void show(std::string text, std::vector<ToolEvent>& events);
  void begin_call(std::string name, std::vector<ToolEvent>& events);
  void take(size_t length);
  void give_up(std::vector<ToolEvent>& events);

  const ToolReading reading_;
  const JsonCalls form_;
  std::optional<TaggedCallParser> tagged_;  // does all the work, if the format has tags
  std::optional<FencedCall> fenced_;        // the text so far, while it may be one
  State state_ = State::kText;
  std::string pending_;     // unparsed
  std::string taken_;       // parsed as the beginning of a call whose name is still incomplete
  std::string blank_;       // leading blanks, which are not shown before a call
  bool has_shown_ = false;  // non-blank text was shown
  bool is_object_ = true;   // arguments are inside an object of the call
  bool in_list_ = false;    // of calls
  bool is_over_ = false;    // the remaining text is shown as it is
  JsonNesting nesting_;     // of the parsed part
  size_t scanned_ =
      0;  // bytes of pending_ that nesting_ has seen, of an object that is read when it is whole
  int calls_ = 0, begun_ = 0;  // calls, and what may have been one
};

}  // namespace outrider
