#include "launch/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/nearest.h"
#include "transformer/json_file.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr size_t kMaxLineBytes = size_t{4} << 20;
constexpr const char* kKnownKeys[] = {"prompt",
                                      "messages",
                                      "seed",
                                      "max_tokens",
                                      "temperature",
                                      "top_k",
                                      "top_p",
                                      "min_p",
                                      "repetition_penalty",
                                      "presence_penalty",
                                      "frequency_penalty",
                                      "logit_bias",
                                      "stop",
                                      "ignore_eos",
                                      "logprobs",
                                      "rule",
                                      "id"};

class Reader {
 public:
  Reader(const RunOptions& options, const Tokenizer& tokenizer,
         const Result<std::unique_ptr<ChatTemplate>>& chat, int64_t max_context, int64_t vocab_size)
      : options_(options),
        tokenizer_(tokenizer),
        chat_(chat),
        max_context_(max_context),
        vocab_size_(vocab_size) {}

  Result<PromptRequest> from_flags() const;
  Result<PromptRequest> from_line(const std::string& text, size_t line) const;

 private:
  Result<PromptRequest> finish(RunOptions options, const std::string& text, SpecialTokens special,
                               size_t line, std::vector<std::pair<TokenId, float>> bias) const;
  Result<std::string> render(const std::vector<ChatMessage>& messages) const;
  Status check(const RunOptions& o, size_t line) const;
  // Whether it may be --max-model-len, not the model, that limits the context.
  bool context_may_grow() const { return options_.max_model_len > 0 || max_context_ == kDefaultMaxModelLen; }

  const RunOptions& options_;
  const Tokenizer& tokenizer_;
  const Result<std::unique_ptr<ChatTemplate>>& chat_;
  const int64_t max_context_;
  const int64_t vocab_size_;
};

