// OpenAI's /v1/responses, of which nothing is kept: every request brings its whole conversation.
#include "base/json_text.h"
#include "serve/api/reply_shape.h"

namespace outrider {
namespace {

using nlohmann::json;

class ResponsesShape final : public ReplyShape {
 public:
  using ReplyShape::ReplyShape;

  void begin(HttpReply& reply) override {
    say(reply, "response.created", {{"response", response("in_progress", json::array())}});
    say(reply, "response.in_progress", {{"response", response("in_progress", json::array())}});
    say(reply, "response.output_item.added",
        {{"output_index", 0}, {"item", item("in_progress", json::array())}});
    say(reply, "response.content_part.added", at_text({{"part", text_part("")}}));
  }
  void part(size_t, const Emit& emit, HttpReply& reply) override {
    if (emit.text.empty()) return;
    state_.choices[0].text += emit.text;
    say(reply, "response.output_text.delta", at_text({{"delta", emit.text}, {"logprobs", json::array()}}));
  }
  void end_choice(size_t, HttpReply& reply) override {
    const std::string& text = state_.choices[0].text;
    say(reply, "response.output_text.done", at_text({{"text", text}, {"logprobs", json::array()}}));
    say(reply, "response.content_part.done", at_text({{"part", text_part(text)}}));
    say(reply, "response.output_item.done", {{"output_index", 0}, {"item", whole_item()}});
  }
  void end(HttpReply& reply) override {
    say(reply, is_cut() ? "response.incomplete" : "response.completed", {{"response", whole()}});
    reply.end_events();
  }
  void fail(const std::string& error_body, HttpReply& reply) override {
    json failed = response("failed", json::array());
    const json error = json::parse(error_body)["error"];
    failed["error"] = {{"code", "server_error"}, {"message", error["message"]}};
    say(reply, "response.failed", {{"response", std::move(failed)}});
    reply.end_events();
  }
  json whole() override {
    json out = response(is_cut() ? "incomplete" : "completed", json::array({whole_item()}));
    if (is_cut()) out["incomplete_details"] = {{"reason", "max_output_tokens"}};
    const int64_t prompt = state_.request.prompt_tokens, tokens = state_.tokens();
    out["usage"] = {{"input_tokens", prompt},
                    {"input_tokens_details", {{"cached_tokens", state_.cached_tokens()}}},
                    {"output_tokens", tokens},
                    {"output_tokens_details", {{"reasoning_tokens", 0}}},
                    {"total_tokens", prompt + tokens}};
    return out;
  }

 private:
  bool is_cut() const { return state_.choices[0].reason == FinishReason::kLength; }
  static json text_part(const std::string& text) {
    return {
        {"type", "output_text"}, {"text", text}, {"annotations", json::array()}, {"logprobs", json::array()}};
  }
  json item(const char* status, json content) const {
    return {{"type", "message"},
            {"id", "msg_" + state_.id},
            {"status", status},
            {"role", "assistant"},
            {"content", std::move(content)}};
  }
  json whole_item() const {
    return item(is_cut() ? "incomplete" : "completed", json::array({text_part(state_.choices[0].text)}));
  }
  json response(const char* status, json output) const {
    return {{"id", "resp_" + state_.id},
            {"object", "response"},
            {"created_at", state_.created},
            {"status", status},
            {"error", nullptr},
            {"incomplete_details", nullptr},
            {"instructions", nullptr},
            {"metadata", json::object()},
            {"model", state_.request.model},
            {"output", std::move(output)},
            {"parallel_tool_calls", true},
            {"previous_response_id", nullptr},
            {"store", false},
            {"text", {{"format", {{"type", "text"}}}}},
            {"tool_choice", "none"},
            {"tools", json::array()},
            {"truncation", "disabled"},
            {"usage", nullptr}};
  }
  json at_text(json event) const {
    event["item_id"] = "msg_" + state_.id;
    event["output_index"] = 0;
    event["content_index"] = 0;
    return event;
  }
  void say(HttpReply& reply, const char* type, json event) {
    event["type"] = type;
    event["sequence_number"] = next_++;
    reply.event(json_text(event), type);
  }

  int64_t next_ = 0;
};

}  // namespace

std::unique_ptr<ReplyShape> make_responses_shape(ApiAnswerState& state) {
  return std::make_unique<ResponsesShape>(state);
}

}  // namespace outrider
