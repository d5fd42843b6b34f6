#include "serve/api/request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/json_file.h"
#include "requests/conversation.h"
#include "requests/request_fields.h"
#include "serve/api/fields.h"
#include "serve/api/other_bodies.h"
#include "serve/api/reply_shape.h"
#include "serve/api/shown_tools.h"
#include "serve/api/structure.h"
#include "serve/api/thinking.h"

namespace outrider {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kDefaultMaxTokens = 16;  // of completions, as in OpenAI's API

struct Prompt {
  std::vector<TokenId> ids;
  std::string text;  // for echo
};

Status take_range(const json& body, const char* key, int least, int most, int& to) {
  RETURN_IF_ERROR(take(body, key, to));
  if (to < least || to > most)
    return invalid_argument(fmt::format("\"{}\" {}: must be {} to {}", key, to, least, most));
  return {};
}

// The number of log-probabilities for each token; -1 is the largest number allowed.
Status take_count(const json& body, const char* key, int& to) {
  constexpr int kMost = 100;
  const json* const value = find_field(body, key);
  if (value && value->is_number_integer() && *value == -1) return to = kMost, Status();
  return take_range(body, key, 0, kMost, to);
}

Status check_known(std::span<const std::string_view> known, const json& object) {
  for (const auto& [key, value] : object.items())
    if (!value.is_null() && std::find(known.begin(), known.end(), key) == known.end())
      return unknown_key(known, key);
  return {};
}

Status read_stream(const json& body, ApiRequest& to) {
  RETURN_IF_ERROR(take(body, "stream", to.stream));
  const json* const options = find_field(body, "stream_options");
  if (!options) return {};
  if (!options->is_object()) return invalid_argument("\"stream_options\" must be an object");
  if (!to.stream) return invalid_argument("\"stream_options\" needs \"stream\": true");
  constexpr std::string_view kKnown[] = {"include_usage", "continuous_usage_stats", "include_obfuscation"};
  bool pads = false;
  RETURN_IF_ERROR(check_known(kKnown, *options).in("\"stream_options\""));
  RETURN_IF_ERROR(take(*options, "include_usage", to.include_usage));
  RETURN_IF_ERROR(take(*options, "continuous_usage_stats", to.continuous_usage));
  if (find_field(*options, "include_usage") && !to.include_usage) to.continuous_usage = false;
  RETURN_IF_ERROR(take(*options, "include_obfuscation", pads));
  return pads ? unsupported("\"stream_options\": \"include_obfuscation\" is not supported; leave it out")
              : Status();
}

// Completions have a number, chats a boolean and a number.
Status read_logprobs(ApiKind kind, const json& body, int& logprobs) {
  logprobs = -1;
  if (kind == ApiKind::kCompletion)
    return find_field(body, "logprobs") ? take_count(body, "logprobs", logprobs) : Status();
  bool wanted = false;
  int top = 0;
  RETURN_IF_ERROR(take(body, "logprobs", wanted));
  RETURN_IF_ERROR(take_count(body, "top_logprobs", top));
  if (top > 0 && !wanted) return invalid_argument("\"top_logprobs\" needs \"logprobs\": true");
  if (wanted) logprobs = top;
  return {};
}

// 0: only the prompt is scored. Empty: absent.
Status read_max_tokens(const json& body, std::optional<int>& to) {
  int max_tokens = 0, newer = 0;
  RETURN_IF_ERROR(take(body, "max_tokens", max_tokens));
  if (max_tokens < 0)
    return invalid_argument(fmt::format("\"max_tokens\" {}: must be at least 0", max_tokens));
  if (find_field(body, "max_tokens")) to = max_tokens;
  RETURN_IF_ERROR(take(body, "max_completion_tokens", newer));
  if (!find_field(body, "max_completion_tokens")) return {};
  if (newer < 1)
    return invalid_argument(fmt::format("\"max_completion_tokens\" {}: must be at least 1", newer));
  if (to && *to != newer)
    return invalid_argument(fmt::format(
        "\"max_completion_tokens\" {} and \"max_tokens\" {} differ; send one of them", newer, *to));
  to = newer;
  return {};
}

Result<std::vector<TokenId>> read_ids(const json& list, const char* key, int64_t vocab_size) {
  std::vector<TokenId> ids;
  const Status wrong = invalid_argument(
      fmt::format("\"{}\": token ids must be whole numbers from 0 to {}", key, vocab_size - 1));
  if (!list.is_array()) return wrong;
  for (const json& item : list) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) return wrong;
    ids.emplace_back(item.get<int32_t>());
  }
  return ids;
}