// A parameter as the user wrote it: a key of a line or a flag.
std::string name_of(std::string key, size_t line) {
  if (line > 0) return fmt::format("\"{}\"", key);
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

Status Reader::check(const RunOptions& o, size_t line) const {
  const auto must = [&](const char* key, auto value, const char* rule) {
    return invalid_argument(fmt::format("{} {}: must be {}", name_of(key, line), value, rule));
  };
  const auto finite = [](float v) { return std::isfinite(v); };
  if (o.max_tokens < 1) return must("max_tokens", o.max_tokens, "at least 1");
  if (!finite(o.temperature) || o.temperature < 0 || o.temperature > 100)
    return must("temperature", o.temperature, "0 to 100");
  if (o.top_k < 0) return must("top_k", o.top_k, "0 (off) or more");
  if (!(o.top_p > 0 && o.top_p <= 1)) return must("top_p", o.top_p, "above 0 and at most 1");
  if (!(o.min_p >= 0 && o.min_p <= 1)) return must("min_p", o.min_p, "0 to 1");
  if (!finite(o.repetition_penalty) || o.repetition_penalty <= 0)
    return must("repetition_penalty", o.repetition_penalty, "above 0; 1 is off");
  if (!finite(o.presence_penalty)) return must("presence_penalty", o.presence_penalty, "finite");
  if (!finite(o.frequency_penalty)) return must("frequency_penalty", o.frequency_penalty, "finite");
  if (o.logprobs < -1 || o.logprobs > 100) return must("logprobs", o.logprobs, "0 to 100");
  if (o.stop.size() > 16)
    return must("stop", fmt::format("with {} texts", o.stop.size()), "at most 16 texts");
  for (const std::string& stop : o.stop)
    if (stop.empty() || stop.size() > 1024)
      return must("stop", fmt::format("of {} bytes", stop.size()), "1 to 1024 bytes");
  return {};
}

Result<std::string> Reader::render(const std::vector<ChatMessage>& messages) const {
  if (chat_.status().code() == StatusCode::kNotFound && !options_.chat)
    return unsupported("the model has no chat template; send a prompt instead of messages");
  if (!chat_.ok()) return chat_.status().in("--model " + options_.model);
  return (*chat_)->render(messages, true);
}

Result<PromptRequest> Reader::finish(RunOptions o, const std::string& text, SpecialTokens special,
                                     size_t line, std::vector<std::pair<TokenId, float>> bias) const {
  RETURN_IF_ERROR(check(o, line));
  PromptRequest out{.request = {}, .line = line};
  auto sampling = sampling_of(o);
  if (!sampling.ok()) {
    // It names flags; a line has keys.
    const Status wrong = sampling.status();
    return line > 0 && wrong.message().starts_with("--") ? invalid_argument(wrong.message().substr(2))
                                                         : wrong;
  }
  out.request.sampling = std::move(sampling).value();
  auto& params = out.request.sampling;
  params.logit_bias.insert(params.logit_bias.end(), bias.begin(), bias.end());
  for (const auto& [id, value] : params.logit_bias)
    if (id.value() < 0 || id.value() >= vocab_size_)
      return invalid_argument(fmt::format("{}: id {} is outside the vocabulary; ids are 0 to {}",
                                          name_of("logit_bias", line), id.value(), vocab_size_ - 1));
  auto prompt = tokenizer_.encode(text, special);
  if (!prompt.ok()) return prompt.status().in(name_of("prompt", line));
  out.request.prompt = std::move(prompt).value();
  if (out.request.prompt.empty())
    return invalid_argument(
        "the prompt is empty and this tokenizer adds no beginning-of-sequence token; write a prompt");
  if (static_cast<int64_t>(out.request.prompt.size()) >= max_context_)
    return invalid_argument(fmt::format("the prompt has {} tokens, the context {}; shorten it{}",
                                        out.request.prompt.size(), max_context_,
                                        context_may_grow() ? " or raise --max-model-len" : ""));
  out.request.max_tokens = o.max_tokens;
  out.request.stop = std::move(o.stop);
  out.request.ignore_eos = o.ignore_eos;
  if (!options_.synthetic_acceptance.empty()) {  // the text means nothing, its end neither
    if (out.request.sampling.logprobs >= 0)
      return invalid_argument(name_of("logprobs", line) + ": has no meaning with --synthetic-acceptance");
    out.request.ignore_eos = true;
    out.request.stop.clear();
  }
  return out;
}

Result<PromptRequest> Reader::from_flags() const {
  std::string text = *options_.prompt;
  if (!options_.chat) return finish(options_, text, SpecialTokens::kAdd, 0, {});
  ASSIGN_OR_RETURN(text, render({{"user", text}}));
  return finish(options_, text, SpecialTokens::kOmit, 0, {});  // the template wrote its own
}

// A JSON value as a flag's type, or an error that names the key.
template <class T>
Status take(const json& object, const char* key, T& to) {
  const auto at = object.find(key);
  if (at == object.end() || at->is_null()) return {};
  constexpr bool is_integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;
  const bool fits = std::is_same_v<T, bool> ? at->is_boolean()
                    : is_integer            ? at->is_number_integer()
                                            : at->is_number();
  const char* const type = std::is_same_v<T, bool> ? "true or false"
                           : is_integer            ? "a whole number"
                                                   : "a number";
  if (!fits)
    return invalid_argument(fmt::format("\"{}\" must be {}, not {}", key, type, at->dump().substr(0, 40)));
  if constexpr (is_integer) {
    const bool in_range = at->is_number_unsigned()
                              ? at->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<T>::max())
                              : at->get<int64_t>() >= static_cast<int64_t>(std::numeric_limits<T>::min());
    if (!in_range)
      return invalid_argument(fmt::format("\"{}\" is {}; must be {} to {}", key, at->dump(),
                                          std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
  }
  to = at->get<T>();
  return {};
}

Status take_stop(const json& object, std::vector<std::string>& stop) {
  const auto at = object.find("stop");
  if (at == object.end() || at->is_null()) return {};
  stop.clear();
  if (at->is_string()) {
    stop.push_back(at->get<std::string>());
    return {};
  }
  if (!at->is_array()) return invalid_argument("\"stop\" must be a text or a list of texts");
  for (const json& item : *at) {
    if (!item.is_string()) return invalid_argument("\"stop\" must be a text or a list of texts");
    stop.push_back(item.get<std::string>());
  }
  return {};
}

Result<std::vector<std::pair<TokenId, float>>> take_bias(const json& object) {
  std::vector<std::pair<TokenId, float>> bias;
  const auto at = object.find("logit_bias");
  if (at == object.end() || at->is_null()) return bias;
  if (!at->is_object()) return invalid_argument("\"logit_bias\" must be an object of id: value");
  for (const auto& [id, value] : at->items()) {
    if (!value.is_number()) return invalid_argument("\"logit_bias\" must be an object of id: value");
    ASSIGN_OR_RETURN(auto parsed, parse_logit_bias(fmt::format("{}:{}", id, value.get<float>())));
    bias.push_back(parsed);
  }
  return bias;
}

Result<std::vector<ChatMessage>> take_messages(const json& list) {
  std::vector<ChatMessage> messages;
  if (!list.is_array() || list.empty())
    return invalid_argument("\"messages\" must be a list of {role, content}");
  for (const json& m : list) {
    if (!m.is_object() || !m.contains("role") || !m["role"].is_string() || !m.contains("content") ||
        !m["content"].is_string())
      return invalid_argument("\"messages\" must be a list of {role, content}, both texts");
    messages.push_back({m["role"].get<std::string>(), m["content"].get<std::string>()});
  }
  return messages;
}

// A parser of one line calls it line 1; the file's own number stands in front.
std::string without_line_number(std::string message) {
  constexpr std::string_view kOne = "parse error at line 1, ";
  if (const size_t at = message.find(kOne); at != std::string::npos) message.erase(at, kOne.size());
  return message;
}

Status unknown_key(const std::string& key) {
  const std::string_view nearest = nearest_name(kKnownKeys, key);
  if (!nearest.empty())
    return invalid_argument(fmt::format("there is no key \"{}\"; did you mean \"{}\"?", key, nearest));
  return invalid_argument(
      fmt::format("there is no key \"{}\"; known are {}", key, fmt::join(kKnownKeys, ", ")));
}

Result<PromptRequest> Reader::from_line(const std::string& text, size_t line) const {
  auto parsed = parse_json(text, "not JSON", {.max_bytes = kMaxLineBytes, .max_depth = 16});
  if (!parsed.ok())
    return malformed(without_line_number(parsed.status().message()) +
                     "; each line is a whole request: {\"prompt\": \"...\"}");
  const json object = std::move(parsed).value();
  if (!object.is_object()) return invalid_argument("not a JSON object; write {\"prompt\": \"...\"}");
  for (const auto& [key, value] : object.items())
    if (std::find(std::begin(kKnownKeys), std::end(kKnownKeys), key) == std::end(kKnownKeys))
      return unknown_key(key);

  RunOptions o = options_;
  o.seed = hash_combine(options_.seed, line);
  RETURN_IF_ERROR(take(object, "seed", o.seed));
  RETURN_IF_ERROR(take(object, "max_tokens", o.max_tokens));
  RETURN_IF_ERROR(take(object, "temperature", o.temperature));
  RETURN_IF_ERROR(take(object, "top_k", o.top_k));
  RETURN_IF_ERROR(take(object, "top_p", o.top_p));
  RETURN_IF_ERROR(take(object, "min_p", o.min_p));
  RETURN_IF_ERROR(take(object, "repetition_penalty", o.repetition_penalty));
  RETURN_IF_ERROR(take(object, "presence_penalty", o.presence_penalty));
  RETURN_IF_ERROR(take(object, "frequency_penalty", o.frequency_penalty));
  RETURN_IF_ERROR(take(object, "ignore_eos", o.ignore_eos));
  RETURN_IF_ERROR(take(object, "logprobs", o.logprobs));
  RETURN_IF_ERROR(take_stop(object, o.stop));
  if (object.contains("rule")) {
    if (!object["rule"].is_string()) return invalid_argument("\"rule\" must be a text");
    o.rule = object["rule"].get<std::string>();
  }
  ASSIGN_OR_RETURN(auto bias, take_bias(object));

  const bool has_prompt = object.contains("prompt"), has_messages = object.contains("messages");
  if (has_prompt == has_messages) return invalid_argument("write either \"prompt\" or \"messages\"");
  Result<PromptRequest> request = invalid_argument("\"prompt\" must be a text");
  if (has_messages || (o.chat && object["prompt"].is_string())) {
    std::vector<ChatMessage> messages;
    if (has_messages) {
      ASSIGN_OR_RETURN(messages, take_messages(object["messages"]));
    } else {
      messages = {{"user", object["prompt"].get<std::string>()}};
    }
    ASSIGN_OR_RETURN(const std::string rendered, render(messages));
    request = finish(std::move(o), rendered, SpecialTokens::kOmit, line, std::move(bias));
  } else if (object["prompt"].is_string()) {
    request =
        finish(std::move(o), object["prompt"].get<std::string>(), SpecialTokens::kAdd, line, std::move(bias));
  }
  const bool has_id = object.contains("id");
  if (has_id && !object["id"].is_string() && !object["id"].is_number_integer())
    return invalid_argument("\"id\" must be a text or a whole number");
  if (request.ok() && has_id) request->id = object["id"];
  return request;
}

// As std::getline, but of a line that is too long only one byte too many, however long it is.
bool next_line(std::istream& file, std::string& text) {
  text.clear();
  std::streambuf& bytes = *file.rdbuf();
  constexpr int kEnd = std::char_traits<char>::eof();
  for (int c = bytes.sbumpc(); c != '\n'; c = bytes.sbumpc()) {
    if (c == kEnd) return !text.empty();
    text.push_back(static_cast<char>(c));
    if (text.size() > kMaxLineBytes) return true;
  }
  return true;
}

}  // namespace

Result<std::vector<PromptRequest>> read_requests(const RunOptions& options, const Tokenizer& tokenizer,
                                                 const Result<std::unique_ptr<ChatTemplate>>& chat,
                                                 int64_t max_context, int64_t vocab_size) {
  const Reader reader(options, tokenizer, chat, max_context, vocab_size);
  std::vector<PromptRequest> requests;
  if (options.prompt) {
    ASSIGN_OR_RETURN(auto request, reader.from_flags());
    requests.push_back(std::move(request));
    return requests;
  }
  const bool from_standard_input = options.prompts_file == "-";
  const std::string name = from_standard_input ? "standard input" : options.prompts_file;
  std::error_code ignored;
  std::ifstream file;
  if (!from_standard_input) file.open(options.prompts_file);
  if (!file || std::filesystem::is_directory(options.prompts_file, ignored))
    return not_found(
        fmt::format("--prompts {}: cannot be read; name a file of JSON lines", options.prompts_file));
  std::string text;
  for (size_t line = 1; next_line(from_standard_input ? std::cin : file, text); ++line) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (text.size() > kMaxLineBytes)
      return invalid_argument(fmt::format("{}:{}: the line is longer than {} bytes; one request is one line",
                                          name, line, kMaxLineBytes));
    auto request = reader.from_line(text, line);
    if (!request.ok()) return request.status().in(fmt::format("{}:{}", name, line));
    requests.push_back(std::move(request).value());
  }
  if (requests.empty())
    return invalid_argument(fmt::format("--prompts {}: no requests in it", options.prompts_file));
  return requests;
}

}  // namespace outrider
