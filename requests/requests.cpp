#include "requests/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/json_file.h"
#include "base/json_text.h"
#include "base/text_hash.h"
#include "requests/asked_form.h"
#include "requests/conversation.h"
#include "requests/published_lines.h"
#include "requests/request_fields.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr size_t kMaxRequestBytes = size_t{4} << 20;

// Keys of a line of --prompts: those of a request, id, and category.
std::vector<std::string_view> known_keys() {
  std::vector<std::string_view> keys{"prompt", "id", "category"};
  keys.insert(keys.end(), kChatFields.begin(), kChatFields.end());
  keys.insert(keys.end(), kSamplingFields.begin(), kSamplingFields.end());
  keys.insert(keys.end(), kFormFields.begin(), kFormFields.end());
  return keys;
}

// Takes the form of a line, in the order in which it was written. A line without form fields has the form of
// the flags; {"response_format": {"type": "text"}} has none.
Status take_form_of_line(const json& object, const std::string& text, std::optional<AskedGrammar>& to) {
  const auto asks = [&](std::string_view key) { return find_field(object, key.data()) != nullptr; };
  if (std::none_of(kFormFields.begin(), kFormFields.end(), asks)) return {};
  ASSIGN_OR_RETURN(const auto written, parse_ordered_json(text, "not JSON"));
  ASSIGN_OR_RETURN(to, take_form(written));
  return {};
}

// 0: no form.
uint64_t form_hash(const std::optional<AskedGrammar>& asked) {
  if (!asked) return 0;
  uint64_t hash =
      hash_combine(static_cast<uint64_t>(asked->spec.kind) + 1, fingerprint_of_text(asked->spec.text));
  for (const std::string& choice : asked->spec.choices)
    hash = hash_combine(hash, fingerprint_of_text(choice));
  return hash;
}

using Names = RequestBuilder::Names;

class Reader {
 public:
  // `params`: of the flags.
  Reader(const RequestParams& params, const RequestModel& model) : params_(params), builder_(model) {}

  Result<PromptRequest> from_flags() const;
  // A request, followed by the later turns of its conversation.
  Result<std::vector<PromptRequest>> from_line(const std::string& text, size_t line);
  // Random tokens in place of the text, which traces lack. Empty: longer than the model's context.
  Result<std::optional<PromptRequest>> from_trace(const std::string& text, size_t line) const;
  // Later turns of conversations so far.
  size_t later_turns() const { return later_turns_; }
  size_t answered() const { return answered_; }  // conversations that end with an answer

 private:
  Result<PromptRequest> finish(RequestParams params, std::string_view text, SpecialTokens special,
                               size_t line) const;
  Result<std::string> render(const Conversation& chat) const;
  Result<std::vector<TokenId>> turn_after(const std::string& before, const std::string& turn,
                                          bool is_chat) const;
  Status check_question(const json& object, size_t line);

  const RequestParams& params_;
  std::map<std::string, size_t> questions_;  // lines of ids of benchmarks, as JSON text
  const RequestBuilder builder_;
  size_t later_turns_ = 0;
  size_t answered_ = 0;
};

Result<PromptRequest> Reader::finish(RequestParams params, std::string_view text, SpecialTokens special,
                                     size_t line) const {
  const Names names = line > 0 ? Names::kKeys : Names::kFlags;
  PromptRequest out{.request = {}, .line = line, .form = form_hash(params.grammar)};
  ASSIGN_OR_RETURN(out.request, builder_.build(std::move(params), names));
  ASSIGN_OR_RETURN(auto prompt, builder_.encode(text, special, names));
  RETURN_IF_ERROR(builder_.set_prompt(out.request, std::move(prompt)));
  return out;
}

// A prompt as a user's message, behind --system.
std::vector<ChatMessage> messages_of(const RequestParams& params, const std::string& prompt) {
  std::vector<ChatMessage> messages;
  if (!params.system.empty()) messages.push_back({"system", params.system});
  messages.push_back({"user", prompt});
  return messages;
}

