// Completions and chat completions.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "base/hash.h"
#include "base/json_text.h"
#include "serve/api/format.h"
#include "serve/api/reply_shape.h"

namespace outrider {
namespace {

using nlohmann::json;

class OpenAiShape final : public ReplyShape {
 public:
  using ReplyShape::ReplyShape;

  void begin(HttpReply&) override {}

  void part(size_t index, const Emit& emit, HttpReply& reply) override {
    ApiChoice& choice = state_.choices[index];
    const bool tells_ids = state_.request.return_token_ids && !emit.ids.empty();
    if (emit.text.empty() && emit.logprobs.empty() && !tells_ids) return;  // the text is held back
    begin_choice(index, reply);
    json logprobs = logprobs_of(choice, emit.logprobs);
    if (state_.has_parts()) {
      json ids = tells_ids ? ids_json(emit.ids) : json();
      return stream_events(index, state_.events(index, &emit.text), std::move(logprobs), std::move(ids),
                           reply);
    }
    json out = is_chat() ? choice_json(index, "delta", {{"content", emit.text}}, std::move(logprobs), nullptr)
                         : choice_json(index, "text", emit.text, std::move(logprobs), nullptr);
    if (state_.request.return_token_ids) out["token_ids"] = ids_json(emit.ids);
    stream(std::move(out), reply);
  }

  void end_choice(size_t index, HttpReply& reply) override {
    begin_choice(index, reply);
    if (state_.has_parts()) stream_events(index, state_.events(index, nullptr), nullptr, nullptr, reply);
    const json reason = reason_of(index, state_.has_called(index));
    stream(is_chat() ? choice_json(index, "delta", json::object(), nullptr, reason)
                     : choice_json(index, "text", "", nullptr, reason),
           reply);
  }

  void end(HttpReply& reply) override {
    if (state_.request.include_usage) stream(nullptr, reply, true);
    reply.event("[DONE]");
    reply.end_events();
  }

  void fail(const std::string& error_body, HttpReply& reply) override {
    reply.event(error_body);
    reply.end_events();
  }

  json whole() override {
    json reply = base();
    reply["choices"] = json::array();
    for (size_t i = 0; i < state_.choices.size(); ++i) reply["choices"].push_back(whole_choice(i));
    const ApiRequest& request = state_.request;
    if (is_chat() && request.return_token_ids) reply["prompt_token_ids"] = ids_json(request.prompt_ids[0]);
    if (is_chat() && request.prompt_logprobs >= 0) reply["prompt_logprobs"] = scored_prompt(0);
    reply["usage"] = whole_usage();
    reply["metrics"] = metrics();
    return reply;
  }

 private:
  bool is_chat() const { return state_.request.kind == ApiKind::kChat; }

  json whole_choice(size_t index) {
    const ApiRequest& request = state_.request;
    ApiChoice& choice = state_.choices[index];
    json logprobs = nullptr;
    if (request.echoes_logprobs) {
      logprobs = echoed_logprobs(choice, index);
      append(logprobs, logprobs_of(choice, choice.logprobs));
    } else {
      logprobs = logprobs_of(choice, choice.logprobs);
    }
    const std::string text = (request.echo.empty() ? "" : request.echo[index]) + choice.text;
    json out = is_chat() ? chat_choice(index, std::move(logprobs))
                         : choice_json(index, "text", text, std::move(logprobs), reason_of(index, false));
    if (request.return_token_ids) out["token_ids"] = ids_json(choice.ids);
    if (!is_chat() && request.return_token_ids) out["prompt_token_ids"] = ids_json(request.prompt_ids[index]);
    if (!is_chat() && request.prompt_logprobs >= 0) out["prompt_logprobs"] = scored_prompt(index);
    return out;
  }

  json reason_of(size_t index, bool has_called) const {
    const FinishReason reason = state_.choices[index].reason;
    return has_called && reason == FinishReason::kStop ? "tool_calls" : finish_reason_name(reason);
  }

