// Finds calls of tools in the text of a model while it comes: names as soon as they are whole, arguments
// piece by piece, exactly as the model wrote them. Text that only looks like a call stays text, and calls
// behind it are found. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/api/tool_format.h"

namespace outrider {

struct ToolEvent {
  enum class Kind : uint8_t {
    kText,       // `text` is shown
    kCall,       // call `index` of tool `text` begins
    kArguments,  // `text` goes behind the arguments of call `index`
  };
  Kind kind = Kind::kText;
  int index = 0;
  std::string text;
};

// Brackets and texts of JSON that is read a piece at a time.
struct JsonNesting {
  int depth = 0;
  bool in_text = false, is_escaped = false;
  bool breaks_line = false;  // the text goes on behind a line break, which JSON does not allow
  // Whether the value, an object or a list, ends with this character.
  bool ends_at(char c);
};

class ToolCallParser {
 public:
  explicit ToolCallParser(ToolReading reading) : reading_(std::move(reading)) {}

  void append(std::string_view text, std::vector<ToolEvent>& events);
  void finish(std::vector<ToolEvent>& events);  // no more text will come
  int calls() const { return calls_; }

 private:
  enum class State : uint8_t {
    kText,
    kBegin,      // of a call
    kArguments,  // within them
    kTail,       // behind them, in the object of the call
    kBetween,    // behind a call
  };

  // How far a value goes on in pending_.
  struct Extent {
    size_t end = 0;
    bool is_whole = false;    // it ends there
    bool is_damaged = false;  // the mark of a call's end stands there, where no value can have it
  };

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
  bool is_marked() const { return !call_begin(reading_.format).empty(); }
  void show(std::string text, std::vector<ToolEvent>& events);
  void begin_call(std::string name, std::vector<ToolEvent>& events);
  void take(size_t length);
  void give_up(std::vector<ToolEvent>& events);

  const ToolReading reading_;
  State state_ = State::kText;
  std::string pending_;     // not read yet
  std::string taken_;       // read as the beginning of a call whose name is not known yet
  std::string blank_;       // at the beginning, which is not shown where a call follows
  bool has_shown_ = false;  // something that is not blank
  bool is_object_ = true;   // arguments stand in an object of the call
  bool is_over_ = false;    // the rest is text
  JsonNesting nesting_;     // of what is read
  size_t scanned_ =
      0;  // bytes of pending_ that nesting_ has seen, of an object that is read when it is whole
  int calls_ = 0, begun_ = 0;  // calls, and what may have been one
};

}  // namespace outrider
