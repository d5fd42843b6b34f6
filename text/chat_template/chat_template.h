// Renders a Hugging Face chat template: the Jinja that model files use, as transformers sets it up, with
// limits on steps, output and recursion. Templates come from model files and are not trusted.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

struct ChatMessage {
  std::string role;
  std::string content;
  // The texts of a content that came in parts; `content` is empty then. A template that prints parts of this
  // role gets the list, any other their concatenation.
  std::vector<std::string> parts = {};
  std::optional<std::string> name = {};
  nlohmann::ordered_json fields = nlohmann::ordered_json::object();  // others, such as tool_calls
};

struct ChatOptions {
  // End with the header of the assistant's turn.
  bool add_generation_prompt = true;
  // End within the last message, which the model goes on with. Not together with add_generation_prompt.
  bool continue_final_message = false;
  // Tool definitions for the template; null: there are none.
  nlohmann::ordered_json tools = nullptr;
  // More variables of the template, an object. They may replace bos_token and eos_token.
  nlohmann::json variables = nlohmann::json::object();
  // The time that strftime_now() formats; absent: the time of the rendering.
  std::optional<std::chrono::system_clock::time_point> now = {};
};

class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;
  virtual Result<std::string> render(const std::vector<ChatMessage>& messages,
                                     const ChatOptions& options) const = 0;
  virtual const std::string& source() const = 0;
};

// From chat_template.jinja or tokenizer_config.json's "chat_template" (string, or list with a "default"
// entry). kNotFound when the model has none.
// `file`: not empty: the template is there instead; the model still tells its bos_token and eos_token.
Result<std::unique_ptr<ChatTemplate>> load_chat_template(const std::filesystem::path& model_directory,
                                                         const std::filesystem::path& file = {});
// `bos_token` and `eos_token` are variables of the template.
Result<std::unique_ptr<ChatTemplate>> parse_chat_template(const std::string& source,
                                                          const std::string& bos_token,
                                                          const std::string& eos_token);

}  // namespace outrider