// Reads the restrictions on the tokens that may be drawn.
Status read_limits(const json& body, const RequestBuilder& builder, RequestParams& to) {
  if (const json* const ids = find_field(body, "allowed_token_ids")) {
    ASSIGN_OR_RETURN(to.allowed_token_ids, read_ids(*ids, "allowed_token_ids", builder.vocab_size()));
    if (to.allowed_token_ids.empty())
      return invalid_argument("\"allowed_token_ids\" is empty; leave it out, or name a token");
  }
  const json* const words = find_field(body, "bad_words");
  if (!words) return {};
  const auto is_text = [](const json& word) { return word.is_string(); };
  if (!words->is_array() || !std::all_of(words->begin(), words->end(), is_text))
    return invalid_argument("\"bad_words\" must be a list of texts");
  to.bad_words = words->get<std::vector<std::string>>();
  return {};
}

// `otherwise`: the default.
Result<SpecialTokens> read_special_tokens(const json& body, SpecialTokens otherwise) {
  bool adds = otherwise == SpecialTokens::kAdd;
  RETURN_IF_ERROR(take(body, "add_special_tokens", adds));
  return adds ? SpecialTokens::kAdd : SpecialTokens::kOmit;
}

Result<Prompt> text_prompt(const json& text, SpecialTokens special, const RequestBuilder& builder) {
  Prompt prompt{.ids = {}, .text = text.get<std::string>()};
  ASSIGN_OR_RETURN(prompt.ids, builder.encode(prompt.text, special, RequestBuilder::Names::kKeys));
  return prompt;
}

Result<Prompt> ids_prompt(const json& list, const RequestBuilder& builder) {
  Prompt prompt;
  ASSIGN_OR_RETURN(prompt.ids, read_ids(list, "prompt", builder.vocab_size()));
  prompt.text = builder.tokenizer().decode(prompt.ids);
  return prompt;
}

// A text, a list of texts, a list of ids, or a list of lists of ids.
Result<std::vector<Prompt>> read_prompts(const json& body, const RequestBuilder& builder, size_t most) {
  const json* const prompt = find_field(body, "prompt");
  if (!prompt) return invalid_argument("\"prompt\" is missing");
  const bool is_one =
      prompt->is_string() || (prompt->is_array() && !prompt->empty() && (*prompt)[0].is_number());
  const json list = is_one ? json::array({*prompt}) : *prompt;
  if (!list.is_array() || list.empty())
    return invalid_argument("\"prompt\" must be a text, a list of texts, or token ids");
  if (list.size() > most)
    return invalid_argument(
        fmt::format("\"prompt\" is a list of {}; send at most {} at once", list.size(), most));
  ASSIGN_OR_RETURN(const SpecialTokens special, read_special_tokens(body, SpecialTokens::kAdd));
  std::vector<Prompt> prompts;
  for (const json& item : list) {
    if (!item.is_string() && !item.is_array())
      return invalid_argument("\"prompt\" must be a text, a list of texts, or token ids");
    ASSIGN_OR_RETURN(Prompt read,
                     item.is_string() ? text_prompt(item, special, builder) : ids_prompt(item, builder));
    prompts.push_back(std::move(read));
  }
  return prompts;
}

// Templates with channels print the reasoning before a call as "thinking", and refuse it beside a content.
void rename_thoughts(std::vector<ChatMessage>& messages) {
  for (ChatMessage& message : messages) {
    const auto thought = message.fields.find("reasoning_content");
    if (thought == message.fields.end()) continue;
    message.fields["thinking"] = *thought;
    if (message.fields.contains("tool_calls")) message.content.clear(), message.parts.clear();
  }
}

