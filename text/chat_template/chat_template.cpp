#include "text/chat_template/chat_template.h"

#include <map>
#include <nlohmann/json.hpp>

#include "base/json_file.h"
#include "base/json_text.h"
#include "base/utf8.h"
#include "model_files/gguf_file.h"
#include "text/chat_template/builtins.h"
#include "text/chat_template/interpreter.h"
#include "text/chat_template/syntax.h"
#include "text/tokenizer/json_view.h"
#include "text/tokenizer/loaders.h"
#include "text/tokenizer/tokenizer_config.h"

namespace outrider {
namespace {

using chat_template::Fields;
using chat_template::List;
using chat_template::Map;
using chat_template::strip;
using chat_template::Value;

constexpr size_t kMaxSourceBytes = 256 * 1024;
constexpr size_t kMaxKeys = 1024;  // of an object from outside; keys are searched linearly
constexpr const char* kTemplateFile = "chat_template.jinja";
constexpr const char* kConfigFile = "tokenizer_config.json";

// A copy of JSON from outside, whose depth its reader has bounded.
template <class Json>
Result<Value> value_of(const Json& json) {
  if (json.is_null()) return Value(chat_template::None{});
  if (json.is_boolean()) return Value(json.template get<bool>());
  if (json.is_number_float()) return Value(json.template get<double>());
  if (json.is_number_unsigned()) return Value(json.template get<uint64_t>());
  if (json.is_number()) return Value(json.template get<int64_t>());
  if (json.is_string()) {
    if (find_invalid_utf8(json.template get_ref<const std::string&>()))
      return invalid_argument("a text is not valid UTF-8");
    return Value(json.template get<std::string>());
  }
  if (json.is_array()) {
    List list;
    for (const auto& element : json) {
      ASSIGN_OR_RETURN(Value value, value_of(element));
      list.push_back(std::move(value));
    }
    return Value(std::move(list));
  }
  if (json.size() > kMaxKeys)
    return invalid_argument(fmt::format("an object of more than {} keys", kMaxKeys));
  Map map;
  for (const auto& [key, element] : json.items()) {
    if (find_invalid_utf8(key)) return invalid_argument("a key is not valid UTF-8");
    ASSIGN_OR_RETURN(Value value, value_of(element));
    map.set(key, std::move(value));
  }
  return Value(std::move(map));
}

Value list_of_parts(const std::vector<std::string>& parts) {
  List list;
  for (const std::string& part : parts) {
    Map map;
    map.set("type", Value(std::string("text")));
    map.set("text", Value(part));
    list.emplace_back(std::move(map));
  }
  return Value(std::move(list));
}

std::string concatenated(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

Value message_value(const ChatMessage& message, Value content, const Map& fields = {}) {
  Map map = fields;
  map.set("role", Value(message.role));
  map.set("content", std::move(content));
  if (message.name) map.set("name", Value(*message.name));
  return Value(std::move(map));
}

Status check_messages(const std::vector<ChatMessage>& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    bool valid = !find_invalid_utf8(message.role) && !find_invalid_utf8(message.content) &&
                 !find_invalid_utf8(message.name.value_or(""));
    for (const std::string& part : message.parts) valid = valid && !find_invalid_utf8(part);
    if (!valid) return invalid_argument(fmt::format("message {} is not valid UTF-8", i));
  }
  return {};
}

// As transformers does it: the last text is marked, and what the template prints is cut at the mark. A
// template that trims the text takes the blank from the mark, and then blanks in front of it go too.
constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_TAG",
                           kMarkWithBlank = "CONTINUE_FINAL_MESSAGE_TAG ";

std::string& last_text(ChatMessage& message) {
  return message.parts.empty() ? message.content : message.parts.back();
}

Result<std::string> cut_at_mark(std::string rendered, const std::string& last_text) {
  const size_t at = rendered.rfind(kMark);
  if (at == std::string::npos || rendered.find(strip(last_text, nullptr, true, true)) == std::string::npos)
    return invalid_argument(
        "\"continue_final_message\": this model's chat template does not print the last message's "
        "content as it is, so it cannot be continued");
  const bool keeps_blanks = std::string_view(rendered).substr(at).starts_with(kMarkWithBlank);
  rendered.resize(at);
  return keeps_blanks ? rendered : strip(rendered, nullptr, false, true);
}

class ParsedTemplate : public ChatTemplate {
 public:
  ParsedTemplate(std::string source, chat_template::Block syntax, Fields variables)
      : source_(std::move(source)), syntax_(std::move(syntax)), variables_(std::move(variables)) {}

  const std::string& source() const override { return source_; }

