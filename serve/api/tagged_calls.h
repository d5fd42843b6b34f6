// Tool calls written with tags: XML whose values have no types (Qwen3-Coder, Seed-OSS, GLM, MiniMax), and
// JSON between special tokens (DeepSeek, Kimi), or notations like Python's (LFM2, OLMo 3, Gemma 4). One table
// of tags describes each format. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/loose_arguments.h"
#include "serve/api/tool_format.h"

namespace outrider {

struct ToolEvent;

// The tags of a format, in their order. Without `key` arguments are of a `notation`, and begin with a bracket
// unless it is JSON.
struct CallTags {
  std::string_view begin, call, name_end, key, key_end, value, value_end, call_end, end;
  bool has_lines = false;  // a value stands on lines of its own
  bool is_typed = false;   // behind a key stands whether its value is a text: kIsText or kIsJson
  Notation notation = Notation::kJson;
};

inline constexpr std::string_view kIsText = "\" string=\"true", kIsJson = "\" string=\"false";

// Null where the format is another one.
const CallTags* tags_of(ToolFormat format);

// The JSON types of a parameter, as bits; 0: its schema names none, and its values are texts.
enum JsonType : uint8_t { kText = 1, kNumber = 2, kBoolean = 4, kNull = 8, kNested = 16 };
uint8_t json_type_of(const nlohmann::ordered_json& value);
uint8_t types_of(const nlohmann::ordered_json& parameters, std::string_view key);
// The types of a schema within `root`. Of a union of very many schemas only some count.
uint8_t types_of_value(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& root);
// The part of a schema that a "$ref" in it names; null: there is none.
const nlohmann::ordered_json* target_of(std::string_view reference, const nlohmann::ordered_json& root);

// The length of the longest end of `text` that is a proper beginning of `mark`.
size_t begun(std::string_view text, std::string_view mark);

class TaggedCallParser {
 public:
  explicit TaggedCallParser(const ToolReading& reading);

  void append(std::string_view text, std::vector<ToolEvent>& events);
  void finish(std::vector<ToolEvent>& events);  // no more text will come
  int calls() const { return calls_; }

 private:
  enum class State : uint8_t {
    kText,
    kCalls,      // between calls of a section
    kHead,       // a name, or the end of a section in another notation than JSON
    kKeys,       // between the parameters of a call
    kValue,      // of a parameter
    kArguments,  // JSON, or another notation
    kTail,       // after JSON
  };

  bool step(std::vector<ToolEvent>& events);
  bool read_text(std::vector<ToolEvent>& events);
  bool read_calls(std::vector<ToolEvent>& events);
  bool read_head(std::vector<ToolEvent>& events);
  bool read_json_head(std::vector<ToolEvent>& events);
  bool read_loose_head(std::vector<ToolEvent>& events);
  bool read_loose_arguments(std::vector<ToolEvent>& events);
  bool read_keys(std::vector<ToolEvent>& events);
  bool read_value(std::vector<ToolEvent>& events);
  bool read_arguments(std::vector<ToolEvent>& events);
  bool read_tail();
  void begin_call(std::string name, std::string id, std::vector<ToolEvent>& events);
  void end_call(std::vector<ToolEvent>& events);
  void say(std::string arguments, std::vector<ToolEvent>& events) const;
  void say_value(std::string_view written, std::vector<ToolEvent>& events) const;
  void show(std::string text, std::vector<ToolEvent>& events);
  void take(size_t length);
  bool give_up(std::vector<ToolEvent>& events);

  const ToolReading reading_;
  const CallTags& tags_;
  State state_ = State::kText;
  std::string pending_;     // unparsed
  std::string taken_;       // parsed as the beginning of a section without a call so far
  std::string blank_;       // leading blanks, which are not shown before a call
  bool has_shown_ = false;  // non-blank text was shown
  bool has_keys_ = false;   // of the open call
  bool is_begun_ = false;   // the first line break of the open value was read
  size_t scanned_ = 0;      // bytes of pending_ that contain no end of the value
  uint8_t types_ = 0;       // of the open value
  int depth_ = 0;           // of JSON
  bool in_text_ = false, is_escaped_ = false;
  std::optional<LooseArguments> loose_;  // of the open or the last call
  size_t tool_ = 0;  // of the open call, in reading_.names; their number: none
  int calls_ = 0;
};

}  // namespace outrider
