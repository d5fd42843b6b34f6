#include "requests/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "requests/request_builder.h"
#include "transformer/files/json_file.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr size_t kMaxLineBytes = size_t{4} << 20;

// A line's keys: those of a request, and who it is.
std::vector<std::string_view> known_keys() {
  std::vector<std::string_view> keys{"prompt", "id"};
  keys.insert(keys.end(), kChatFields.begin(), kChatFields.end());
  keys.insert(keys.end(), kSamplingFields.begin(), kSamplingFields.end());
  return keys;
}

using Names = RequestBuilder::Names;

class Reader {
 public:
  Reader(const RunOptions& options, const RequestBuilder& builder) : options_(options), builder_(builder) {}

  Result<PromptRequest> from_flags() const;
  Result<PromptRequest> from_line(const std::string& text, size_t line) const;

 private:
  Result<PromptRequest> finish(RunOptions parameters, const LogitBias& bias, std::string_view text,
                               SpecialTokens special, size_t line) const;

  const RunOptions& options_;
  const RequestBuilder& builder_;
};

Result<PromptRequest> Reader::finish(RunOptions parameters, const LogitBias& bias, std::string_view text,
                                     SpecialTokens special, size_t line) const {
  const Names names = line > 0 ? Names::kKeys : Names::kFlags;
  PromptRequest out{.request = {}, .line = line};
  ASSIGN_OR_RETURN(out.request, builder_.build(std::move(parameters), bias, names));
  ASSIGN_OR_RETURN(auto prompt, builder_.encode(text, special, names));
  RETURN_IF_ERROR(builder_.set_prompt(out.request, std::move(prompt)));
  return out;
}

Result<PromptRequest> Reader::from_flags() const {
  if (!options_.chat) return finish(options_, {}, *options_.prompt, SpecialTokens::kAdd, 0);
  ASSIGN_OR_RETURN(const std::string text, builder_.render({{"user", *options_.prompt}}));
  return finish(options_, {}, text, SpecialTokens::kOmit, 0);
}

// A parser of one line calls it line 1; the file's own number stands in front.
std::string without_line_number(std::string message) {
  constexpr std::string_view kOne = "parse error at line 1, ";
  if (const size_t at = message.find(kOne); at != std::string::npos) message.erase(at, kOne.size());
  return message;
}

Result<PromptRequest> Reader::from_line(const std::string& text, size_t line) const {
  auto parsed = parse_json(text, "not JSON", {.max_bytes = kMaxLineBytes, .max_depth = 16});
  if (!parsed.ok())
    return malformed(without_line_number(parsed.status().message()) +
                     "; each line is a whole request: {\"prompt\": \"...\"}");
  const json object = std::move(parsed).value();
  if (!object.is_object()) return invalid_argument("not a JSON object; write {\"prompt\": \"...\"}");
  const std::vector<std::string_view> known = known_keys();
  for (const auto& [key, value] : object.items())
    if (std::find(known.begin(), known.end(), key) == known.end()) return unknown_key(known, key);

  RunOptions o = options_;
  o.seed = hash_combine(options_.seed, line);
  RETURN_IF_ERROR(take_sampling(object, o));
  RETURN_IF_ERROR(take(object, "logprobs", o.logprobs));
  ASSIGN_OR_RETURN(const LogitBias bias, take_bias(object));

  const bool has_prompt = object.contains("prompt"), has_messages = object.contains("messages");
  if (has_prompt == has_messages) return invalid_argument("write either \"prompt\" or \"messages\"");
  for (const std::string_view key : kChatFields)
    if (!has_messages && object.contains(key))
      return invalid_argument(fmt::format("\"{}\" needs \"messages\"", key));
  Result<PromptRequest> request = invalid_argument("\"prompt\" must be a text");
  if (has_messages || (o.chat && object["prompt"].is_string())) {
    Conversation chat{.messages = {{"user", object.value("prompt", "")}}, .options = {}};
    if (has_messages) {
      ASSIGN_OR_RETURN(chat, take_conversation(object));
    }
    ASSIGN_OR_RETURN(const std::string rendered, builder_.render(chat.messages, chat.options));
    request = finish(std::move(o), bias, rendered, SpecialTokens::kOmit, line);
  } else if (object["prompt"].is_string()) {
    request = finish(std::move(o), bias, object["prompt"].get<std::string>(), SpecialTokens::kAdd, line);
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
  const RequestBuilder builder(options, tokenizer, chat, max_context, vocab_size);
  const Reader reader(options, builder);
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