Result<PromptRequest> Reader::from_flags() const {
  if (!params_.chat) return finish(params_, *params_.prompt, SpecialTokens::kAdd, 0);
  ASSIGN_OR_RETURN(const std::string text,
                   render({.messages = messages_of(params_, *params_.prompt), .options = {}}));
  return finish(params_, text, SpecialTokens::kOmit, 0);
}

// If --chat was given, a missing template is an error even for a line with messages of its own.
Result<std::string> Reader::render(const Conversation& chat) const {
  if (params_.chat) RETURN_IF_ERROR(builder_.check_chat());
  return builder_.render(chat.messages, chat.options);
}

// The parser of one line calls it line 1; the file's line number is already in front.
std::string without_line_number(std::string message) {
  constexpr std::string_view kOne = "parse error at line 1, ";
  if (const size_t at = message.find(kOne); at != std::string::npos) message.erase(at, kOne.size());
  return message;
}

Result<std::optional<PromptRequest>> Reader::from_trace(const std::string& text, size_t line) const {
  ASSIGN_OR_RETURN(const TraceLine lengths, trace_line(text));
  if (lengths.prompt_tokens + lengths.output_tokens > builder_.max_context())
    return std::optional<PromptRequest>();
  RequestParams params = params_;
  params.seed = hash_combine(params_.seed, line);
  params.max_tokens = static_cast<int>(lengths.output_tokens);
  params.ignore_eos = true;
  const uint64_t seed = params.seed;
  PromptRequest out{.request = {}, .line = line, .category = "trace"};
  ASSIGN_OR_RETURN(out.request, builder_.build(std::move(params), Names::kKeys));
  std::vector<TokenId> prompt;
  for (int64_t i = 0; i < lengths.prompt_tokens; ++i)
    prompt.emplace_back(static_cast<int32_t>(hash_combine(seed, static_cast<uint64_t>(i)) %
                                             static_cast<uint64_t>(builder_.vocab_size())));
  RETURN_IF_ERROR(builder_.set_prompt(out.request, std::move(prompt)));
  return std::optional(std::move(out));
}

// The tokens between an answer and the answer to the next turn: the template's, or an empty line and the
// text.
Result<std::vector<TokenId>> Reader::turn_after(const std::string& before, const std::string& turn,
                                                bool is_chat) const {
  if (!is_chat) return builder_.encode("\n\n" + turn, SpecialTokens::kOmit, Names::kKeys);
  constexpr std::string_view kAnswer = "(the answer stands here)";
  ASSIGN_OR_RETURN(
      const std::string rendered,
      render({.messages = {{"user", before}, {"assistant", std::string(kAnswer)}, {"user", turn}},
              .options = {}}));
  const size_t at = rendered.rfind(kAnswer);
  if (at == std::string::npos)
    return unsupported("the model's chat template drops earlier answers, so a second turn cannot be asked");
  return builder_.encode(rendered.substr(at + kAnswer.size()), SpecialTokens::kOmit, Names::kKeys);
}

// A benchmark's row is known by its id, and counted by its category.
Status Reader::check_question(const json& object, size_t line) {
  const auto id = object.find("question_id");
  if (id == object.end()) return {};
  if (!id->is_string() && !id->is_number_integer())
    return invalid_argument("\"question_id\" must be a text or a whole number");
  const auto category = object.find("category");
  if (category != object.end() && !category->is_null() && !category->is_string())
    return invalid_argument("\"category\" must be a text");
  const auto [first, is_new] = questions_.emplace(json_text(*id), line);
  if (is_new) return {};
  return invalid_argument(fmt::format("\"question_id\" {} stands in line {}, too; rows need ids of their own",
                                      first->first.substr(0, 100), first->second));
}

