#include "serve/api/fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "requests/asked_form.h"
#include "requests/conversation.h"
#include "requests/request_fields.h"

namespace outrider {
namespace {

using nlohmann::json;

// In addition to kSamplingFields.
constexpr std::array<std::string_view, 16> kCommon = {"model",
                                                      "n",
                                                      "best_of",
                                                      "stream",
                                                      "stream_options",
                                                      "timeout",
                                                      "cache_salt",
                                                      "prompt_logprobs",
                                                      "return_token_ids",
                                                      "max_completion_tokens",
                                                      "allowed_token_ids",
                                                      "bad_words",
                                                      "add_special_tokens",
                                                      "skip_special_tokens",
                                                      "return_tokens_as_token_ids",
                                                      "include_stop_str_in_output"};
constexpr std::array<std::string_view, 2> kCompletionOnly = {"prompt", "echo"};
// In addition to kChatFields.
constexpr std::array<std::string_view, 1> kChatOnly = {"top_logprobs"};
// Read elsewhere; listed here for suggestions on misspelt names.
constexpr std::array<std::string_view, 4> kTools = {"tools", "tool_choice", "reasoning_effort", "thinking"};
constexpr std::array<std::string_view, 5> kMessagesOnly = {"messages", "system", "stop_sequences", "thinking",
                                                           "output_config"};
constexpr std::array<std::string_view, 8> kResponsesOnly = {
    "input", "instructions", "max_output_tokens", "text", "truncation", "include", "background", "reasoning"};

// They do not change the text.
constexpr std::array<std::string_view, 8> kHarmless = {
    "user",       "metadata",           "store", "service_tier", "prompt_cache_key", "safety_identifier",
    "request_id", "parallel_tool_calls"};

// Fields of other servers, of which only these values can be honoured.
struct Neutral {
  const char* key;
  const char* values;  // a list
};
constexpr Neutral kNeutral[] = {{"suffix", R"([""])"},
                                {"functions", "[[]]"},
                                {"function_call", R"(["none", "auto"])"},
                                {"modalities", R"([["text"]])"},
                                {"audio", "[]"},
                                {"prediction", "[]"},
                                {"web_search_options", "[]"},
                                {"reasoning_effort", "[]"},
                                {"verbosity", "[]"},
                                {"length_penalty", "[1]"},
                                {"use_beam_search", "[false]"},
                                {"spaces_between_special_tokens", "[true]"},
                                {"detokenize", "[true]"},
                                {"truncate_prompt_tokens", "[]"},
                                // Completions take these three at their defaults only; chats honour them.
                                {"add_generation_prompt", "[true]"},
                                {"continue_final_message", "[false]"},
                                {"chat_template_kwargs", "[{}]"},
                                {"chat_template", "[]"},
                                {"documents", "[[]]"},
                                {"logits_processors", "[[]]"},
                                // Fields of vLLM, SGLang and llama.cpp, switched off or at their defaults.
                                {"echo", "[false]"},
                                {"include_reasoning", "[true, false]"},
                                {"separate_reasoning", "[true, false]"},
                                {"chat_template_content_format", R"(["auto"])"},
                                {"guided_decoding_backend", R"(["auto"])"},
                                {"mm_processor_kwargs", "[{}]"},
                                {"vllm_xargs", "[{}]"},
                                {"kv_transfer_params", "[{}]"},
                                {"typical_p", "[1]"},
                                {"mirostat", "[0]"},
                                {"dry_multiplier", "[0]"},
                                {"xtc_probability", "[0]"},
                                {"top_n_sigma", "[-1]"},
                                {"dynatemp_range", "[0]"},
                                {"n_probs", "[0]"},
                                {"no_stop_trim", "[false]"},
                                {"lora_path", "[]"}};

// Fields of responses that are kept on the server, which this one does not keep.
constexpr std::array<std::string_view, 3> kOfKeptResponses = {"previous_response_id", "conversation",
                                                              "prompt"};

template <class List>
bool holds(const List& list, std::string_view key) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

Status check_neutral(const Neutral& field, const json& value) {
  const json values = json::parse(field.values);
  if (std::find(values.begin(), values.end(), value) != values.end()) return {};
  std::string remedy = "leave it out";
  if (!values.empty()) remedy += ", or send " + json_text(values[0]);
  return unsupported(fmt::format("\"{}\" is not supported; {}", field.key, remedy));
}

using FieldNames = std::vector<std::string_view>;

template <class... Lists>
FieldNames joined(const Lists&... lists) {
  FieldNames all;
  (all.insert(all.end(), lists.begin(), lists.end()), ...);
  return all;
}

FieldNames accepted(ApiKind kind) {
  return kind == ApiKind::kCompletion ? joined(kSamplingFields, kCommon, kCompletionOnly)
                                      : joined(kSamplingFields, kCommon, kChatFields, kChatOnly);
}

// Fields that a client of this endpoint may have misspelt.
FieldNames meant(ApiKind kind) {
  const FieldNames all = joined(accepted(kind), kFormFields, kHarmless);
  switch (kind) {
    case ApiKind::kCompletion:
      return all;
    case ApiKind::kChat:
      return joined(all, kTools);
    case ApiKind::kMessages:
      return joined(kSamplingFields, kFormFields, kHarmless, kTools, kMessagesOnly);
    case ApiKind::kResponses:
      return joined(kSamplingFields, kFormFields, kHarmless, kTools, kResponsesOnly);
  }
  return all;
}

}  // namespace

Status check_fields(ApiKind kind, const json& body) {
  const FieldNames known = accepted(kind);
  for (const auto& [key, value] : body.items()) {
    if (value.is_null() || holds(known, key) || holds(kHarmless, key)) continue;
    if (kind == ApiKind::kResponses && holds(kOfKeptResponses, key))
      return unsupported(
          fmt::format("\"{}\" is not supported, because responses are not kept here; send the whole "
                      "conversation in \"input\", and the rules in \"instructions\"",
                      key));
    const auto neutral = std::find_if(std::begin(kNeutral), std::end(kNeutral),
                                      [&](const Neutral& field) { return field.key == key; });
    RETURN_IF_ERROR(neutral != std::end(kNeutral) ? check_neutral(*neutral, value)
                                                  : unknown_key(meant(kind), key));
  }
  return {};
}

}  // namespace outrider
