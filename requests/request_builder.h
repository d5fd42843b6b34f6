// Parameters and a prompt, checked and made a Request: the same for flags, lines of a file and HTTP requests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/request.h"
#include "requests/request_params.h"
#include "transformer/tokenizer/tokenizer.h"

namespace outrider {

class ChatTemplate;

// The longest draft that a request may ask for, whatever the server's own limit is.
constexpr int kMostSpeculativeTokens = 64;
struct ChatMessage;
struct ChatOptions;

// The model that requests go to, as far as reading them needs it. What it refers to outlives who uses it.
struct RequestModel {
  const Tokenizer& tokenizer;
  // The model's template, or why there is none, which only those who need it are told.
  const Result<std::unique_ptr<ChatTemplate>>& chat;
  std::string directory;  // --model
  int64_t max_context = 0;
  int64_t vocab_size = 0;
  bool context_may_grow = false;      // it may be --max-model-len, not the model, that limits the context
  bool synthetic_acceptance = false;  // a text means nothing, its end neither
  // Requests may name files: they are those of this machine's user, in files that this user wrote.
  bool reads_files = false;
  std::vector<TokenId> eos_ids;  // those of its vocabulary
  // Requests are of several clients: one that chooses how it drafts pays for that itself, and its drafts are
  // at most so long.
  bool is_shared = false;
  int max_num_speculative_tokens = kMostSpeculativeTokens;
  // Null: no request is limited to a form here. `why_no_masks`: why this target takes none; empty: it does.
  const GrammarCompiler* grammars = nullptr;
  std::string why_no_masks = {};
};

// Immutable; safe to share between threads.
class RequestBuilder {
 public:
  // How a message calls a parameter: --top-p or "top_p".
  enum class Names { kFlags, kKeys };

  explicit RequestBuilder(RequestModel model) : model_(std::move(model)) {}

  // A request without a prompt, whatever the parameters say of one.
  Result<Request> build(RequestParams params, Names names) const;
  // The text of a conversation; encode it without special tokens, for the template has written its own.
  Result<std::string> render(const std::vector<ChatMessage>& messages, const ChatOptions& options) const;
  // Of the template; empty: there is none.
  std::string_view chat_template() const;
  // Whether there is a template to render with. An error names the model.
  Status check_chat() const;
  Result<std::vector<TokenId>> encode(std::string_view text, SpecialTokens special, Names names) const;
  // kResourceExhausted: more tokens than the context has.
  Status set_prompt(Request& request, std::vector<TokenId> prompt) const;

  int64_t max_context() const { return model_.max_context; }
  int64_t vocab_size() const { return model_.vocab_size; }
  const Tokenizer& tokenizer() const { return model_.tokenizer; }

 private:
  Status check(const RequestParams& params, Names names) const;
  Status check_ids(const char* key, const std::vector<TokenId>& ids, Names names) const;
  Status set_grammar(const AskedGrammar& asked, Names names, Request& request) const;
  Status set_limits(const RequestParams& params, Names names, Request& request) const;
  Status set_drafting(const RequestParams& params, Names names, Request& request) const;

  const RequestModel model_;
};

}  // namespace outrider
