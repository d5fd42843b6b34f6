#include "start/flags/generation_config.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json_file.h"
#include "model_files/gguf_keys.h"
#include "model_files/gguf_parts.h"

namespace outrider {
namespace {

// Whether the command has the flag and it was not given.
bool is_free(const CLI::App& command, const std::string& flag) {
  const CLI::Option* option = command.get_option_no_throw(flag);
  return option != nullptr && option->count() == 0;
}

struct Number {
  const char *flag, *key;
  double min, max;
  float* to;
};

Status take_numbers(const JsonObject& config, const CLI::App& command, RequestParams& o) {
  constexpr double kAboveZero = std::numeric_limits<float>::min(), kAny = std::numeric_limits<float>::max();
  for (const Number& n :
       {Number{"--temperature", "temperature", 0, 100, &o.temperature},
        Number{"--top-p", "top_p", kAboveZero, 1, &o.top_p}, Number{"--min-p", "min_p", 0, 1, &o.min_p},
        Number{"--repetition-penalty", "repetition_penalty", kAboveZero, kAny, &o.repetition_penalty}}) {
    if (!is_free(command, n.flag) || !config.has(n.key)) continue;
    ASSIGN_OR_RETURN(const double value, config.number(n.key, n.min, n.max));
    *n.to = static_cast<float>(value);
  }
  return {};
}

Status take_integer(const JsonObject& config, const CLI::App& command, const char* flag, const char* key,
                    int64_t min, int& to) {
  if (!is_free(command, flag) || !config.has(key)) return {};
  ASSIGN_OR_RETURN(const int64_t value, config.integer(key, {min, std::numeric_limits<int>::max()}));
  to = static_cast<int>(value);
  return {};
}

// Keys that the newer converters of llama.cpp write.
Status take_gguf_sampling(const CLI::App& command, const std::string& model, RequestParams& o) {
  auto file = open_gguf(model);
  if (!file.ok()) return {};  // what is wrong with it is an error where the model is read
  const std::string key = "general.sampling.";
  const auto take = [&](const char* flag, const char* name, double min, double max, auto& to) -> Status {
    ASSIGN_OR_RETURN(const std::optional<double> value, gguf_number(file->content, key + name, model));
    if (!value || !is_free(command, flag)) return {};
    if (!(*value >= min && *value <= max))
      return malformed(fmt::format("{}: {}{} is {}, not from {} to {}", model, key, name, *value, min, max));
    to = static_cast<std::remove_reference_t<decltype(to)>>(*value);
    return {};
  };
  constexpr double kAboveZero = std::numeric_limits<float>::min(), kAny = std::numeric_limits<float>::max();
  RETURN_IF_ERROR(take("--temperature", "temp", 0, 100, o.temperature));
  RETURN_IF_ERROR(take("--top-p", "top_p", kAboveZero, 1, o.top_p));
  RETURN_IF_ERROR(take("--min-p", "min_p", 0, 1, o.min_p));
  ASSIGN_OR_RETURN(const std::optional<int64_t> top_k, gguf_integer(file->content, key + "top_k", model));
  if (top_k && is_free(command, "--top-k"))
    o.top_k = static_cast<int>(std::clamp<int64_t>(*top_k, 0, std::numeric_limits<int>::max()));
  return take("--repetition-penalty", "penalty_repeat", kAboveZero, kAny, o.repetition_penalty);
}

}  // namespace

Status take_generation_config(const CLI::App& command, const std::string& choice, const std::string& model,
                              RequestParams& o) {
  if (choice != "auto") return {};
  if (is_gguf_path(model)) return take_gguf_sampling(command, model, o);
  const std::filesystem::path path = std::filesystem::path(model) / "generation_config.json";
  const auto file = read_json_file(path);
  if (!file.ok()) return file.status().code() == StatusCode::kNotFound ? Status() : file.status();
  ASSIGN_OR_RETURN(const JsonObject config, JsonObject::view(*file, path.string()));
  RETURN_IF_ERROR(take_numbers(config, command, o));
  RETURN_IF_ERROR(take_integer(config, command, "--top-k", "top_k", 0, o.top_k));
  RETURN_IF_ERROR(take_integer(config, command, "--max-tokens", "max_new_tokens", 1, o.max_tokens));
  ASSIGN_OR_RETURN(const bool samples, config.boolean_or("do_sample", true));
  if (!samples && is_free(command, "--temperature")) o.temperature = 0;
  return {};
}

}  // namespace outrider