  json chat_choice(size_t index, json logprobs) const {
    const ReplyContent content = state_.content(index);
    json message{{"role", "assistant"}, {"content", content.text}, {"refusal", nullptr}};
    if (!content.reasoning.empty()) message["reasoning_content"] = content.reasoning;
    if (!content.calls.empty() && content.text.empty()) message["content"] = nullptr;
    for (const ReplyContent::Call& call : content.calls)
      message["tool_calls"].push_back({{"id", call.id},
                                       {"type", "function"},
                                       {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    return choice_json(index, "message", std::move(message), std::move(logprobs),
                       reason_of(index, !content.calls.empty()));
  }

  // Sends an event for each; log-probabilities and ids come with the first one.
  void stream_events(size_t index, std::vector<ToolEvent> events, json logprobs, json ids, HttpReply& reply) {
    if (events.empty() && (!logprobs.is_null() || !ids.is_null())) events.emplace_back();
    for (const ToolEvent& event : events) {
      json out =
          choice_json(index, "delta", delta_of(index, event), std::exchange(logprobs, nullptr), nullptr);
      if (const json told = std::exchange(ids, nullptr); !told.is_null()) out["token_ids"] = told;
      stream(std::move(out), reply);
    }
  }

  json delta_of(size_t index, const ToolEvent& event) const {
    if (event.kind == ToolEvent::Kind::kText) return {{"content", event.text}};
    if (event.kind == ToolEvent::Kind::kThought) return {{"reasoning_content", event.text}};
    json call{{"index", event.index}};
    if (event.kind == ToolEvent::Kind::kCall) {
      call["id"] = state_.call_id(index, event);
      call["type"] = "function";
      call["function"] = {{"name", event.text}, {"arguments", ""}};
    } else {
      call["function"] = {{"arguments", event.text}};
    }
    return {{"tool_calls", json::array({std::move(call)})}};
  }

  // Appends the lists of `more` to those of `logprobs`.
  static void append(json& logprobs, const json& more) {
    if (!more.is_object()) return;
    for (auto& [key, list] : logprobs.items()) list.insert(list.end(), more[key].begin(), more[key].end());
  }
  json echoed_logprobs(ApiChoice& choice, size_t index) const {
    return echo_logprobs(state_.request.prompt_ids[index].front(), choice.prompt_logprobs,
                         state_.request.logprobs, state_.tokenizer, choice.text_offset, token_names());
  }
  json scored_prompt(size_t index) const {
    return prompt_logprobs_json(state_.choices[index].prompt_logprobs, state_.request.prompt_logprobs,
                                state_.tokenizer);
  }

  void begin_choice(size_t index, HttpReply& reply) {
    ApiChoice& choice = state_.choices[index];
    const ApiRequest& request = state_.request;
    if (std::exchange(choice.has_begun, true)) return;
    json first;
    if (is_chat())
      first = choice_json(index, "delta", {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
    else if (!request.echo.empty())
      first = choice_json(index, "text", request.echo[index],
                          request.echoes_logprobs ? echoed_logprobs(choice, index) : json(), nullptr);
    else if (request.return_token_ids)
      first = choice_json(index, "text", "", nullptr, nullptr);
    if (first.is_null()) return;
    // At the place where whole answers have them: beside the choices for chats, inside each choice for
    // completions.
    json beside;
    if (request.return_token_ids)
      (is_chat() ? beside : first)["prompt_token_ids"] = ids_json(request.prompt_ids[index]);
    stream(std::move(first), reply, false, std::move(beside));
  }

  // `beside`: further members of the event; null: none.
  void stream(json choice, HttpReply& reply, bool is_last = false, json beside = nullptr) const {
    json event = base();
    if (beside.is_object()) event.update(beside);
    event["choices"] = json::array();
    if (!is_last) event["choices"].push_back(std::move(choice));
    if (is_last || state_.request.continuous_usage)
      event["usage"] = is_last ? whole_usage() : usage();
    else if (state_.request.include_usage)
      event["usage"] = nullptr;
    if (is_last) event["metrics"] = metrics();
    reply.event(json_text(event));
  }

  json base() const {
    const char* const object = !is_chat()              ? "text_completion"
                               : state_.request.stream ? "chat.completion.chunk"
                                                       : "chat.completion";
    json reply{{"id", (is_chat() ? "chatcmpl-" : "cmpl-") + state_.id},
               {"object", object},
               {"created", state_.created},
               {"model", state_.request.model}};
    if (!state_.request.synthetic_acceptance.empty())  // the text is meaningless then
      reply["synthetic_acceptance"] = state_.request.synthetic_acceptance;
    return reply;
  }

  TokenNames token_names() const {
    return state_.request.tokens_as_ids ? TokenNames::kIds : TokenNames::kText;
  }

  json usage() const { return usage_json(state_.request.prompt_tokens, state_.tokens()); }
  json whole_usage() const {
    json all = usage();
    all["prompt_tokens_details"] = {{"cached_tokens", state_.cached_tokens()}};
    if (state_.request.thoughts || state_.request.channels)
      all["completion_tokens_details"] = {{"reasoning_tokens", state_.thought_tokens()}};
    return all;
  }

  // Speculation figures of a reply with one text; omitted for several texts, like in vLLM.
  json metrics() const {
    if (state_.choices.size() != 1) return nullptr;
    const RequestMetrics& metrics = state_.choices[0].metrics;
    return state_.request.lists_rounds ? detailed_speculation_json(metrics)
                                       : speculation_json(metrics.rounds);
  }

  json logprobs_of(ApiChoice& choice, std::span<const PositionLogprobs> positions) const {
    if (state_.request.logprobs < 0) return nullptr;
    return is_chat() ? chat_logprobs(positions, state_.tokenizer, token_names())
                     : completion_logprobs(positions, state_.tokenizer, choice.text_offset, token_names());
  }

  // `body`: "text", "delta" or "message".
  static json choice_json(size_t index, const char* body, json content, json logprobs, json reason) {
    return {{"index", index},
            {body, std::move(content)},
            {"logprobs", std::move(logprobs)},
            {"finish_reason", std::move(reason)}};
  }
};

}  // namespace

int64_t ApiAnswerState::tokens() const {
  int64_t sum = 0;
  for (const ApiChoice& choice : choices) sum += choice.tokens;
  return sum;
}

int64_t ApiAnswerState::thought_tokens() const {
  int64_t sum = 0;
  for (const ApiChoice& choice : choices) {
    if (choice.thought_tokens) sum += choice.thought_tokens->count();
    if (choice.channel_tokens) sum += choice.channel_tokens->count();
  }
  return sum;
}

int64_t ApiAnswerState::cached_tokens() const {
  int64_t sum = 0;
  for (size_t i = 0; i < choices.size(); i += static_cast<size_t>(request.choices))
    sum += choices[i].metrics.cached_tokens;
  return sum;
}

// Mistral's templates accept only ids of nine letters and digits; Kimi's write the model's own id again.
std::string ApiAnswerState::call_id(size_t choice, const ToolEvent& call) const {
  if (!call.id.empty()) return call.id;
  uint64_t hash = hash_combine(choice + 1, static_cast<uint64_t>(call.index));
  for (const char c : id) hash = hash_combine(hash, static_cast<unsigned char>(c));
  if (request.tools && call_begin(request.tools->format) == call_begin(ToolFormat::kMistral))
    return fmt::format("{:09x}", hash & 0xfffffffff);
  return fmt::format("call_{:016x}", hash);
}

namespace {

// The parsers of a text; null where the text has no such part.
struct Parsers {
  ThoughtParser* thoughts = nullptr;
  ToolCallParser* calls = nullptr;
  ChannelParser* channels = nullptr;  // does all the work
};

template <class Parser>
Parser* address(std::optional<Parser>& parser) {
  return parser ? &*parser : nullptr;
}

// Events for a piece of a text, or for its end. Calls are looked for in the answer alone.
std::vector<ToolEvent> events_of(const std::string* piece, const Parsers& parsers) {
  const auto& [thoughts, calls, channels] = parsers;
  if (channels) {
    std::vector<ToolEvent> events;
    piece ? channels->append(*piece, events) : channels->finish(events);
    return events;
  }
  std::vector<TextPart> parts;
  if (!thoughts && piece)
    parts.push_back({.text = *piece});
  else if (thoughts)
    piece ? thoughts->append(*piece, parts) : thoughts->finish(parts);
  std::vector<ToolEvent> events;
  for (TextPart& part : parts) {
    if (part.is_thought)
      events.push_back({.kind = ToolEvent::Kind::kThought, .text = std::move(part.text)});
    else if (calls)
      calls->append(part.text, events);
    else
      events.push_back({.text = std::move(part.text)});
  }
  if (!piece && calls) calls->finish(events);
  return events;
}

}  // namespace

ReplyContent ApiAnswerState::content(size_t choice) const {
  const std::string& whole = choices[choice].text;
  if (!has_parts()) return {.reasoning = {}, .text = whole, .calls = {}};
  std::optional<ThoughtParser> thoughts;
  std::optional<ToolCallParser> calls;
  std::optional<ChannelParser> channels;
  if (request.thoughts) thoughts.emplace(*request.thoughts);
  if (request.tools) calls.emplace(*request.tools);
  if (request.channels) channels.emplace(*request.channels);
  const Parsers parsers{address(thoughts), address(calls), address(channels)};
  std::vector<ToolEvent> events = events_of(&whole, parsers);
  std::ranges::move(events_of(nullptr, parsers), std::back_inserter(events));
  ReplyContent out;
  for (const ToolEvent& event : events) {
    if (event.kind == ToolEvent::Kind::kThought) out.reasoning += event.text;
    if (event.kind == ToolEvent::Kind::kText) out.text += event.text;
    if (event.kind == ToolEvent::Kind::kCall)
      out.calls.push_back({.id = call_id(choice, event), .name = event.text, .arguments = {}});
    if (event.kind == ToolEvent::Kind::kArguments) out.calls.back().arguments += event.text;
  }
  return out;
}

std::vector<ToolEvent> ApiAnswerState::events(size_t choice, const std::string* piece) {
  ApiChoice& of = choices[choice];
  return events_of(piece, {address(of.thoughts), address(of.parser), address(of.channels)});
}

bool ApiAnswerState::has_called(size_t choice) const {
  const ApiChoice& of = choices[choice];
  if (of.channels) return of.channels->calls() > 0;
  return of.parser && of.parser->calls() > 0;
}

std::unique_ptr<ReplyShape> make_openai_shape(ApiAnswerState& state) {
  return std::make_unique<OpenAiShape>(state);
}

std::unique_ptr<ReplyShape> make_reply_shape(ApiAnswerState& state) {
  switch (state.request.kind) {
    case ApiKind::kMessages:
      return make_messages_shape(state);
    case ApiKind::kResponses:
      return make_responses_shape(state);
    default:
      return make_openai_shape(state);
  }
}

}  // namespace outrider
