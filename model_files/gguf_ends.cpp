#include "model_files/gguf_ends.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace outrider {
namespace {

// Tokens with these texts end a text whatever the keys say.
constexpr auto kEnds = std::to_array<std::string_view>({
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "[e~[",
});
constexpr auto kEndKeys = std::to_array<const char*>(
    {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"});

}  // namespace

Result<std::vector<int64_t>> gguf_ends(const GgufContent& content, const std::string& name) {
  std::vector<int64_t> ends;
  const auto add = [&](int64_t id) {
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  };
  for (const char* key : kEndKeys) {
    ASSIGN_OR_RETURN(const auto id, gguf_integer(content, key, name));
    if (id && *id >= 0) add(*id);
  }
  const GgufArray* tokens = gguf_array(content, "tokenizer.ggml.tokens");
  const GgufArray* types = gguf_array(content, "tokenizer.ggml.token_type");
  if (!tokens) return ends;
  constexpr double kControl = 3;
  for (size_t id = 0; id < tokens->texts.size(); ++id) {
    const std::string_view text = tokens->texts[id];
    if (std::find(kEnds.begin(), kEnds.end(), text) == kEnds.end()) continue;
    // Vocabularies have </s> as HTML, too, which is no control token then. No text has <|im_end|> by chance.
    const bool is_control = types && id < types->count && types->number(id) == kControl;
    if (is_control || text.starts_with("<|")) add(static_cast<int64_t>(id));
  }
  return ends;
}

}  // namespace outrider
