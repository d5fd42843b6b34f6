// Fields of a request in JSON, from a line of a file or the body of an HTTP request; they override defaults.
// A null counts as absent. Errors begin with the field's name in quotes; ranges are checked when a Request is
// built (request_builder.h).
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "requests/request_params.h"

namespace outrider {

// Null if absent.
const nlohmann::json* find_field(const nlohmann::json& object, const char* key);
// Takes a value of T's kind and range, if present.
template <class T>
Status take(const nlohmann::json& object, const char* key, T& to);

// Fields of every kind of request about sampling and its end, read by take_sampling. "logprobs" is left to
// the caller, since its meaning differs.
constexpr std::array<std::string_view, 19> kSamplingFields = {"max_tokens",
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
                                                              "priority",
                                                              "rule",
                                                              "min_tokens",
                                                              "stop_token_ids",
                                                              "num_speculative_tokens",
                                                              "gamma_policy"};
// Biases are added to the existing ones; every other field replaces its default.
Status take_sampling(const nlohmann::json& object, RequestParams& to);

// The error for an unknown key, with the nearest known one.
Status unknown_key(std::span<const std::string_view> known, const std::string& key);

}  // namespace outrider
