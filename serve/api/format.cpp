#include "serve/api/format.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/statistics.h"
#include "base/utf8.h"

namespace outrider {
namespace {

using nlohmann::json;

// A token that is not whole characters is written as its bytes, so that no two tokens look alike.
std::string token_text(TokenId id, const Tokenizer& tokenizer, TokenNames names = TokenNames::kText) {
  if (names == TokenNames::kIds) return fmt::format("token_id:{}", id.value());
  const std::string bytes = shown_bytes(id, tokenizer);
  if (!find_invalid_utf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const unsigned char byte : bytes) text += fmt::format("\\x{:02x}", byte);
  return text;
}

// The number of characters that begin in these bytes.
int64_t characters(const std::string& bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](unsigned char byte) { return (byte & 0xc0) != 0x80; });
}

std::span<const TokenLogprob> best(const PositionLogprobs& position, int top) {
  return std::span(position.top).first(std::min(position.top.size(), static_cast<size_t>(top)));
}

json empty_logprobs() {
  return {{"tokens", json::array()},
          {"token_logprobs", json::array()},
          {"top_logprobs", json::array()},
          {"text_offset", json::array()}};
}

void add_offset(TokenId id, const Tokenizer& tokenizer, json& out, int64_t& offset) {
  out["text_offset"].push_back(offset);
  const std::string bytes = tokenizer.token_bytes(id);
  const bool is_stripped = offset == 0 && tokenizer.strips_leading_space() && bytes.starts_with(' ');
  offset += characters(bytes) - (is_stripped ? 1 : 0);
}

void add_position(const PositionLogprobs& position, int top_count, const Tokenizer& tokenizer,
                  TokenNames names, json& out, int64_t& offset) {
  const std::string text = token_text(position.chosen.id, tokenizer, names);
  json top{{text, position.chosen.logprob}};  // also if it is not among the best
  for (const TokenLogprob& token : best(position, top_count))
    top.emplace(token_text(token.id, tokenizer, names), token.logprob);
  out["tokens"].push_back(text);
  out["token_logprobs"].push_back(position.chosen.logprob);
  out["top_logprobs"].push_back(std::move(top));
  add_offset(position.chosen.id, tokenizer, out, offset);
}

}  // namespace

std::string shown_bytes(TokenId id, const Tokenizer& tokenizer) {
  return tokenizer.is_special(id) ? std::string(tokenizer.token(id)) : tokenizer.token_bytes(id);
}

json completion_logprobs(std::span<const PositionLogprobs> positions, const Tokenizer& tokenizer,
                         int64_t& offset, TokenNames names) {
  json out = empty_logprobs();
  for (const PositionLogprobs& position : positions)
    add_position(position, std::numeric_limits<int>::max(), tokenizer, names, out, offset);
  return out;
}

json echo_logprobs(TokenId first, std::span<const PositionLogprobs> positions, int top,
                   const Tokenizer& tokenizer, int64_t& offset, TokenNames names) {
  json out = empty_logprobs();
  out["tokens"].push_back(token_text(first, tokenizer, names));
  out["token_logprobs"].push_back(nullptr);
  out["top_logprobs"].push_back(nullptr);
  add_offset(first, tokenizer, out, offset);
  for (const PositionLogprobs& position : positions)
    add_position(position, top, tokenizer, names, out, offset);
  return out;
}

json prompt_logprobs_json(std::span<const PositionLogprobs> positions, int top, const Tokenizer& tokenizer) {
  json out = json::array({nullptr});
  const auto entry = [&](const TokenLogprob& token, json rank) {
    return json{{"logprob", token.logprob},
                {"rank", std::move(rank)},
                {"decoded_token", token_text(token.id, tokenizer)}};
  };
  for (const PositionLogprobs& position : positions) {
    json tokens = json::object();
    int64_t rank = 0;
    for (const TokenLogprob& token : best(position, top))
      tokens[std::to_string(token.id.value())] = entry(token, ++rank);
    const std::string chosen = std::to_string(position.chosen.id.value());
    if (!tokens.contains(chosen)) tokens[chosen] = entry(position.chosen, nullptr);
    out.push_back(std::move(tokens));
  }
  return out;
}

json ids_json(std::span<const TokenId> ids) {
  json out = json::array();
  for (const TokenId id : ids) out.push_back(id.value());
  return out;
}

json chat_logprobs(std::span<const PositionLogprobs> positions, const Tokenizer& tokenizer,
                   TokenNames names) {
  const auto entry = [&](const TokenLogprob& token) {
    const std::string bytes = shown_bytes(token.id, tokenizer);
    return json{{"token", token_text(token.id, tokenizer, names)},
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
  accepted.resize(longest + 1);  // [0, longest], as its readers expect
  accepted[0] -= rounds.g0_rounds;
  return {{"speculative_decoding",
           {{"num_spec_tokens", longest},
            {"num_spec_steps", steps},
            {"num_draft_tokens", rounds.drafted},
            {"num_accepted_draft_tokens", rounds.accepted},
            {"mean_acceptance_length", 1 + share_of(rounds.accepted, steps)},
            {"draft_acceptance_rate", share_of(rounds.accepted, rounds.drafted)},
            {"acceptance_histogram", accepted}}}};
}

json detailed_speculation_json(const RequestMetrics& metrics) {
  json out = speculation_json(metrics.rounds);
  out["speculative_decoding"]["per_step_drafted"] = metrics.step_drafted;
  out["speculative_decoding"]["per_step_accepted"] = metrics.step_accepted;
  return out;
}

}  // namespace outrider
