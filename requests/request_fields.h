// The fields of a request in JSON, a line of a file or the body of an HTTP request, read over the defaults of
// the run. A null counts as absent. Errors begin with the field's name in quotes; ranges are checked when a
// Request is built of it (request_builder.h).
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "start/flags/options.h"
#include "transformer/chat_template/chat_template.h"

namespace outrider {

using LogitBias = std::vector<std::pair<TokenId, float>>;

// Null if absent.
const nlohmann::json* find_field(const nlohmann::json& object, const char* key);
// Of T's kind and in its range.
template <class T>
Status take(const nlohmann::json& object, const char* key, T& to);

// What every kind of request may say about how its tokens are drawn and where it ends, read by
// take_sampling, take_bias and, as they mean different things, by who takes "logprobs".
constexpr std::array<std::string_view, 14> kSamplingFields = {"max_tokens",
                                                              "temperature",
                                                              "seed",
                                                              "stop",
                                                              "top_p",
                                                              "top_k",
                                                              "min_p",
                                                              "repetition_penalty",
                                                              "presence_penalty",
                                                              "frequency_penalty",
                                                              "logit_bias",
                                                              "ignore_eos",
                                                              "logprobs",
                                                              "rule"};
Status take_sampling(const nlohmann::json& object, RunOptions& to);
Result<LogitBias> take_bias(const nlohmann::json& object);
// What a request may say about "messages", a list of {role, content, name}. A content is a text or a list of
// parts, {"type": "text", "text": ...}.
constexpr std::array<std::string_view, 4> kChatFields = {"messages", "add_generation_prompt",
                                                         "continue_final_message", "chat_template_kwargs"};
struct Conversation {
  std::vector<ChatMessage> messages;
  ChatOptions options;
};
Result<Conversation> take_conversation(const nlohmann::json& object);

// That there is no such key, and which one was probably meant.
Status unknown_key(std::span<const std::string_view> known, const std::string& key);

}  // namespace outrider