Result<std::vector<PromptRequest>> Reader::from_line(const std::string& text, size_t line) {
  auto parsed = parse_json(text, "not JSON",
                           {.max_bytes = kMaxRequestBytes, .max_depth = 16, .whole_numbers_fit = true});
  if (!parsed.ok() && parsed.status().code() == StatusCode::kInvalidArgument) return parsed.status();
  if (!parsed.ok())
    return malformed(without_line_number(parsed.status().message()) +
                     "; each line is a whole request: {\"prompt\": \"...\"}");
  json object = std::move(parsed).value();
  if (!object.is_object()) return invalid_argument("not a JSON object; write {\"prompt\": \"...\"}");
  std::string category, first_turn;
  bool is_chat = params_.chat;
  std::vector<std::string> later_turns;
  RETURN_IF_ERROR(check_question(object, line));
  for (const char* other : {"prompt", "messages"})
    if (object.contains("turns") && object.contains(other))
      return invalid_argument(
          fmt::format("\"turns\" and \"{}\" are both there; keep \"turns\" with \"question_id\", or \"{}\"",
                      other, other));
  if (auto published = published_line(object)) {
    first_turn = published->prompt;
    is_chat = is_chat || published->is_chat;
    object = json::object();
    if (published->is_chat)
      object["messages"] = json::array({json{{"role", "user"}, {"content", first_turn}}});
    else
      object["prompt"] = first_turn;
    if (!published->id.empty()) object["id"] = json::parse(published->id);
    category = std::move(published->category);
    later_turns = std::move(published->later_turns);
  }
  if (object.contains("question_id"))
    return invalid_argument(
        "\"question_id\" stands in rows of benchmarks, with \"turns\", a list of texts, or with \"messages\" "
        "that "
        "are all the user's");
  const std::vector<std::string_view> known = known_keys();
  for (const auto& [key, value] : object.items())
    if (std::find(known.begin(), known.end(), key) == known.end()) return unknown_key(known, key);
  RETURN_IF_ERROR(take(object, "category", category));

  RequestParams params = params_;
  params.seed = hash_combine(params_.seed, line);
  RETURN_IF_ERROR(take_sampling(object, params));
  RETURN_IF_ERROR(take(object, "logprobs", params.logprobs));
  RETURN_IF_ERROR(take_form_of_line(object, text, params.grammar));

  const bool has_prompt = object.contains("prompt"), has_messages = object.contains("messages");
  if (has_prompt == has_messages) return invalid_argument("write either \"prompt\" or \"messages\"");
  for (const std::string_view key : kChatFields)
    if (!has_messages && object.contains(key))
      return invalid_argument(fmt::format("\"{}\" needs \"messages\"", key));
  Result<PromptRequest> request = invalid_argument("\"prompt\" must be a text");
  if (has_messages || (params.chat && object["prompt"].is_string())) {
    Conversation chat{.messages = messages_of(params, object.value("prompt", "")), .options = {}};
    if (has_messages) {
      ASSIGN_OR_RETURN(chat, take_conversation(object));
      answered_ += chat.messages.back().role == "assistant" && chat.options.add_generation_prompt;
    }
    ASSIGN_OR_RETURN(const std::string rendered, render(chat));
    request = finish(std::move(params), rendered, SpecialTokens::kOmit, line);
  } else if (object["prompt"].is_string()) {
    request = finish(std::move(params), object["prompt"].get<std::string>(), SpecialTokens::kAdd, line);
  }
  const bool has_id = object.contains("id");
  if (has_id && !object["id"].is_string() && !object["id"].is_number_integer())
    return invalid_argument("\"id\" must be a text or a whole number");
  RETURN_IF_ERROR(request.status());
  if (has_id) request->id = json_text(object["id"]);
  request->category = std::move(category);
  std::vector<PromptRequest> out{std::move(request).value()};
  for (const std::string& turn : later_turns) {
    PromptRequest next = out.front();
    next.request.prompt.clear();
    next.follows = true;
    ASSIGN_OR_RETURN(next.turn, turn_after(first_turn, turn, is_chat));
    out.push_back(std::move(next));
  }
  later_turns_ += later_turns.size();
  return out;
}

// Like std::getline, but of a line over the limit it keeps only one byte more than the limit.
bool next_line(std::istream& file, std::string& text) {
  text.clear();
  std::streambuf& bytes = *file.rdbuf();
  constexpr int kEnd = std::char_traits<char>::eof();
  for (int c = bytes.sbumpc(); c != '\n'; c = bytes.sbumpc()) {
    if (c == kEnd) return !text.empty();
    text.push_back(static_cast<char>(c));
    if (text.size() > kMaxRequestBytes) return true;
  }
  return true;
}

}  // namespace