// `names`: of the messages, for errors (take_conversation).
Result<std::vector<TokenId>> read_conversation(const json& body, const RequestBuilder& builder,
                                               const std::optional<ToolUse>& tools = {},
                                               std::span<const std::string> names = {}) {
  ASSIGN_OR_RETURN(Conversation chat, take_conversation(body, names));
  if (tools) RETURN_IF_ERROR(show_tools(*tools, builder.chat_template(), chat));
  if (has_channels(builder.chat_template())) rename_thoughts(chat.messages);
  auto text = builder.render(chat.messages, chat.options);
  if (!text.ok() && text.status().message().starts_with('"')) return text.status();  // names a field already
  if (!text.ok()) return text.status().in("\"messages\"");
  ASSIGN_OR_RETURN(const SpecialTokens special, read_special_tokens(body, SpecialTokens::kOmit));
  return builder.encode(*text, special, RequestBuilder::Names::kKeys);
}

Result<std::vector<Prompt>> read_chat(const json& body, const RequestBuilder& builder,
                                      const std::optional<ToolUse>& tools,
                                      std::span<const std::string> names) {
  Prompt prompt;
  ASSIGN_OR_RETURN(prompt.ids, read_conversation(body, builder, tools, names));
  return std::vector<Prompt>{std::move(prompt)};
}

// Templates of models that always think end with the mark that opens thoughts.
bool opens_thoughts(std::span<const TokenId> prompt, const Tokenizer& tokenizer, const ThoughtMarks& marks) {
  const size_t mark_tokens = marks.open.size() + 8;  // at most, with the line behind it
  std::string end = decode_with_special_tokens(tokenizer, prompt.last(std::min(prompt.size(), mark_tokens)));
  end.erase(end.find_last_not_of(" \t\r\n") + 1);
  return end.ends_with(marks.open);
}

// The marks of thoughts that are special tokens.
void show_thoughts(const ThoughtMarks& marks, const Tokenizer& tokenizer, std::vector<TokenId>& shown) {
  for (const std::string_view mark :
       {marks.open.substr(0, marks.open.find('>') + 1), marks.open, marks.close})
    if (const auto id = tokenizer.find(mark); id && tokenizer.is_special(*id)) shown.push_back(*id);
}

// A call ends a turn, as the end of the answer does.
void add_stops_of_channels(Request& request, const Tokenizer& tokenizer) {
  if (request.ignore_eos) return;
  for (const std::string_view mark : {channel_marks::kCall, channel_marks::kReturn})
    if (const auto id = tokenizer.find(mark); id && tokenizer.is_special(*id))
      request.stop_ids.push_back(*id);
}

// An error if a request asks for drafts of a server that has no drafter.
Status check_drafting(const RequestParams& parameters, const ApiDefaults& defaults) {
  const bool asks_length = parameters.num_speculative_tokens.value_or(0) > 0;
  const bool asks_policy = parameters.gamma_policy != defaults.params.gamma_policy;
  if (defaults.drafts || (!asks_length && !asks_policy)) return {};
  return invalid_argument(fmt::format(
      "\"{}\": there is no drafter; leave it out, or add --draft-model, --drafter or --listen to the "
      "command that was started",
      asks_length ? "num_speculative_tokens" : "gamma_policy"));
}