  Result<std::string> render(const std::vector<ChatMessage>& messages,
                             const ChatOptions& options) const override {
    RETURN_IF_ERROR(check_messages(messages));
    if (!options.continue_final_message) return print(messages, options);
    if (options.add_generation_prompt)
      return invalid_argument(
          "\"continue_final_message\" and \"add_generation_prompt\" exclude each other; send one");
    if (messages.empty()) return invalid_argument("\"continue_final_message\" needs a message to continue");
    std::vector<ChatMessage> marked = messages;
    std::string& last = last_text(marked.back());
    const std::string unmarked = last;
    last += kMarkWithBlank;
    ASSIGN_OR_RETURN(std::string text, print(marked, options));
    return cut_at_mark(std::move(text), unmarked);
  }

 private:
  Result<std::string> print(const std::vector<ChatMessage>& messages, const ChatOptions& options) const {
    ASSIGN_OR_RETURN(Fields variables, variables_of(options));
    std::map<std::string, bool> takes_lists;  // by role
    std::optional<bool> wants_none;           // where a message calls and says nothing
    List list;
    for (const ChatMessage& message : messages) {
      Value content(message.content);
      if (!message.parts.empty()) {
        const auto [at, is_new] = takes_lists.try_emplace(message.role);
        if (is_new) at->second = prints_parts(message.role, variables, options);
        content = at->second ? list_of_parts(message.parts) : Value(concatenated(message.parts));
      }
      if (message.content.empty() && message.parts.empty() && message.fields.contains("tool_calls")) {
        if (!wants_none) wants_none = shows_calls_without_content_alone(variables, options);
        if (*wants_none) content = Value(chat_template::None{});
      }
      ASSIGN_OR_RETURN(const Map fields, fields_of(message));
      list.push_back(message_value(message, std::move(content), fields));
    }
    auto text = run(std::move(variables), std::move(list), options);
    if (!text.ok()) return text.status().in("chat template");
    return text;
  }

  // A message that calls and says nothing has an empty content. Some templates look for calls only where it
  // is none, which a call of a name of its own shows.
  bool shows_calls_without_content_alone(const Fields& variables, const ChatOptions& options) const {
    constexpr const char* kName = "name_of_a_call_to_look_for";
    ChatMessage probe{.role = "assistant", .content = {}};
    probe.fields["tool_calls"] = {
        {{"id", "abcdefghi"},
         {"type", "function"},
         {"function", {{"name", kName}, {"arguments", nlohmann::ordered_json::object()}}}}};
    const auto fields = fields_of(probe);
    if (!fields.ok()) return false;
    const Value user = message_value({"user", ""}, Value(std::string("x")));
    const auto shows = [&](Value content) {
      const auto text =
          run(variables, List{user, message_value(probe, std::move(content), *fields)}, options);
      return text.ok() && text->find(kName) != std::string::npos;
    };
    return !shows(Value(std::string())) && shows(Value(chat_template::None{}));
  }

  static Result<Map> fields_of(const ChatMessage& message) {
    Map map;
    for (const auto& [key, json] : message.fields.items()) {
      ASSIGN_OR_RETURN(Value value, value_of(json));
      RETURN_IF_ERROR(chat_template::Budget::check_size(value).in("\"" + key + "\""));
      map.set(key, std::move(value));
    }
    return map;
  }

