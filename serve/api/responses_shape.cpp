// OpenAI's /v1/responses. Every request contains its whole conversation.
#include <utility>

#include "base/json_text.h"
#include "serve/api/reply_shape.h"

namespace outrider {
namespace {

using nlohmann::json;

// Fields repeated as they were sent. Others are not repeated (store), or have the server's value (model).
constexpr const char* kRepeated[] = {"instructions",
                                     "max_output_tokens",
                                     "metadata",
                                     "parallel_tool_calls",
                                     "temperature",
                                     "text",
                                     "tool_choice",
                                     "tools",
                                     "top_p",
                                     "user",
                                     "safety_identifier",
                                     "prompt_cache_key"};

constexpr size_t kMaxRepeated = size_t{16} << 10;  // bytes of a value, which two events repeat

class ResponsesShape final : public ReplyShape {
 public:
  using ReplyShape::ReplyShape;

  void begin(HttpReply& reply) override {
    say(reply, "response.created", {{"response", response("in_progress", json::array())}});
    say(reply, "response.in_progress", {{"response", response("in_progress", json::array())}});
    if (!state_.request.tools) open_text(reply);
  }
  void part(size_t, const Emit& emit, HttpReply& reply) override {
    if (emit.text.empty()) return;
    if (!state_.request.tools) return say_text(reply, emit.text);
    for (const ToolEvent& event : state_.events(0, &emit.text)) tell(reply, event);
  }
  void end_choice(size_t, HttpReply& reply) override {
    if (state_.request.tools)
      for (const ToolEvent& event : state_.events(0, nullptr)) tell(reply, event);
    if (output_.empty() && open_ == Open::kNothing) open_text(reply);
    close(reply);
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
    json out = response(is_cut() ? "incomplete" : "completed", output_.empty() ? whole_output() : output_);
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
  const char* status() const { return is_cut() ? "incomplete" : "completed"; }
  json call_item(const ReplyContent::Call& call, const char* status) const {
    return {{"type", "function_call"}, {"id", "fc_" + call.id},       {"call_id", call.id},
            {"name", call.name},       {"arguments", call.arguments}, {"status", status}};
  }
  json whole_output() const {
    const ReplyContent content = state_.content(0);
    json output = json::array();
    if (!content.text.empty() || content.calls.empty())
      output.push_back(item(status(), json::array({text_part(content.text)})));
    for (const ReplyContent::Call& call : content.calls) output.push_back(call_item(call, status()));
    return output;
  }

  // Items come one after the other: a text, then calls.
  void open_text(HttpReply& reply) {
    close(reply);
    open_ = Open::kText;
    text_.clear();
    say(reply, "response.output_item.added",
        {{"output_index", output_.size()}, {"item", item("in_progress", json::array())}});
    say(reply, "response.content_part.added", at_text({{"part", text_part("")}}));
  }
  void open_call(HttpReply& reply, ReplyContent::Call call) {
    close(reply);
    open_ = Open::kCall;
    call_ = std::move(call);
    say(reply, "response.output_item.added",
        {{"output_index", output_.size()}, {"item", call_item(call_, "in_progress")}});
  }
  void say_text(HttpReply& reply, const std::string& text) {
    text_ += text;
    say(reply, "response.output_text.delta", at_text({{"delta", text}, {"logprobs", json::array()}}));
  }
  void tell(HttpReply& reply, const ToolEvent& event) {
    switch (event.kind) {
      case ToolEvent::Kind::kThought:  // of chats alone
      case ToolEvent::Kind::kText:
        if (open_ != Open::kText) open_text(reply);
        return say_text(reply, event.text);
      case ToolEvent::Kind::kCall:
        return open_call(reply, {.id = state_.call_id(0, event), .name = event.text, .arguments = {}});
      case ToolEvent::Kind::kArguments:
        call_.arguments += event.text;
        return say(reply, "response.function_call_arguments.delta",
                   {{"item_id", "fc_" + call_.id}, {"output_index", output_.size()}, {"delta", event.text}});
    }
  }
  void close(HttpReply& reply) {
    const Open open = std::exchange(open_, Open::kNothing);
    if (open == Open::kNothing) return;
    json done;
    if (open == Open::kText) {
      say(reply, "response.output_text.done", at_text({{"text", text_}, {"logprobs", json::array()}}));
      say(reply, "response.content_part.done", at_text({{"part", text_part(text_)}}));
      done = item(status(), json::array({text_part(text_)}));
    } else {
      say(reply, "response.function_call_arguments.done",
          {{"item_id", "fc_" + call_.id},
           {"output_index", output_.size()},
           {"name", call_.name},
           {"arguments", call_.arguments}});
      done = call_item(call_, status());
    }
    say(reply, "response.output_item.done", {{"output_index", output_.size()}, {"item", done}});
    output_.push_back(std::move(done));
  }
  json response(const char* status, json output) const {
    return response_object({.id = state_.id,
                            .created = state_.created,
                            .model = state_.request.model,
                            .repeated = *state_.request.repeated},
                           status, std::move(output));
  }
  json at_text(json event) const {
    event["item_id"] = "msg_" + state_.id;
    event["output_index"] = output_.size();
    event["content_index"] = 0;
    return event;
  }
  void say(HttpReply& reply, const char* type, json event) {
    event["type"] = type;
    event["sequence_number"] = next_++;
    reply.event(json_text(event), type);
  }

  enum class Open { kNothing, kText, kCall };

  int64_t next_ = 0;
  // State of a stream: the open item, and the finished items.
  Open open_ = Open::kNothing;
  std::string text_;
  ReplyContent::Call call_;
  json output_ = json::array();
};

}  // namespace

json response_object(const ResponseHead& head, const char* status, json output) {
  json out{{"id", "resp_" + head.id},
           {"object", "response"},
           {"created_at", head.created},
           {"status", status},
           {"background", false},
           {"error", nullptr},
           {"incomplete_details", nullptr},
           {"instructions", nullptr},
           {"max_output_tokens", nullptr},
           {"metadata", json::object()},
           {"model", head.model},
           {"output", std::move(output)},
           {"parallel_tool_calls", true},
           {"previous_response_id", nullptr},
           {"store", false},
           {"temperature", nullptr},
           {"text", {{"format", {{"type", "text"}}}}},
           {"tool_choice", "auto"},
           {"tools", json::array()},
           {"top_p", nullptr},
           {"truncation", "disabled"},
           {"usage", nullptr}};
  if (head.repeated.is_object()) out.update(head.repeated);
  return out;
}

json repeated_in_response(const json& body) {
  json out = json::object();
  for (const char* key : kRepeated) {
    const auto at = body.find(key);
    if (at != body.end() && !at->is_null() && json_text(*at).size() <= kMaxRepeated) out[key] = *at;
  }
  return out;
}

std::unique_ptr<ReplyShape> make_responses_shape(ApiAnswerState& state) {
  return std::make_unique<ResponsesShape>(state);
}

}  // namespace outrider