// Reads the remaining parameters; those about the answer go to `out`.
Result<Request> read_parameters(ApiKind kind, const json& body, const ApiDefaults& defaults,
                                Structure& structure, std::optional<int>& max_tokens, ApiRequest& out,
                                const RequestBuilder& builder) {
  RequestParams parameters = defaults.params;
  parameters.grammar = std::move(structure.grammar);
  parameters.seed = defaults.seed;
  RETURN_IF_ERROR(take_sampling(body, parameters));
  RETURN_IF_ERROR(check_drafting(parameters, defaults));
  RETURN_IF_ERROR(read_logprobs(kind, body, parameters.logprobs));
  RETURN_IF_ERROR(read_max_tokens(body, max_tokens));
  if (find_field(body, "prompt_logprobs"))
    RETURN_IF_ERROR(take_count(body, "prompt_logprobs", parameters.prompt_logprobs));
  RETURN_IF_ERROR(read_limits(body, builder, parameters));
  bool echo = false;
  RETURN_IF_ERROR(take(body, "echo", echo));
  out.is_scored_only = max_tokens == 0;
  if (out.is_scored_only && !echo && parameters.prompt_logprobs < 0)
    return invalid_argument(
        "\"max_tokens\" 0: must be at least 1, unless \"echo\" or \"prompt_logprobs\" ask about the prompt");
  out.logprobs = parameters.logprobs;
  out.prompt_logprobs = parameters.prompt_logprobs;
  out.echoes_logprobs = echo && out.logprobs >= 0;
  if (out.prompt_logprobs >= 0 && out.stream)
    return unsupported("\"prompt_logprobs\" are not streamed; send \"stream\": false");
  if (out.echoes_logprobs) parameters.prompt_logprobs = std::max(out.prompt_logprobs, out.logprobs);
  parameters.max_tokens = std::max(max_tokens.value_or(kDefaultMaxTokens), 1);
  // Chats without a limit may use the remaining context.
  if (!max_tokens && kind == ApiKind::kChat) parameters.max_tokens = std::numeric_limits<int>::max();
  ASSIGN_OR_RETURN(Request request, builder.build(std::move(parameters), RequestBuilder::Names::kKeys));
  RETURN_IF_ERROR(take(body, "cache_salt", request.cache_salt));
  if (find_field(body, "cache_salt") && request.cache_salt.empty())
    return invalid_argument("\"cache_salt\" is empty; leave it out to share with all who send none");
  return request;
}

Status read_timeout(const json& body, std::chrono::milliseconds& timeout) {
  constexpr float kMaxSeconds = 86400;
  float seconds = static_cast<float>(timeout.count()) * 1e-3f;
  RETURN_IF_ERROR(take(body, "timeout", seconds));
  if (!(seconds >= 0 && seconds <= kMaxSeconds))
    return invalid_argument(fmt::format("\"timeout\" {}: must be 0 (none) to 86400 s", seconds));
  timeout = std::chrono::milliseconds(std::lround(seconds * 1e3f));
  return {};
}

// The format of the tools' calls, and the grammar of the text if calls must be well-formed.
Status take_tools(Structure& structure, const RequestBuilder& builder, ApiRequest& out) {
  if (!structure.tools) return {};
  ASSIGN_OR_RETURN(const ToolFormat format, tool_format_of(builder.chat_template()));
  ASSIGN_OR_RETURN(structure.grammar,
                   tool_grammar(*structure.tools, structure.grammar, format, builder.tokenizer()));
  out.tools = ToolReading{.format = format, .names = {}, .has_grammar = structure.grammar.has_value()};
  for (const Tool& tool : structure.tools->tools) {
    out.tools->names.push_back(tool.name);
    out.tools->parameters.push_back(tool.parameters);
  }
  return {};
}

// The special tokens among the marks of calls.
std::vector<TokenId> shown_tokens(ToolFormat format, const Tokenizer& tokenizer) {
  std::vector<TokenId> shown;
  for (const std::string_view mark : call_marks(format))
    if (const auto id = tokenizer.find(mark); id && tokenizer.is_special(*id)) shown.push_back(*id);
  return shown;
}

std::vector<TokenId> special_tokens(const Tokenizer& tokenizer) {
  std::vector<TokenId> special;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.is_special(TokenId(id))) special.emplace_back(id);
  return special;
}

