// Checks parameters and a prompt, and makes a Request: the same for flags, lines of a file and HTTP requests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/request/request.h"
#include "requests/request_params.h"
#include "text/tokenizer/tokenizer.h"

namespace outrider {

class ChatTemplate;

// The longest draft that a request may ask for, whatever the server's own limit.
constexpr int kMostSpeculativeTokens = 64;
struct ChatMessage;
struct ChatOptions;

// The properties of a model that are needed to read requests for it. Its references must outlive its users.
struct RequestModel {
  const Tokenizer& tokenizer;
  // The model's template, or the reason why there is none; only requests that need it report the reason.
  const Result<std::unique_ptr<ChatTemplate>>& chat;
  std::string directory;  // --model
  int64_t max_context = 0;
  int64_t vocab_size = 0;
  bool context_may_grow = false;      // the context is limited by --max-model-len, not by the model
  bool synthetic_acceptance = false;  // a text and its end are meaningless
  // Requests may name files: they come from this machine's user, in files that this user wrote.
  bool reads_files = false;
  std::vector<TokenId> eos_ids;  // those of its vocabulary
  // Requests come from several clients: one that chooses its own drafting pays for it, and its drafts are at
  // most this long.
  bool is_shared = false;
  int max_num_speculative_tokens = kMostSpeculativeTokens;
  // Null: requests cannot be limited to a form here. `why_no_masks`: the reason why this target takes no
  // masks; empty: it does.
  const GrammarCompiler* grammars = nullptr;
  std::string why_no_masks = {};
};

// Immutable; safe to share between threads.
class RequestBuilder {
 public:
  // The naming of a parameter in messages: --top-p or "top_p".
  enum class Names { kFlags, kKeys };

  explicit RequestBuilder(RequestModel model) : model_(std::move(model)) {}

  // A request without a prompt, even if the parameters have one.
  Result<Request> build(RequestParams params, Names names) const;
  // The text of a conversation. Encode it without special tokens, since the template has written its own.
  Result<std::string> render(const std::vector<ChatMessage>& messages, const ChatOptions& options) const;
  // The text of the template; empty: there is none.
  std::string_view chat_template() const;
  // Whether requests that leave everything out have parameters that are allowed. An error names the flag.
  Status check_defaults(const RequestParams& defaults) const { return check(defaults, Names::kFlags); }
  // Whether there is a template to render with. An error names the model.
  Status check_chat() const;
  Result<std::vector<TokenId>> encode(std::string_view text, SpecialTokens special, Names names) const;
  // kResourceExhausted: the prompt is longer than the context.
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
