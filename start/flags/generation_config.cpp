#include "start/flags/generation_config.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "transformer/files/json_file.h"

namespace outrider {
namespace {

// Whether the command has the flag and nobody gave it.
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

}  // namespace

Status take_generation_config(const CLI::App& command, const std::string& choice, const std::string& model,
                              RequestParams& o) {
  if (choice != "auto") return {};
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