// An error if the context would end a text before the requested length.
Status check_length(const json& body, int64_t asked, int64_t prompt, const RequestBuilder& builder) {
  if (prompt + asked <= builder.max_context()) return {};
  return resource_exhausted(
      fmt::format("\"{}\" {}: the prompt has {} tokens and the context {}, which leaves {}; lower it, or "
                  "shorten the prompt",
                  find_field(body, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens", asked,
                  prompt, builder.max_context(), builder.max_context() - prompt));
}

// Choice 0 has the same draws as a single request.
Seed seed_of(Seed seed, int choice) {
  return choice == 0 ? seed : Seed{hash_combine(seed.value, static_cast<uint64_t>(choice))};
}

// Bounds the log-probabilities of a whole answer, which is collected before it is sent. Without a requested
// length the texts get as long as there is room.
Status bound_logprobs(bool says_length, int64_t most, ApiRequest& out) {
  const int64_t of_token = out.logprobs >= 0 ? out.logprobs + 1 : 0;
  const int64_t of_prompt_token = std::max(out.prompt_logprobs, out.echoes_logprobs ? out.logprobs : -1) + 1;
  if (out.stream || (of_token == 0 && of_prompt_token == 0)) return {};
  int64_t of_texts = 0, of_prompts = 0;
  for (const Request& request : out.requests) {
    of_texts += request.max_tokens * of_token;
    of_prompts += static_cast<int64_t>(request.prompt.size()) * of_prompt_token;
  }
  if (of_texts + of_prompts <= most) return {};
  const auto texts = static_cast<int64_t>(out.requests.size());
  const int64_t room = of_token > 0 ? (most - of_prompts) / (texts * of_token) : 0;
  if (!says_length && room > 0) {
    for (Request& request : out.requests)
      request.max_tokens = static_cast<int32_t>(std::min<int64_t>(request.max_tokens, room));
    return {};
  }
  return invalid_argument(fmt::format(
      "\"logprobs\": {} texts of {} tokens together at most, and their prompts, make {} log-probabilities; a "
      "whole "
      "answer has at most {} (--max-answer-logprobs): lower \"max_tokens\", \"n\" or the count of "
      "log-probabilities, or send \"stream\": true",
      texts, of_token > 0 ? of_texts / of_token : 0, of_texts + of_prompts, most));
}

// Reads a completion or a chat, without the fields that `structure` was read from. `asked`: the client's
// endpoint. `names`: of the messages, if they were others in the client's body.
Result<ApiRequest> read_chat_request(ApiKind asked, const json& body, Structure& structure,
                                     const ApiDefaults& defaults, const RequestBuilder& builder,
                                     std::span<const std::string> names = {}) {
  const ApiKind kind = asked == ApiKind::kCompletion ? asked : ApiKind::kChat;
  ApiRequest out{.kind = asked,
                 .model = {},
                 .timeout = defaults.timeout,
                 .lists_rounds = defaults.lists_rounds,
                 .synthetic_acceptance = defaults.synthetic_acceptance};
  RETURN_IF_ERROR(check_fields(asked, body));
  RETURN_IF_ERROR(read_model(body, defaults.models).status());
  out.model = defaults.models.front();
  RETURN_IF_ERROR(read_stream(body, out));
  RETURN_IF_ERROR(read_timeout(body, out.timeout));
  RETURN_IF_ERROR(take(body, "return_token_ids", out.return_token_ids));
  RETURN_IF_ERROR(take(body, "return_tokens_as_token_ids", out.tokens_as_ids));
  RETURN_IF_ERROR(take(body, "include_stop_str_in_output", out.includes_stop));
  bool skips_special_tokens = true;
  RETURN_IF_ERROR(take(body, "skip_special_tokens", skips_special_tokens));
  int n = 1;
  std::optional<int> max_tokens;
  bool echo = false;
  const size_t most = defaults.limits.requests;
  RETURN_IF_ERROR(take_range(body, "n", 1, defaults.limits.choices, n));
  out.choices = n;
  int best_of = n;
  RETURN_IF_ERROR(take(body, "best_of", best_of));
  if (best_of != n) return unsupported(fmt::format("\"best_of\" {}: must be n, which is {}", best_of, n));
  RETURN_IF_ERROR(take(body, "echo", echo));
  RETURN_IF_ERROR(take_tools(structure, builder, out));
  bool parts_thoughts = defaults.parts_thoughts, tells_thoughts = true;
  RETURN_IF_ERROR(take(body, "separate_reasoning", parts_thoughts));
  RETURN_IF_ERROR(take(body, "include_reasoning", tells_thoughts));
  // A form has no place for thoughts.
  const bool may_think = kind == ApiKind::kChat && parts_thoughts && !structure.grammar;
  const bool may_have_channels = may_think || out.tools;
  ASSIGN_OR_RETURN(Request parameters,
                   read_parameters(kind, body, defaults, structure, max_tokens, out, builder));
  if (!skips_special_tokens)
    parameters.shown = special_tokens(builder.tokenizer());
  else if (has_channels(builder.chat_template()) && may_have_channels)
    parameters.shown = shown_tokens(ToolFormat::kChannels, builder.tokenizer());
  else if (out.tools)
    parameters.shown = shown_tokens(out.tools->format, builder.tokenizer());
  const auto marks = may_think ? thought_marks(builder.chat_template()) : std::nullopt;
  if (marks && skips_special_tokens) show_thoughts(*marks, builder.tokenizer(), parameters.shown);
  ASSIGN_OR_RETURN(auto prompts, kind == ApiKind::kChat ? read_chat(body, builder, structure.tools, names)
                                                        : read_prompts(body, builder, most));
  if (prompts.size() * static_cast<size_t>(n) > most)
    return invalid_argument(
        fmt::format("\"n\" {} times {} prompts: at most {} texts at once", n, prompts.size(), most));
  if (may_have_channels && has_channels(builder.chat_template())) {
    out.channels = {.opening = channel_opening(prompts.front().ids, builder.tokenizer()),
                    .parts_thoughts = parts_thoughts,
                    .tells_thoughts = tells_thoughts,
                    .may_call = out.tools.has_value()};
    add_stops_of_channels(parameters, builder.tokenizer());
  } else if (marks) {
    out.thoughts = {.is_open = opens_thoughts(prompts.front().ids, builder.tokenizer(), *marks),
                    .is_told = tells_thoughts,
                    .marks = *marks};
  }
  for (Prompt& prompt : prompts) {
    Request request = parameters;
    out.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
    RETURN_IF_ERROR(builder.set_prompt(request, std::move(prompt.ids))
                        .in(kind == ApiKind::kChat ? "\"messages\"" : "\"prompt\""));
    const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
    if (max_tokens) RETURN_IF_ERROR(check_length(body, *max_tokens, prompt_tokens, builder));
    if (!max_tokens && kind == ApiKind::kChat)
      request.max_tokens =
          static_cast<int32_t>(builder.max_context() - static_cast<int64_t>(request.prompt.size()));
    for (int i = 0; i < n; ++i) {
      out.requests.push_back(request);
      out.requests.back().sampling.seed = seed_of(parameters.sampling.seed, i);
      if (echo) out.echo.push_back(prompt.text);
      if (out.echoes_logprobs || out.return_token_ids) out.prompt_ids.push_back(request.prompt);
    }
  }
  RETURN_IF_ERROR(bound_logprobs(max_tokens.has_value(), defaults.limits.logprobs, out));
  return out;
}

}  // namespace

