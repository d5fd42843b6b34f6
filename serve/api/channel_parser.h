// Parts a model's text, while it is generated, into the messages of its channels (gpt-oss, the harmony
// format):
//   <|channel|>analysis<|message|>TEXT<|end|><|start|>assistant<|channel|>final<|message|>TEXT
// analysis is reasoning, a message to functions.NAME a call, and any other text the answer. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/tool_parser.h"

namespace outrider {

// The marks, which are special tokens.
namespace channel_marks {
inline constexpr std::string_view kStart = "<|start|>", kEnd = "<|end|>", kMessage = "<|message|>",
                                  kChannel = "<|channel|>", kConstrain = "<|constrain|>", kCall = "<|call|>",
                                  kReturn = "<|return|>";
inline constexpr std::array<std::string_view, 7> kAll = {kStart,     kEnd,  kMessage, kChannel,
                                                         kConstrain, kCall, kReturn};
}  // namespace channel_marks

struct ChannelReading {
  std::string opening;         // what the prompt has of the message that the text continues
  bool parts_thoughts = true;  // else they are part of the answer
  bool tells_thoughts = true;  // else thoughts are dropped
  bool may_call = false;       // tools are offered
};

class ChannelParser {
 public:
  explicit ChannelParser(ChannelReading reading);

  // Text that may be part of a mark waits for more.
  void append(std::string_view text, std::vector<ToolEvent>& events);
  void finish(std::vector<ToolEvent>& events);  // no more text will come
  int calls() const { return calls_; }
  bool is_thinking() const { return in_body_ && kind_ == Kind::kThought; }

 private:
  enum class Kind : uint8_t { kThought, kText, kCall };
  bool step(bool is_end, std::vector<ToolEvent>& events);
  bool read_header(bool is_end, std::vector<ToolEvent>& events);
  bool read_body(bool is_end, std::vector<ToolEvent>& events);
  bool may_be_header() const;
  void begin(std::string_view header, std::vector<ToolEvent>& events);
  void end(std::vector<ToolEvent>& events);
  void say(std::string text, std::vector<ToolEvent>& events);

  const ChannelReading reading_;
  std::string pending_;      // unparsed
  bool in_body_ = false;     // behind <|message|>, or in text without channels
  bool has_role_ = false;    // of the message whose header is read
  Kind kind_ = Kind::kText;  // of the open message
  bool is_new_ = false;      // the open message has no event yet
  bool has_thought_ = false, has_said_ = false;
  int calls_ = 0;
};

// Counts the tokens of thoughts.
class ChannelCounter {
 public:
  explicit ChannelCounter(const ChannelReading& reading) : parser_(reading) {}
  void add(std::string_view text);  // of the next token
  int64_t count() const { return count_; }

 private:
  ChannelParser parser_;
  int64_t count_ = 0;
};

// Whether a chat template writes channels.
bool has_channels(std::string_view chat_template);
// The beginning of the message that an answer to this prompt continues.
std::string channel_opening(std::span<const TokenId> prompt, const Tokenizer& tokenizer);

}  // namespace outrider
