#include "requests/request_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/chat_template/chat_template.h"
#include "text/grammar/token_limits.h"

namespace outrider {
namespace {

using Names = RequestBuilder::Names;

// Larger values would overflow the arithmetic of logits: a model's own logits are some tens, counts some
// thousands, and temperatures at least 1e-5.
constexpr float kMinRepetition = 1e-3f, kMaxRepetition = 1e3f, kMaxAddend = 1e6f;
constexpr size_t kMaxStopIds = 256;

std::string name_of(std::string key, Names names) {
  if (key.starts_with("--")) return key;  // the line has it from a flag
  if (names == Names::kKeys) return fmt::format("\"{}\"", key);
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

// Replaces a flag of one word at the beginning of a message by the key.
Status with_names(const Status& status, Names names) {
  if (names == Names::kFlags || !status.message().starts_with("--")) return status;
  const std::string& text = status.message();
  const size_t end = std::min(text.find(' '), text.size());
  return {status.code(), fmt::format("\"{}\"{}", text.substr(2, end - 2), text.substr(end))};
}

}  // namespace

Status RequestBuilder::check(const RequestParams& o, Names names) const {
  const auto must = [&](const char* key, auto value, const char* rule) {
    return invalid_argument(fmt::format("{} {}: must be {}", name_of(key, names), value, rule));
  };
  const auto finite = [](float v) { return std::isfinite(v); };
  if (o.max_tokens < 1) return must("max_tokens", o.max_tokens, "at least 1");
  if (!finite(o.temperature) || o.temperature < 0 || o.temperature > 100)
    return must("temperature", o.temperature, "0 to 100");
  if (o.top_k < -1) return must("top_k", o.top_k, "0 or -1 (off) or more");
  if (!(o.top_p > 0 && o.top_p <= 1)) return must("top_p", o.top_p, "above 0 and at most 1");
  if (!(o.min_p >= 0 && o.min_p <= 1)) return must("min_p", o.min_p, "0 to 1");
  if (!(o.repetition_penalty >= kMinRepetition && o.repetition_penalty <= kMaxRepetition))
    return must("repetition_penalty", o.repetition_penalty, "0.001 to 1000; 1 is off");
  const auto is_addend = [](float v) { return std::abs(v) <= kMaxAddend; };
  if (!is_addend(o.presence_penalty)) return must("presence_penalty", o.presence_penalty, "-1e6 to 1e6");
  if (!is_addend(o.frequency_penalty)) return must("frequency_penalty", o.frequency_penalty, "-1e6 to 1e6");
  for (const auto& [id, value] : o.logit_bias)
    if (!is_addend(value)) return must("logit_bias", value, "-1e6 to 1e6");
  if (o.logprobs < -1 || o.logprobs > 100) return must("logprobs", o.logprobs, "0 to 100");
  if (o.prompt_logprobs < -1 || o.prompt_logprobs > 100)
    return must("prompt_logprobs", o.prompt_logprobs, "0 to 100");
  const auto most = std::min<int64_t>(o.max_tokens, model_.max_context);
  if (o.min_tokens < 0 || o.min_tokens > most)
    return must("min_tokens", o.min_tokens,
                fmt::format("0 to {}, the least of max_tokens and the context", most).c_str());
  if (o.stop_token_ids.size() > kMaxStopIds)
    return must("stop_token_ids", fmt::format("with {} ids", o.stop_token_ids.size()), "at most 256 ids");
  if (o.stop.size() > 16)
    return must("stop", fmt::format("with {} texts", o.stop.size()), "at most 16 texts");
  for (const std::string& stop : o.stop)
    if (stop.empty() || stop.size() > 1024)
      return must("stop", fmt::format("of {} bytes", stop.size()), "1 to 1024 bytes");
  return {};
}

Result<Request> RequestBuilder::build(RequestParams params, Names names) const {
  RETURN_IF_ERROR(check(params, names));
  auto sampling = sampling_of(params);
  if (!sampling.ok()) return with_names(sampling.status(), names);
  Request request{.prompt = {}, .sampling = std::move(sampling).value(), .gamma = {}};
  std::vector<TokenId> biased;
  for (const auto& [id, value] : request.sampling.logit_bias) biased.push_back(id);
  RETURN_IF_ERROR(check_ids("logit_bias", biased, names));
  RETURN_IF_ERROR(check_ids("stop_token_ids", params.stop_token_ids, names));
  RETURN_IF_ERROR(set_drafting(params, names, request));
  request.max_tokens = params.max_tokens;
  request.stop = std::move(params.stop);
  request.ignore_eos = params.ignore_eos;
  request.priority = params.priority;
  request.stop_ids = std::move(params.stop_token_ids);
  request.prompt_logprobs = params.prompt_logprobs;
  if (params.min_tokens > 0) {  // set_prompt() adds the prompt's
    request.sampling.ends_from = params.min_tokens;
    request.sampling.ends = request.stop_ids;
    if (!params.ignore_eos)
      request.sampling.ends.insert(request.sampling.ends.end(), model_.eos_ids.begin(), model_.eos_ids.end());
  }
  if (params.grammar)
    RETURN_IF_ERROR(set_grammar(*params.grammar, names, request).in(name_of(params.grammar->field, names)));
  RETURN_IF_ERROR(set_limits(params, names, request));
  if (model_.synthetic_acceptance) {
    if (params.logprobs >= 0 || params.prompt_logprobs >= 0)
      return invalid_argument(name_of("logprobs", names) + ": has no meaning with --synthetic-acceptance");
    request.ignore_eos = true;
    request.stop.clear();
    request.stop_ids.clear();
    request.sampling.ends.clear();
    request.sampling.ends_from = 0;
  }
  return request;
}

Status RequestBuilder::check_ids(const char* key, const std::vector<TokenId>& ids, Names names) const {
  for (const TokenId id : ids)
    if (id.value() < 0 || id.value() >= model_.vocab_size)
      return invalid_argument(fmt::format("{}: id {} is outside the vocabulary; ids are 0 to {}",
                                          name_of(key, names), id.value(), model_.vocab_size - 1));
  return {};
}

// May take seconds for a large grammar.
Status RequestBuilder::set_grammar(const AskedGrammar& asked, Names names, Request& request) const {
  if (!model_.why_no_masks.empty()) return unsupported(model_.why_no_masks);
  if (!model_.grammars) return unsupported("nothing is limited to a form here; leave it out");
  if (request.ignore_eos)
    return invalid_argument(
        fmt::format("the text ends where its grammar does, which {} forbids; leave it out",
                    name_of("ignore_eos", names)));
  ASSIGN_OR_RETURN(request.grammar, model_.grammars->compile(asked.spec));
  return {};
}

Status RequestBuilder::set_limits(const RequestParams& params, Names names, Request& request) const {
  constexpr size_t kMaxWords = 256;
  if (params.allowed_token_ids.empty() && params.bad_words.empty()) return {};
  const char* const field = params.bad_words.empty() ? "allowed_token_ids" : "bad_words";
  if (!model_.why_no_masks.empty()) return unsupported(model_.why_no_masks).in(name_of(field, names));
  RETURN_IF_ERROR(check_ids("allowed_token_ids", params.allowed_token_ids, names));
  if (params.bad_words.size() > kMaxWords)
    return invalid_argument(fmt::format("{} with {} words: must be at most {}", name_of("bad_words", names),
                                        params.bad_words.size(), kMaxWords));
  TokenLimits limits{.allowed = params.allowed_token_ids, .banned = {}};
  for (const std::string& word : params.bad_words) {
    auto runs = runs_of_word(word, model_.tokenizer);
    if (!runs.ok()) return runs.status().in(name_of("bad_words", names));
    limits.banned.insert(limits.banned.end(), runs->begin(), runs->end());
  }
  request.grammar =
      limit_tokens(std::move(limits), std::move(request.grammar), static_cast<int32_t>(model_.vocab_size));
  return {};
}

Status RequestBuilder::set_drafting(const RequestParams& params, Names names, Request& request) const {
  std::string policy = params.gamma_policy;
  if (params.num_speculative_tokens) {
    const int length = *params.num_speculative_tokens;
    const int most = model_.max_num_speculative_tokens;
    if (length < 0 || length > most)
      return invalid_argument(
          fmt::format("{} {}: must be 0 (plain decoding) to {}{}", name_of("num_speculative_tokens", names),
                      length, most, most < kMostSpeculativeTokens ? " (--max-num-speculative-tokens)" : ""));
    policy = fmt::format("fixed:gamma={}", length);
  }
  if (policy.empty()) return {};
  const auto files = model_.reads_files ? PolicyFiles::kRead : PolicyFiles::kRefused;
  auto gamma = model_.is_shared ? parse_capped_gamma_policy(policy, files, model_.max_num_speculative_tokens)
                                : parse_gamma_policy(policy, files);
  if (!gamma.ok()) return with_names(gamma.status(), names).in(name_of("gamma_policy", names));
  request.gamma = std::move(gamma).value();
  request.pays_for_drafts = model_.is_shared;
  return {};
}

std::string_view RequestBuilder::chat_template() const {
  return model_.chat.ok() ? std::string_view((*model_.chat)->source()) : std::string_view();
}

// Most errors name the file of the template, which is in the directory.
Status RequestBuilder::check_chat() const {
  const Status& status = model_.chat.status();
  return status.in(status.message().starts_with(model_.directory) ? "--model"
                                                                  : "--model " + model_.directory);
}

Result<std::string> RequestBuilder::render(const std::vector<ChatMessage>& messages,
                                           const ChatOptions& options) const {
  if (model_.chat.status().code() == StatusCode::kNotFound)
    return unsupported("the model has no chat template; send a prompt instead of messages");
  RETURN_IF_ERROR(check_chat());
  return (*model_.chat)->render(messages, options);
}

Result<std::vector<TokenId>> RequestBuilder::encode(std::string_view text, SpecialTokens special,
                                                    Names names) const {
  auto ids = model_.tokenizer.encode(text, special);
  if (!ids.ok()) return ids.status().in(name_of("prompt", names));
  return ids;
}

Status RequestBuilder::set_prompt(Request& request, std::vector<TokenId> prompt) const {
  if (prompt.empty())
    return invalid_argument(
        "the prompt is empty and this tokenizer adds no beginning-of-sequence token; write a prompt");
  for (const TokenId id : prompt)
    if (id.value() < 0 || id.value() >= model_.vocab_size)
      return invalid_argument(
          fmt::format("the prompt has id {}, which is outside the vocabulary; ids are 0 to {}", id.value(),
                      model_.vocab_size - 1));
  if (static_cast<int64_t>(prompt.size()) >= model_.max_context)
    return resource_exhausted(fmt::format("the prompt has {} tokens, the context {}; shorten it{}",
                                          prompt.size(), model_.max_context,
                                          model_.context_may_grow ? " or raise --max-model-len" : ""));
  request.prompt = std::move(prompt);
  if (request.sampling.ends_from > 0)
    request.sampling.ends_from += static_cast<int32_t>(request.prompt.size());
  return {};
}

}  // namespace outrider
