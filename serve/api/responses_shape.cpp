// OpenAI's /v1/responses. Every request contains its whole conversation.
#include <fmt/format.h>

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
                                     "reasoning",
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
    if (!state_.has_parts()) open_text(reply, Open::kText);
  }
  void part(size_t, const Emit& emit, HttpReply& reply) override {
    if (emit.text.empty()) return;
    if (!state_.has_parts()) return say_text(reply, emit.text);
    for (const ToolEvent& event : state_.events(0, &emit.text)) tell(reply, event);
  }
  void end_choice(size_t, HttpReply& reply) override {
    if (state_.has_parts())
      for (const ToolEvent& event : state_.events(0, nullptr)) tell(reply, event);
    if (output_.empty() && open_ == Open::kNothing) open_text(reply, Open::kText);
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
                    {"output_tokens_details", {{"reasoning_tokens", state_.thought_tokens()}}},
                    {"total_tokens", prompt + tokens}};
    return out;
  }

 private:
  enum class Open { kNothing, kThought, kText, kCall };

  bool is_cut() const { return state_.choices[0].reason == FinishReason::kLength; }
  // The part of a text's item, and the item.
  static json text_part(Open kind, const std::string& text) {
    if (kind == Open::kThought) return {{"type", "reasoning_text"}, {"text", text}};
    return {
        {"type", "output_text"}, {"text", text}, {"annotations", json::array()}, {"logprobs", json::array()}};
  }
  json text_item(Open kind, const char* status, json content) const {
    if (kind == Open::kThought)
      return {{"type", "reasoning"},      {"id", text_id(kind)},           {"status", status},
              {"summary", json::array()}, {"content", std::move(content)}, {"encrypted_content", nullptr}};
    return {{"type", "message"},
            {"id", text_id(kind)},
            {"status", status},
            {"role", "assistant"},
            {"content", std::move(content)}};
  }
  // The id of the open item, or of the first one. Every item has its own id.
  std::string text_id(Open kind) const {
    const int number = kind == Open::kThought ? thoughts_ : texts_;
    const std::string id = (kind == Open::kThought ? "rs_" : "msg_") + state_.id;
    return number < 2 ? id : fmt::format("{}_{}", id, number);
  }
  const char* status() const { return is_cut() ? "incomplete" : "completed"; }
  json call_item(const ReplyContent::Call& call, const char* status) const {
    return {{"type", "function_call"}, {"id", "fc_" + call.id},       {"call_id", call.id},
            {"name", call.name},       {"arguments", call.arguments}, {"status", status}};
  }
  json whole_output() const {
    const ReplyContent content = state_.content(0);
    json output = json::array();
    const auto add = [&](Open kind, const std::string& text, const char* status) {
      output.push_back(text_item(kind, status, json::array({text_part(kind, text)})));
    };
    const bool has_more = !content.text.empty() || !content.calls.empty();
    if (!content.reasoning.empty()) add(Open::kThought, content.reasoning, has_more ? "completed" : status());
    if (!content.text.empty() || (content.calls.empty() && content.reasoning.empty()))
      add(Open::kText, content.text, status());
    for (const ReplyContent::Call& call : content.calls) output.push_back(call_item(call, status()));
    return output;
  }

  // Items come one after the other: thoughts, a text, calls.
  void open_text(HttpReply& reply, Open kind) {
    close(reply);
    open_ = kind;
    text_.clear();
    ++(kind == Open::kThought ? thoughts_ : texts_);
    say(reply, "response.output_item.added",
        {{"output_index", output_.size()}, {"item", text_item(kind, "in_progress", json::array())}});
    say(reply, "response.content_part.added", at_text({{"part", text_part(kind, "")}}));
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
    if (open_ == Open::kThought)
      return say(reply, "response.reasoning_text.delta", at_text({{"delta", text}}));
    say(reply, "response.output_text.delta", at_text({{"delta", text}, {"logprobs", json::array()}}));
  }
  void tell(HttpReply& reply, const ToolEvent& event) {
    switch (event.kind) {
      case ToolEvent::Kind::kThought:
        if (open_ != Open::kThought) open_text(reply, Open::kThought);
        return say_text(reply, event.text);
      case ToolEvent::Kind::kText:
        if (open_ != Open::kText) open_text(reply, Open::kText);
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
    if (open_ == Open::kNothing) return;
    json done;
    if (open_ != Open::kCall) {
      if (open_ == Open::kThought)
        say(reply, "response.reasoning_text.done", at_text({{"text", text_}}));
      else
        say(reply, "response.output_text.done", at_text({{"text", text_}, {"logprobs", json::array()}}));
      say(reply, "response.content_part.done", at_text({{"part", text_part(open_, text_)}}));
      done = text_item(open_, status(), json::array({text_part(open_, text_)}));
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
    open_ = Open::kNothing;
  }
  json response(const char* status, json output) const {
    return response_object({.id = state_.id,
                            .created = state_.created,
                            .model = state_.request.model,
                            .repeated = *state_.request.repeated},
                           status, std::move(output));
  }
  json at_text(json event) const {
    event["item_id"] = text_id(open_);
    event["output_index"] = output_.size();
    event["content_index"] = 0;
    return event;
  }
  void say(HttpReply& reply, const char* type, json event) {
    event["type"] = type;
    event["sequence_number"] = next_++;
    reply.event(json_text(event), type);
  }

  int64_t next_ = 0;
  // State of a stream: the open item, and the finished items.
  Open open_ = Open::kNothing;
  std::string text_;
  int thoughts_ = 0, texts_ = 0;  // that were opened
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
