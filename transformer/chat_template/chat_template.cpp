#include "transformer/chat_template/chat_template.h"

#include <nlohmann/json.hpp>

#include "transformer/chat_template/interpreter.h"
#include "transformer/chat_template/syntax.h"
#include "transformer/files/json_file.h"
#include "transformer/tokenizer/json_view.h"
#include "transformer/tokenizer/tokenizer_config.h"
#include "transformer/tokenizer/utf8.h"

namespace outrider {
namespace {

using chat_template::List;
using chat_template::Map;
using chat_template::Value;

constexpr size_t kMaxSourceBytes = 256 * 1024;
constexpr const char* kTemplateFile = "chat_template.jinja";
constexpr const char* kConfigFile = "tokenizer_config.json";

class ParsedTemplate : public ChatTemplate {
 public:
  ParsedTemplate(chat_template::Block syntax, Map variables)
      : syntax_(std::move(syntax)), variables_(std::move(variables)) {}

  Result<std::string> render(const std::vector<ChatMessage>& messages,
                             bool add_generation_prompt) const override {
    List list;
    for (size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      if (find_invalid_utf8(message.role) || find_invalid_utf8(message.content))
        return invalid_argument(fmt::format("message {} is not valid UTF-8", i));
      list.emplace_back(Map{{{"role", Value(message.role)}, {"content", Value(message.content)}}});
    }
    Map variables = variables_;
    variables.set("messages", Value(std::move(list)));
    variables.set("add_generation_prompt", Value(add_generation_prompt));
    auto text = chat_template::render(syntax_, variables);
    if (!text.ok()) return text.status().in("chat template");
    return text;
  }

 private:
  chat_template::Block syntax_;
  Map variables_;
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
  Map variables;
  if (!bos_token.empty()) variables.set("bos_token", Value(bos_token));
  if (!eos_token.empty()) variables.set("eos_token", Value(eos_token));
  // What transformers passes where there are none.
  variables.set("tools", Value(chat_template::None{}));
  variables.set("documents", Value(chat_template::None{}));
  return std::unique_ptr<ChatTemplate>(
      std::make_unique<ParsedTemplate>(std::move(syntax), std::move(variables)));
}

Result<std::unique_ptr<ChatTemplate>> load_chat_template(const std::filesystem::path& model_directory) {
  std::string where;
  ASSIGN_OR_RETURN(const std::string source, read_source(model_directory, where));
  ASSIGN_OR_RETURN(const TokenizerConfig config, read_tokenizer_config(model_directory));
  auto parsed = parse_chat_template(source, config.special("bos_token").value_or(""),
                                    config.special("eos_token").value_or(""));
  if (!parsed.ok()) return parsed.status().in(where);
  return parsed;
}

}  // namespace outrider
