#include "requests/request_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <type_traits>

#include "base/json_text.h"
#include "base/nearest.h"
#include "base/parse_number.h"

namespace outrider {

using nlohmann::json;

const json* find_field(const json& object, const char* key) {
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

namespace {

// 4.0 counts as 4: some clients write every number so.
bool is_whole(const json& number) {
  if (number.is_number_integer()) return true;
  if (!number.is_number_float()) return false;
  constexpr double kExact = 9007199254740992.0;  // 2^53
  const double value = number.get<double>();
  return value == std::floor(value) && std::abs(value) <= kExact;
}

}  // namespace

template <class T>
Status take(const json& object, const char* key, T& to) {
  const json* const at = find_field(object, key);
  if (!at) return {};
  constexpr bool is_text = std::is_same_v<T, std::string>;
  constexpr bool is_integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;
  const bool fits = is_text                   ? at->is_string()
                    : std::is_same_v<T, bool> ? at->is_boolean()
                    : is_integer              ? is_whole(*at)
                                              : at->is_number();
  const char* const type = is_text                   ? "a text"
                           : std::is_same_v<T, bool> ? "true or false"
                           : is_integer              ? "a whole number"
                                                     : "a number";
  if (!fits)
    return invalid_argument(
        fmt::format("\"{}\" must be {}, not {}", key, type, json_text(*at).substr(0, 40)));
  if constexpr (is_integer) {
    const bool is_low =
        !at->is_number_unsigned() && at->get<int64_t>() < static_cast<int64_t>(std::numeric_limits<T>::min());
    const bool is_high = (at->is_number_unsigned() || at->get<int64_t>() >= 0) &&
                         at->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<T>::max());
    if (is_low || is_high)
      return invalid_argument(
          fmt::format("\"{}\" is {}, which is too {}", key, json_text(*at), is_low ? "small" : "large"));
  }
  to = at->get<T>();
  return {};
}
template Status take(const json&, const char*, std::string&);
template Status take(const json&, const char*, bool&);
template Status take(const json&, const char*, int&);
template Status take(const json&, const char*, uint64_t&);
template Status take(const json&, const char*, float&);

namespace {

Status take_stop(const json& object, std::vector<std::string>& stop) {
  const json* const at = find_field(object, "stop");
  if (!at) return {};
  stop.clear();
  if (at->is_string()) {
    stop.push_back(at->get<std::string>());
    return {};
  }
  if (!at->is_array()) return invalid_argument("\"stop\" must be a text or a list of texts");
  for (const json& item : *at) {
    if (!item.is_string()) return invalid_argument("\"stop\" must be a text or a list of texts");
    stop.push_back(item.get<std::string>());
  }
  return {};
}

Status take_bias(const json& object, LogitBias& bias) {
  const json* const at = find_field(object, "logit_bias");
  if (!at) return {};
  if (!at->is_object()) return invalid_argument("\"logit_bias\" must be an object of id: value");
  for (const auto& [key, value] : at->items()) {
    const auto id = parse_number<int32_t>(key);
    const float v = value.is_number() ? value.get<float>() : NAN;
    if (!id || *id < 0 || !std::isfinite(v))
      return invalid_argument(
          fmt::format("\"logit_bias\" {}: {}: must be id: value, for example \"42\": -1.5", key.substr(0, 40),
                      json_text(value).substr(0, 40)));
    bias.emplace_back(TokenId(*id), v);
  }
  return {};
}

Status take_stop_ids(const json& object, std::vector<TokenId>& stop) {
  const json* const at = find_field(object, "stop_token_ids");
  if (!at) return {};
  stop.clear();
  const Status wrong = invalid_argument("\"stop_token_ids\" must be a list of token ids");
  if (!at->is_array()) return wrong;
  for (const json& item : *at) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > std::numeric_limits<int32_t>::max())
      return wrong;
    stop.emplace_back(item.get<int32_t>());
  }
  return {};
}

// A seed of -1 counts as absent, as in other servers.
Status take_seed(const json& object, uint64_t& seed) {
  const json* const at = find_field(object, "seed");
  const bool is_left_out = at && at->is_number_integer() && !at->is_number_unsigned() && *at == -1;
  return is_left_out ? Status() : take(object, "seed", seed);
}

Status take_drafting(const json& object, RequestParams& to) {
  const bool has_length = find_field(object, "num_speculative_tokens") != nullptr;
  if (has_length && find_field(object, "gamma_policy"))
    return invalid_argument(
        "\"num_speculative_tokens\" pins what \"gamma_policy\" would choose; send one of them");
  int length = 0;
  RETURN_IF_ERROR(take(object, "num_speculative_tokens", length));
  if (has_length) to.num_speculative_tokens = length;
  return take(object, "gamma_policy", to.gamma_policy);
}

}  // namespace

Status take_sampling(const json& object, RequestParams& to) {
  RETURN_IF_ERROR(take_seed(object, to.seed));
  RETURN_IF_ERROR(take(object, "max_tokens", to.max_tokens));
  RETURN_IF_ERROR(take(object, "temperature", to.temperature));
  RETURN_IF_ERROR(take(object, "top_k", to.top_k));
  RETURN_IF_ERROR(take(object, "top_p", to.top_p));
  RETURN_IF_ERROR(take(object, "min_p", to.min_p));
  RETURN_IF_ERROR(take(object, "repetition_penalty", to.repetition_penalty));
  RETURN_IF_ERROR(take(object, "presence_penalty", to.presence_penalty));
  RETURN_IF_ERROR(take(object, "frequency_penalty", to.frequency_penalty));
  RETURN_IF_ERROR(take(object, "ignore_eos", to.ignore_eos));
  RETURN_IF_ERROR(take(object, "priority", to.priority));
  RETURN_IF_ERROR(take(object, "rule", to.rule));
  RETURN_IF_ERROR(take(object, "min_tokens", to.min_tokens));
  RETURN_IF_ERROR(take_stop_ids(object, to.stop_token_ids));
  RETURN_IF_ERROR(take_drafting(object, to));
  RETURN_IF_ERROR(take_bias(object, to.logit_bias));
  return take_stop(object, to.stop);
}

Status unknown_key(std::span<const std::string_view> known, const std::string& key) {
  constexpr size_t kLongestShown = 60;  // a client's key may have a megabyte
  if (key.size() > kLongestShown)
    return invalid_argument(fmt::format("there is no key \"{}...\"", key.substr(0, kLongestShown)));
  const std::string_view nearest = nearest_name(known, key);
  if (!nearest.empty())
    return invalid_argument(fmt::format("there is no key \"{}\"; did you mean \"{}\"?", key, nearest));
  return invalid_argument(fmt::format("there is no key \"{}\"; known are {}", key, fmt::join(known, ", ")));
}

}  // namespace outrider