Result<json> read_body(const std::string& body) {
  if (body.empty()) return invalid_argument("the body is empty; send a JSON object");
  ASSIGN_OR_RETURN(json object,
                   parse_json(body, "the body is not JSON that can be read", {.whole_numbers_fit = true}));
  if (!object.is_object()) return invalid_argument("the body is not a JSON object");
  return object;
}

Result<std::string> read_model(const json& body, const std::vector<std::string>& models) {
  std::string model = models.front();
  RETURN_IF_ERROR(take(body, "model", model));
  if (std::find(models.begin(), models.end(), model) == models.end())
    return not_found(fmt::format("there is no \"model\" {}; GET /v1/models lists those that are served",
                                 model.substr(0, 100)));
  return model;
}

Result<std::vector<TokenId>> read_tokenize(const json& body, std::string_view text_of_body,
                                           const RequestBuilder& builder) {
  constexpr std::string_view kPrompt[] = {"model", "prompt", "add_special_tokens"};
  if (find_field(body, "messages")) {
    std::vector<std::string_view> known(kChatFields.begin(), kChatFields.end());
    known.insert(known.end(),
                 {"model", "add_special_tokens", "tools", "tool_choice", "reasoning_effort", "thinking"});
    RETURN_IF_ERROR(check_known(known, body));
    json chat = body;
    RETURN_IF_ERROR(take_chat_thinking(chat));
    RETURN_IF_ERROR(take_effort(chat));
    chat.erase("include_reasoning");
    if (!find_field(body, "tools")) return read_conversation(chat, builder);
    ASSIGN_OR_RETURN(const ordered_json written, parse_ordered_json(text_of_body, "the body"));
    ASSIGN_OR_RETURN(const Structure structure, read_structure(ApiKind::kChat, written));
    if (structure.tools) RETURN_IF_ERROR(tool_format_of(builder.chat_template()).status());
    return read_conversation(chat, builder, structure.tools);
  }
  std::string text;
  bool add_special_tokens = true;
  RETURN_IF_ERROR(check_known(kPrompt, body));
  if (!find_field(body, "prompt")) return invalid_argument("write either \"prompt\" or \"messages\"");
  RETURN_IF_ERROR(take(body, "prompt", text));
  RETURN_IF_ERROR(take(body, "add_special_tokens", add_special_tokens));
  return builder.encode(text, add_special_tokens ? SpecialTokens::kAdd : SpecialTokens::kOmit,
                        RequestBuilder::Names::kKeys);
}

