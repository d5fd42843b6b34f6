// Renders a Hugging Face chat template: the subset of Jinja that the supported families use, with limits on
// steps, output and recursion. Templates come from model files and are not trusted.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

struct ChatMessage {
  std::string role;
  std::string content;
};

class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;
  // add_generation_prompt: end with the header of the assistant's turn.
  virtual Result<std::string> render(const std::vector<ChatMessage>& messages,
                                     bool add_generation_prompt) const = 0;
};

// From chat_template.jinja or tokenizer_config.json's "chat_template" (string, or list with a "default"
// entry). kNotFound when the model has none.
Result<std::unique_ptr<ChatTemplate>> load_chat_template(const std::filesystem::path& model_directory);
// `bos_token` and `eos_token` are variables of the template.
Result<std::unique_ptr<ChatTemplate>> parse_chat_template(const std::string& source,
                                                          const std::string& bos_token,
                                                          const std::string& eos_token);

}  // namespace outrider
