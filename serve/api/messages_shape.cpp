// Anthropic's /v1/messages.
#include <fmt/format.h>

#include <utility>

#include "base/hash.h"
#include "base/json_file.h"
#include "base/json_text.h"
#include "serve/api/reply_shape.h"

namespace outrider {
namespace {

using nlohmann::json;

class MessagesShape final : public ReplyShape {
 public:
  using ReplyShape::ReplyShape;

  void begin(HttpReply& reply) override {
    say(reply, "message_start", {{"message", message(json::array(), nullptr)}});
    if (!state_.has_parts()) open(reply, {{"type", "text"}, {"text", ""}});
  }
  void part(size_t, const Emit& emit, HttpReply& reply) override {
    if (emit.text.empty()) return;
    if (!state_.has_parts()) return say_text(reply, emit.text);
    for (const ToolEvent& event : state_.events(0, &emit.text)) tell(reply, event);
  }
  void end_choice(size_t, HttpReply& reply) override {
    if (state_.has_parts())
      for (const ToolEvent& event : state_.events(0, nullptr)) tell(reply, event);
    if (!is_open_ && blocks_ == 0) open(reply, {{"type", "text"}, {"text", ""}});
    close(reply);
    say(reply, "message_delta",
        {{"delta", {{"stop_reason", stop_reason(state_.has_called(0))}, {"stop_sequence", stop_sequence()}}},
         {"usage", usage()}});
  }
  void end(HttpReply& reply) override {
    say(reply, "message_stop", json::object());
    reply.end_events();
  }
  void fail(const std::string& error_body, HttpReply& reply) override {
    say(reply, "error", json::parse(error_body));
    reply.end_events();
  }
  json whole() override {
    const ReplyContent all = state_.content(0);
    json content = json::array();
    if (!all.reasoning.empty())
      content.push_back(
          {{"type", "thinking"}, {"thinking", all.reasoning}, {"signature", signature_of(all.reasoning)}});
    if (!all.text.empty() || (all.calls.empty() && all.reasoning.empty()))
      content.push_back({{"type", "text"}, {"text", all.text}});
    for (const ReplyContent::Call& call : all.calls) {
      const auto input = parse_json(call.arguments, "the arguments");
      const bool is_whole = input.ok() && input->is_object();  // false: it was cut or damaged
      content.push_back({{"type", "tool_use"},
                         {"id", call.id},
                         {"name", call.name},
                         {"input", is_whole ? *input : json::object()}});
    }
    json out = message(std::move(content), stop_reason(!all.calls.empty()));
    out["stop_sequence"] = stop_sequence();
    out["usage"] = usage();
    return out;
  }

 private:
  // Anthropic's input tokens exclude cached ones.
  json usage() const {
    const int64_t cached = state_.cached_tokens();
    json out{{"input_tokens", state_.request.prompt_tokens - cached},
             {"cache_read_input_tokens", cached},
             {"cache_creation_input_tokens", 0},
             {"output_tokens", state_.tokens()}};
    if (state_.request.thoughts || state_.request.channels)
      out["output_tokens_details"] = {{"thinking_tokens", state_.thought_tokens()}};
    return out;
  }
  const char* stop_reason(bool has_called) const {
    if (state_.choices[0].reason == FinishReason::kLength) return "max_tokens";
    if (!state_.choices[0].stop.empty()) return "stop_sequence";
    return has_called ? "tool_use" : "end_turn";
  }
  json stop_sequence() const {
    const std::string& stop = state_.choices[0].stop;
    return stop.empty() ? json() : json(stop);
  }
  // Clients send it back with the thoughts, and some drop thoughts without one. It is not checked.
  static std::string signature_of(std::string_view thoughts) {
    uint64_t hash = 0;
    for (const char c : thoughts) hash = hash_combine(hash, static_cast<unsigned char>(c));
    return fmt::format("{:016x}", hash);
  }
  // Blocks come one after the other: thoughts, a text, calls.
  void open(HttpReply& reply, json block) {
    close(reply);
    type_ = block["type"];
    is_open_ = true;
    thoughts_.clear();
    say(reply, "content_block_start", {{"index", blocks_}, {"content_block", std::move(block)}});
  }
  void close(HttpReply& reply) {
    if (!std::exchange(is_open_, false)) return;
    if (type_ == "thinking")
      say(reply, "content_block_delta",
          {{"index", blocks_},
           {"delta", {{"type", "signature_delta"}, {"signature", signature_of(thoughts_)}}}});
    say(reply, "content_block_stop", {{"index", blocks_++}});
  }
  void say_text(HttpReply& reply, const std::string& text) {
    say(reply, "content_block_delta",
        {{"index", blocks_}, {"delta", {{"type", "text_delta"}, {"text", text}}}});
  }
  void tell(HttpReply& reply, const ToolEvent& event) {
    switch (event.kind) {
      case ToolEvent::Kind::kThought:
        if (!is_open_ || type_ != "thinking")
          open(reply, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
        thoughts_ += event.text;
        return say(reply, "content_block_delta",
                   {{"index", blocks_}, {"delta", {{"type", "thinking_delta"}, {"thinking", event.text}}}});
      case ToolEvent::Kind::kText:
        if (!is_open_ || type_ != "text") open(reply, {{"type", "text"}, {"text", ""}});
        return say_text(reply, event.text);
      case ToolEvent::Kind::kCall:
        return open(reply, {{"type", "tool_use"},
                            {"id", state_.call_id(0, event)},
                            {"name", event.text},
                            {"input", json::object()}});
      case ToolEvent::Kind::kArguments:
        return say(
            reply, "content_block_delta",
            {{"index", blocks_}, {"delta", {{"type", "input_json_delta"}, {"partial_json", event.text}}}});
    }
  }
  json message(json content, json stop_reason) const {
    return {{"id", "msg_" + state_.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", state_.request.model},
            {"content", std::move(content)},
            {"stop_reason", std::move(stop_reason)},
            {"stop_sequence", nullptr},
            {"usage", {{"input_tokens", state_.request.prompt_tokens}, {"output_tokens", 0}}}};
  }
  static void say(HttpReply& reply, const char* type, json event) {
    event["type"] = type;
    reply.event(json_text(event), type);
  }

  int blocks_ = 0;  // number of closed blocks
  bool is_open_ = false;
  std::string type_;      // of the open block
  std::string thoughts_;  // of the open block
};

}  // namespace

std::unique_ptr<ReplyShape> make_messages_shape(ApiAnswerState& state) {
  return std::make_unique<MessagesShape>(state);
}

}  // namespace outrider