Result<std::vector<TokenId>> read_count_tokens(const json& body, std::string_view text,
                                               const RequestBuilder& builder) {
  constexpr std::string_view kKnown[] = {"model",       "messages", "system",       "tools",
                                         "tool_choice", "thinking", "output_config"};
  RETURN_IF_ERROR(check_known(kKnown, body));
  json rest = body;
  rest["max_tokens"] = 1;
  ASSIGN_OR_RETURN(const ordered_json written, parse_ordered_json(text, "the body"));
  ASSIGN_OR_RETURN(Structure structure, read_structure(ApiKind::kMessages, written));
  if (structure.tools) RETURN_IF_ERROR(tool_format_of(builder.chat_template()).status());
  drop_structure(ApiKind::kMessages, rest);
  ASSIGN_OR_RETURN(const ChatBody chat, chat_of_messages(std::move(rest)));
  return read_conversation(chat.body, builder, structure.tools, chat.message_names);
}

Result<std::string> read_detokenize(const json& body, const RequestBuilder& builder) {
  constexpr std::string_view kKnown[] = {"model", "tokens", "skip_special_tokens"};
  RETURN_IF_ERROR(check_known(kKnown, body));
  bool skip_special_tokens = true;
  RETURN_IF_ERROR(take(body, "skip_special_tokens", skip_special_tokens));
  const json* const tokens = find_field(body, "tokens");
  if (!tokens) return invalid_argument("\"tokens\" is missing");
  ASSIGN_OR_RETURN(const auto ids, read_ids(*tokens, "tokens", builder.vocab_size()));
  return skip_special_tokens ? builder.tokenizer().decode(ids)
                             : decode_with_special_tokens(builder.tokenizer(), ids);
}

Result<ApiRequest> read_api_request(ApiKind kind, const json& body, const ApiDefaults& defaults,
                                    const RequestBuilder& builder) {
  Structure structure;
  json rest = body;
  if (asks_for_structure(body)) {
    ordered_json written(body);
    if (!defaults.text.empty()) {
      ASSIGN_OR_RETURN(written, parse_ordered_json(defaults.text, "the body"));
    }
    ASSIGN_OR_RETURN(structure, read_structure(kind, written));
    drop_structure(kind, rest);
  }
  if (kind == ApiKind::kChat) {
    RETURN_IF_ERROR(take_chat_thinking(rest));
    RETURN_IF_ERROR(take_effort(rest));
  }
  if (kind == ApiKind::kCompletion || kind == ApiKind::kChat)
    return read_chat_request(kind, rest, structure, defaults, builder);
  ASSIGN_OR_RETURN(const ChatBody chat, kind == ApiKind::kMessages ? chat_of_messages(std::move(rest))
                                                                   : chat_of_responses(std::move(rest)));
  auto out = read_chat_request(kind, chat.body, structure, defaults, builder, chat.message_names);
  if (!out.ok()) return in_own_names(kind, out.status());
  if (kind == ApiKind::kResponses) out->repeated = std::make_shared<const json>(repeated_in_response(body));
  return out;
}

}  // namespace outrider