  Result<Fields> variables_of(const ChatOptions& options) const {
    if (options.variables.size() > kMaxKeys)
      return invalid_argument(fmt::format("\"chat_template_kwargs\" has more than {} keys", kMaxKeys));
    Fields variables = variables_;
    for (const auto& [name, json] : options.variables.items()) {
      for (const char* reserved :
           {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
        if (name == reserved)
          return invalid_argument(
              fmt::format("\"chat_template_kwargs\": \"{}\" is set by the request itself", name));
      auto value = value_of(json);
      const Status status = value.ok() ? chat_template::Budget::check_size(*value) : value.status();
      if (!status.ok()) return status.in("\"chat_template_kwargs\": \"" + name + "\"");
      variables.set(name, std::move(*value));
    }
    if (!options.tools.is_null()) {
      auto tools = value_of(options.tools);
      const Status status = tools.ok() ? chat_template::Budget::check_size(*tools) : tools.status();
      if (!status.ok()) return status.in("\"tools\"");
      // SmolLM3 has a list for each of two forms of calls.
      if (!options.variables.contains("xml_tools") && !options.variables.contains("python_tools"))
        variables.set("xml_tools", *tools);
      variables.set("tools", std::move(*tools));
    }
    return variables;
  }

  Result<std::string> run(Fields variables, List messages, const ChatOptions& options) const {
    variables.set("messages", Value(std::move(messages)));
    variables.set("add_generation_prompt", Value(options.add_generation_prompt));
    return chat_template::render(syntax_, variables, options.now.value_or(std::chrono::system_clock::now()));
  }

  // True if the template prints the text of every part of such a message; a short conversation is rendered to
  // find out. A list that is printed as a whole has its line breaks escaped, so a line break within a text
  // distinguishes the two.
  bool prints_parts(const std::string& role, const Fields& variables, const ChatOptions& options) const {
    const std::string texts[] = {"first\npart", "second\npart"};
    const Value user = message_value({"user", ""}, Value(std::string("x")));
    const Value probe = message_value({role, ""}, list_of_parts({texts[0], texts[1]}));
    const auto text = run(variables,
                          role == "user"                            ? List{probe}
                          : role == "system" || role == "developer" ? List{probe, user}
                                                                    : List{user, probe},
                          options);
    return text.ok() && text->find(texts[0]) != std::string::npos &&
           text->find(texts[1]) != std::string::npos;
  }

  const std::string source_;
  chat_template::Block syntax_;
  Fields variables_;
};

// A string, or [{"name": "default", "template": "..."}, ...].
Result<std::string> template_of_config(const JsonView& json) {
  if (!json.is_array()) return json.string();
  for (size_t i = 0; i < json.size(); ++i) {
    ASSIGN_OR_RETURN(const std::string name, json.at(i)["name"].string());
    if (name == "default") return json.at(i)["template"].string();
  }
  return json.malformed("the list has no entry named 'default'");
}

Result<std::string> read_source(const std::filesystem::path& model_directory, std::string& where) {
  where = (model_directory / kTemplateFile).string();
  if (std::filesystem::exists(model_directory / kTemplateFile))
    return read_text_file(model_directory / kTemplateFile, kMaxSourceBytes);
  const std::filesystem::path path = model_directory / kConfigFile;
  where = path.string() + ": chat_template";
  if (std::filesystem::exists(path)) {
    ASSIGN_OR_RETURN(const nlohmann::json root, read_json_file(path, {.max_bytes = kMaxConfigBytes}));
    const JsonView json(root, path.string());
    if (json["chat_template"].present()) return template_of_config(json["chat_template"]);
  }
  return not_found(model_directory.string() + ": the model has no chat template; put " + kTemplateFile +
                   " beside its tokenizer, or send prompts as plain text");
}

}  // namespace

Result<std::unique_ptr<ChatTemplate>> parse_chat_template(const std::string& source,
                                                          const std::string& bos_token,
                                                          const std::string& eos_token) {
  if (source.size() > kMaxSourceBytes)
    return malformed(
        fmt::format("the chat template has {} bytes, more than {}", source.size(), kMaxSourceBytes));
  if (const auto offset = find_invalid_utf8(source))
    return malformed(fmt::format("the chat template is not valid UTF-8 at byte {}", *offset));
  ASSIGN_OR_RETURN(chat_template::Block syntax, chat_template::parse(source));
  Fields variables;
  if (!bos_token.empty()) variables.set("bos_token", Value(bos_token));
  if (!eos_token.empty()) variables.set("eos_token", Value(eos_token));
  // transformers passes None where there are no tools and no documents.
  variables.set("tools", Value(chat_template::None{}));
  variables.set("documents", Value(chat_template::None{}));
  return std::unique_ptr<ChatTemplate>(
      std::make_unique<ParsedTemplate>(source, std::move(syntax), std::move(variables)));
}

Result<std::unique_ptr<ChatTemplate>> load_chat_template(const std::filesystem::path& model_directory,
                                                         const std::filesystem::path& file) {
  std::string where = file.string();
  if (is_gguf_path(model_directory)) {
    ASSIGN_OR_RETURN(GgufChat chat, read_gguf_chat(model_directory));
    if (!file.empty()) {
      ASSIGN_OR_RETURN(chat.source, read_text_file(file, kMaxSourceBytes));
    } else if (!chat.source) {
      return not_found(model_directory.string() +
                       ": the model has no tokenizer.chat_template; give one, or send prompts as plain text");
    }
    auto parsed = parse_chat_template(*chat.source, chat.config.special("bos_token").value_or(""),
                                      chat.config.special("eos_token").value_or(""));
    return parsed.ok() ? std::move(parsed) : parsed.status().in(model_directory.string());
  }
  ASSIGN_OR_RETURN(const std::string source, file.empty() ? read_source(model_directory, where)
                                                          : read_text_file(file, kMaxSourceBytes));
  ASSIGN_OR_RETURN(const TokenizerConfig config, read_tokenizer_config(model_directory));
  auto parsed = parse_chat_template(source, config.special("bos_token").value_or(""),
                                    config.special("eos_token").value_or(""));
  if (!parsed.ok()) return parsed.status().in(where);
  return parsed;
}

}  // namespace outrider
