// Anthropic's /v1/messages.
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
    say(reply, "content_block_start", {{"index", 0}, {"content_block", {{"type", "text"}, {"text", ""}}}});
  }
  void part(size_t, const Emit& emit, HttpReply& reply) override {
    if (emit.text.empty()) return;
    say(reply, "content_block_delta",
        {{"index", 0}, {"delta", {{"type", "text_delta"}, {"text", emit.text}}}});
  }
  void end_choice(size_t, HttpReply& reply) override {
    say(reply, "content_block_stop", {{"index", 0}});
    say(reply, "message_delta",
        {{"delta", {{"stop_reason", stop_reason()}, {"stop_sequence", nullptr}}}, {"usage", usage()}});
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
    json out = message(json::array({{{"type", "text"}, {"text", state_.choices[0].text}}}), stop_reason());
    out["usage"] = usage();
    return out;
  }

 private:
  // Their input tokens are those that were not in the cache.
  json usage() const {
    const int64_t cached = state_.cached_tokens();
    return {{"input_tokens", state_.request.prompt_tokens - cached},
            {"cache_read_input_tokens", cached},
            {"cache_creation_input_tokens", 0},
            {"output_tokens", state_.tokens()}};
  }
  const char* stop_reason() const {
    return state_.choices[0].reason == FinishReason::kLength ? "max_tokens" : "end_turn";
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
};

}  // namespace

std::unique_ptr<ReplyShape> make_messages_shape(ApiAnswerState& state) {
  return std::make_unique<MessagesShape>(state);
}

}  // namespace outrider