Result<Request> request_of_turn(const PromptRequest& turn, const Request& before,
                                std::span<const TokenId> answer, int64_t max_context) {
  Request request = turn.request;
  request.prompt = before.prompt;
  // Templates end an answer with the token that the model ended it with, so it is not repeated.
  if (!answer.empty() && !turn.turn.empty() && answer.back() == turn.turn.front())
    answer = answer.first(answer.size() - 1);
  request.prompt.insert(request.prompt.end(), answer.begin(), answer.end());
  request.prompt.insert(request.prompt.end(), turn.turn.begin(), turn.turn.end());
  if (static_cast<int64_t>(request.prompt.size()) >= max_context)
    return resource_exhausted(fmt::format(
        "the conversation has {} tokens with this turn, the context {}; lower --max-tokens or raise "
        "--max-model-len",
        request.prompt.size(), max_context));
  // min_tokens applies to each answer, and is counted from the beginning of the text.
  if (request.sampling.ends_from > 0)
    request.sampling.ends_from =
        before.sampling.ends_from + static_cast<int32_t>(request.prompt.size() - before.prompt.size());
  return request;
}

Result<std::vector<PromptRequest>> read_requests(const RequestParams& params, const std::string& prompts_file,
                                                 const RequestModel& model, std::vector<std::string>* notes) {
  Reader reader(params, model);
  std::vector<PromptRequest> requests;
  if (params.prompt) {
    ASSIGN_OR_RETURN(auto request, reader.from_flags());
    requests.push_back(std::move(request));
    return requests;
  }
  const bool from_standard_input = prompts_file == "-";
  const std::string name = from_standard_input ? "standard input" : prompts_file;
  std::error_code ignored;
  std::ifstream file;
  if (!from_standard_input) file.open(prompts_file);
  if (!file || std::filesystem::is_directory(prompts_file, ignored))
    return not_found(fmt::format("--prompts {}: cannot be read; name a file of JSON lines", prompts_file));
  std::string text;
  bool is_trace = false;
  size_t too_long = 0;
  for (size_t line = 1; next_line(from_standard_input ? std::cin : file, text); ++line) {
    if (line == 1) {
      if (const std::string remedy = how_to_unpack(text, prompts_file); !remedy.empty())
        return invalid_argument(fmt::format("--prompts {}: {}", prompts_file, remedy));
      if ((is_trace = is_trace_header(text))) continue;
    }
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (text.size() > kMaxRequestBytes)
      return invalid_argument(fmt::format("{}:{}: the line is longer than {} bytes; one request is one line",
                                          name, line, kMaxRequestBytes));
    if (is_trace) {
      auto row = reader.from_trace(text, line);
      if (!row.ok()) return row.status().in(fmt::format("{}:{}", name, line));
      if (*row)
        requests.push_back(std::move(**row));
      else
        ++too_long;
      continue;
    }
    auto request = reader.from_line(text, line);
    if (!request.ok()) return request.status().in(fmt::format("{}:{}", name, line));
    for (PromptRequest& each : *request) requests.push_back(std::move(each));
  }
  if (requests.empty())
    return invalid_argument(fmt::format("--prompts {}: no requests in it{}", prompts_file,
                                        too_long > 0 ? " that fit the model's context" : ""));
  if (notes && reader.later_turns() > 0)
    notes->push_back(
        fmt::format("--prompts {}: {} later turns of conversations are asked after the model's own answer to "
                    "the turn before",
                    prompts_file, reader.later_turns()));
  if (notes && reader.answered() > 0)
    notes->push_back(
        fmt::format("--prompts {}: {} with an answer of the assistant, and the model writes one more; with "
                    "\"continue_final_message\": true it goes on with the last one, and with a message of "
                    "the user behind it "
                    "it answers that",
                    prompts_file,
                    reader.answered() == 1 ? "1 conversation ends"
                                           : fmt::format("{} conversations end", reader.answered())));
  if (notes && is_trace)
    notes->push_back(
        fmt::format("--prompts {}: a trace tells lengths, no texts and no pauses here: prompts are random "
                    "tokens, all asked "
                    "at once; {} of {} requests are longer than the model's context and left out",
                    prompts_file, too_long, too_long + requests.size()));
  return requests;
}

}  // namespace outrider
