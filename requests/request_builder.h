// Parameters and a prompt, checked and made a Request: the same for flags, lines of a file and HTTP requests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/request.h"
#include "requests/request_fields.h"
#include "start/flags/options.h"
#include "transformer/chat_template/chat_template.h"
#include "transformer/tokenizer/tokenizer.h"

namespace outrider {

// Immutable; safe to share between threads. What it is given outlives it.
class RequestBuilder {
 public:
  // How a message calls a parameter: --top-p or "top_p".
  enum class Names { kFlags, kKeys };

  // `options`: the run's own. `chat`: the model's template, or why there is none, which only those who need
  // it are told.
  RequestBuilder(const RunOptions& options, const Tokenizer& tokenizer,
                 const Result<std::unique_ptr<ChatTemplate>>& chat, int64_t max_context, int64_t vocab_size)
      : options_(options),
        tokenizer_(tokenizer),
        chat_(chat),
        max_context_(max_context),
        vocab_size_(vocab_size) {}

  // A request without a prompt.
  Result<Request> build(RunOptions parameters, const LogitBias& bias, Names names) const;
  // The text of a conversation; encode it without special tokens, for the template has written its own.
  Result<std::string> render(const std::vector<ChatMessage>& messages, const ChatOptions& options = {}) const;
  Result<std::vector<TokenId>> encode(std::string_view text, SpecialTokens special, Names names) const;
  // kResourceExhausted: more tokens than the context has.
  Status set_prompt(Request& request, std::vector<TokenId> prompt) const;

  int64_t max_context() const { return max_context_; }
  int64_t vocab_size() const { return vocab_size_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  Status check(const RunOptions& parameters, Names names) const;
  // Whether it may be --max-model-len, not the model, that limits the context.
  bool context_may_grow() const { return options_.max_model_len > 0 || max_context_ == kDefaultMaxModelLen; }

  const RunOptions& options_;
  const Tokenizer& tokenizer_;
  const Result<std::unique_ptr<ChatTemplate>>& chat_;
  const int64_t max_context_;
  const int64_t vocab_size_;
};

}  // namespace outrider
