#include "start/flags/speculative_config.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/json_file.h"
#include "base/printable.h"
#include "start/flags/model_path.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr const char* kFlag = "--speculative-config";

struct Method {
  std::string_view theirs, ours;  // ours: of --drafter; empty: a draft model
};
constexpr Method kMethods[] = {{"draft_model", ""}, {"ngram", "ngram"},      {"suffix", "suffix"},
                               {"eagle", "eagle"},  {"eagle3", "eagle3"},    {"medusa", "medusa"},
                               {"mtp", "mtp"},      {"deepseek_mtp", "mtp"}, {"dflash", "dflash"},
                               {"dspark", "dflash"}};

// Keys of vLLM without a counterpart, and what to use.
struct Refused {
  std::string_view key, instead;
};
constexpr Refused kRefused[] = {
    {"disable_by_batch_size", "the default policy drafts nothing where drafts do not pay; leave it out"},
    {"speculative_token_tree", "use --speculative-tree"},
    {"max_model_len", "use --max-model-len"},
    {"revision", "name the directory of that revision as the model"},
    {"code_revision", "models run no code of their own here; leave it out"},
    {"prompt_lookup_min", "n-grams of every length are tried, the longest first; leave it out"},
    {"prompt_lookup_max", "n-grams of every length are tried, the longest first; leave it out"},
    {"synthetic_acceptance_rates", "use --synthetic-acceptance rates:..."},
    {"synthetic_acceptance_length", "use --synthetic-acceptance length:..."},
};

Status wrong(std::string_view key, std::string_view what) {
  return invalid_argument(fmt::format("{}: \"{}\" {}", kFlag, printable(key, 64), what));
}

Result<std::string> text_at(const std::string& key, const json& value) {
  if (!value.is_string()) return wrong(key, "must be a text");
  return value.get<std::string>();
}

Result<int> number_at(const std::string& key, const json& value, uint64_t max = 1024) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > max)
    return wrong(key, fmt::format("must be a whole number from 0 to {}", max));
  return value.get<int>();
}

Status take_method(const std::string& name, ModelSettings& models) {
  for (const Method& method : kMethods)
    if (method.theirs == name) {
      models.drafter = method.ours;
      return {};
    }
  return wrong("method",
               fmt::format("is {}; choose draft_model, ngram, suffix, eagle, eagle3, medusa, mtp or "
                           "dflash; --drafter has more",
                           printable(name, 64)));
}

Status take_rejection(const std::string& name, std::string& rule) {
  if (name == "standard")
    rule = "token";
  else if (name == "block")
    rule = "block";
  else
    return wrong("rejection_sample_method",
                 fmt::format("is {}; choose standard or block; --rule has more", printable(name, 64)));
  return {};
}

Status take(const std::string& key, const json& value, ClusterSettings& settings, std::string& rule) {
  if (key == "method") {
    ASSIGN_OR_RETURN(const std::string name, text_at(key, value));
    return take_method(name, settings.models);
  }
  if (key == "model") {
    ASSIGN_OR_RETURN(const std::string name, text_at(key, value));
    auto found = find_model(name);
    if (!found.ok()) return wrong(key, "is " + found.status().message());
    settings.models.draft_model = std::move(found).value();
  } else if (key == "num_speculative_tokens") {
    ASSIGN_OR_RETURN(settings.speculation.num_speculative_tokens,
                     number_at(key, value, kMaxSpeculativeTokens));
  } else if (key == "draft_tensor_parallel_size") {
    ASSIGN_OR_RETURN(const int ranks, number_at(key, value));
    if (ranks != 1 && ranks != 2 && ranks != 4 && ranks != 8)
      return wrong(key, fmt::format("is {}; choose 1, 2, 4 or 8", ranks));
    settings.models.draft_tensor_parallel_size = ranks;
  } else if (key == "quantization") {
    ASSIGN_OR_RETURN(const std::string name, text_at(key, value));
    constexpr std::string_view kFormats[] = {"auto", "bf16", "int8", "int4", "fp8"};
    if (std::find(std::begin(kFormats), std::end(kFormats), name) == std::end(kFormats))
      return wrong(key,
                   fmt::format("is {}; choose auto (as the file stores it, also AWQ and GPTQ), bf16, int8, "
                               "int4 or fp8",
                               printable(name, 64)));
    settings.models.draft_weight_format = name;
  } else if (key == "rejection_sample_method") {
    ASSIGN_OR_RETURN(const std::string name, text_at(key, value));
    return take_rejection(name, rule);
  } else {
    for (const Refused& refused : kRefused)
      if (refused.key == key) return wrong(key, fmt::format("has no counterpart here: {}", refused.instead));
    return wrong(key,
                 "is not a key of it; keys are model, method, num_speculative_tokens, "
                 "draft_tensor_parallel_size, quantization and rejection_sample_method");
  }
  return {};
}

}  // namespace

Status read_speculative_config(const std::string& text, ClusterSettings& settings, std::string& rule) {
  ASSIGN_OR_RETURN(const json object, parse_json(text, kFlag));
  if (!object.is_object())
    return invalid_argument(fmt::format("{} must be an object, such as {{\"model\": \"DRAFT\"}}", kFlag));
  for (const auto& [key, value] : object.items())
    if (!value.is_null()) RETURN_IF_ERROR(take(key, value, settings, rule));
  const ModelSettings& models = settings.models;
  const bool is_text = models.drafter == "ngram" || models.drafter == "suffix";
  if (models.draft_model.empty() && !is_text)
    return invalid_argument(
        fmt::format("{} needs \"model\", or a \"method\" without one: ngram or suffix", kFlag));
  return {};
}

void add_speculative_config_option(CLI::App& app, ClusterSettings& settings, std::string& rule) {
  app.add_option_function<std::string>(
         "--speculative-config",
         [&app, &settings, &rule](const std::string& text) {
           for (const char* flag :
                {"--draft-model", "--drafter", "--num-speculative-tokens", "--draft-tensor-parallel-size"})
             if (const CLI::Option* const option = app.get_option_no_throw(flag);
                 option && option->count() > 0)
               throw CLI::ValidationError(fmt::format("{} and {} exclude each other; drop one", kFlag, flag));
           const Status read = read_speculative_config(text, settings, rule);
           if (!read.ok()) throw CLI::ValidationError(read.message());
         },
         "The drafter as vLLM's users write it, as JSON: {\"model\": \"DRAFT\", \"num_speculative_tokens\": "
         "4}. "
         "Keys: model, method, num_speculative_tokens, draft_tensor_parallel_size, quantization, "
         "rejection_sample_method")
      ->group("Speculation");
}

}  // namespace outrider
