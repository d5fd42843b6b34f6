#include "serve/api/format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "transformer/tokenizer/utf8.h"

namespace outrider {
namespace {

using nlohmann::json;

// A special token adds none to a text, so it is shown by its name.
std::string shown_bytes(TokenId id, const Tokenizer& tokenizer) {
  return tokenizer.is_special(id) ? std::string(tokenizer.token(id)) : tokenizer.token_bytes(id);
}

// A token that is no whole character is written as its bytes, so that no two look alike.
std::string token_text(TokenId id, const Tokenizer& tokenizer) {
  const std::string bytes = shown_bytes(id, tokenizer);
  if (!find_invalid_utf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const unsigned char byte : bytes) text += fmt::format("\\x{:02x}", byte);
  return text;
}

// Characters that begin in these bytes.
int64_t characters(const std::string& bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](unsigned char byte) { return (byte & 0xc0) != 0x80; });
}

double ratio(int64_t numerator, int64_t denominator) {
  return denominator > 0 ? static_cast<double>(numerator) / static_cast<double>(denominator) : 0;
}

}  // namespace

json completion_logprobs(std::span<const PositionLogprobs> positions, const Tokenizer& tokenizer,
                         int64_t& offset) {
  json out{{"tokens", json::array()},
           {"token_logprobs", json::array()},
           {"top_logprobs", json::array()},
           {"text_offset", json::array()}};
  for (const PositionLogprobs& position : positions) {
    const std::string text = token_text(position.chosen.id, tokenizer);
    json top{{text, position.chosen.logprob}};  // also where it is none of the best
    for (const TokenLogprob& token : position.top)
      top.emplace(token_text(token.id, tokenizer), token.logprob);
    out["tokens"].push_back(text);
    out["token_logprobs"].push_back(position.chosen.logprob);
    out["top_logprobs"].push_back(std::move(top));
    out["text_offset"].push_back(offset);
    const std::string bytes = tokenizer.token_bytes(position.chosen.id);
    const bool is_stripped = offset == 0 && tokenizer.strips_leading_space() && bytes.starts_with(' ');
    offset += characters(bytes) - (is_stripped ? 1 : 0);
  }
  return out;
}

json chat_logprobs(std::span<const PositionLogprobs> positions, const Tokenizer& tokenizer) {
  const auto entry = [&](const TokenLogprob& token) {
    const std::string bytes = shown_bytes(token.id, tokenizer);
    return json{{"token", token_text(token.id, tokenizer)},
                {"logprob", token.logprob},
                {"bytes", std::vector<uint8_t>(bytes.begin(), bytes.end())}};
  };
  json content = json::array();
  for (const PositionLogprobs& position : positions) {
    json chosen = entry(position.chosen);
    chosen["top_logprobs"] = json::array();
    for (const TokenLogprob& token : position.top) chosen["top_logprobs"].push_back(entry(token));
    content.push_back(std::move(chosen));
  }
  return {{"content", std::move(content)}};
}

json usage_json(int64_t prompt_tokens, int64_t completion_tokens) {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens}};
}

json speculation_json(const RoundSums& rounds) {
  const int64_t steps = rounds.rounds - rounds.g0_rounds;  // with a draft
  const size_t longest = std::max<size_t>(rounds.gamma_histogram.size(), 1) - 1;
  std::vector<int64_t> accepted = rounds.accepted_histogram;
  accepted.resize(longest + 1);  // of [0, longest], as its readers check
  accepted[0] -= rounds.g0_rounds;
  return {{"speculative_decoding",
           {{"num_spec_tokens", longest},
            {"num_spec_steps", steps},
            {"num_draft_tokens", rounds.drafted},
            {"num_accepted_draft_tokens", rounds.accepted},
            {"mean_acceptance_length", 1 + ratio(rounds.accepted, steps)},
            {"draft_acceptance_rate", ratio(rounds.accepted, rounds.drafted)},
            {"acceptance_histogram", accepted}}}};
}

}  // namespace outrider
