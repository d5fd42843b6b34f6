#include "start/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/text_hash.h"
#include "base/threads.h"
#include "comm/cores.h"
#include "heads/module_weights.h"
#include "kernels/cpu/cpu_ops.h"
#include "model_files/gguf_file.h"
#include "model_files/safetensors.h"
#include "model_files/unused_tensors.h"
#include "model_files/wrapper_config.h"
#include "start/device.h"
#include "start/model_fingerprint.h"

namespace outrider {
namespace {

constexpr int64_t kNgramContext = 1 << 20;  // its memory is the text itself

std::string display_name(const std::string& directory) {
  const std::filesystem::path path(directory);
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

// "a, b, c and 5 more", as the files name them.
std::string some_of(const TensorFiles& files, const std::vector<std::string_view>& tensors) {
  std::vector<std::string> names;
  for (const std::string_view name : tensors) names.push_back(files.shown_name(name));
  constexpr size_t kShown = 4;
  const size_t shown = std::min(names.size(), kShown);
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<int64_t>(shown), ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

// Opens and checks the weights here too, so that a missing shard is reported before anything starts. A module
// of multi-token prediction is meant for a head; `is_idle`: it will not be used, which is a warning.
Status check_weights(const std::string& directory, const ModelConfig& config, const std::string& model,
                     bool is_idle, std::vector<std::string>& warnings) {
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(directory));
  ASSIGN_OR_RETURN(auto unused, unused_tensors(files, config));
  const std::string module = module_prefix(files);
  const auto is_of_module = [&](std::string_view name) {
    return !module.empty() && name.starts_with(module);
  };
  if (std::erase_if(unused, is_of_module) > 0 && is_idle)
    warnings.push_back(fmt::format(
        "{}: {}* is a module of multi-token prediction, which drafts with --drafter mtp --draft-model {}",
        model, module, directory));
  if (const size_t ignored = std::erase_if(unused, is_of_images_or_sound); ignored > 0)
    warnings.push_back(fmt::format(
        "{}: {} tensor{} that read images or sound will not be used; this program reads text alone", model,
        ignored, ignored == 1 ? "" : "s"));
  if (!unused.empty())
    warnings.push_back(fmt::format("{}: {} tensor{} that its {} not ask for will not be used: {}", model,
                                   unused.size(), unused.size() == 1 ? "" : "s",
                                   files.is_gguf() ? "keys do" : "config.json does", some_of(files, unused)));
  return {};
}

// A status of a file of the model names the file already; of others, the flag's value goes before it.
std::string place_of(const Status& status, const std::string& flag, const std::string& directory) {
  return status.message().starts_with(directory) ? flag : fmt::format("{} {}", flag, directory);
}

Result<ModelConfig> read_config(const std::string& flag, const std::string& directory,
                                const ModelSettings& models, std::vector<std::string>& warnings) {
  if (!std::filesystem::is_directory(directory) && !is_gguf_path(directory))
    return not_found(fmt::format(
        "{} {}: {}; name a GGUF file, or a directory with config.json, the weights and a tokenizer", flag,
        directory,
        std::filesystem::exists(directory) ? "neither a GGUF file nor a directory" : "no such directory"));
  const std::string model = fmt::format("{} {}", flag, directory);
  auto config = read_model_config(directory);
  if (!config.ok()) return config.status().in(place_of(config.status(), flag, directory));
  std::error_code none;  // a missing directory is reported elsewhere
  const bool drafts =
      models.head() == HeadKind::kMtp && std::filesystem::equivalent(models.draft_model, directory, none);
  const bool is_idle = flag == "--model" && !drafts;
  if (const Status weights = check_weights(directory, *config, model, is_idle, warnings); !weights.ok())
    return weights.in(place_of(weights, flag, directory));
  return config;
}

Result<std::unique_ptr<Tokenizer>> read_tokenizer(const std::string& flag, const std::string& directory) {
  auto tokenizer = load_tokenizer(directory);
  if (!tokenizer.ok()) return tokenizer.status().in(place_of(tokenizer.status(), flag, directory));
  return tokenizer;
}

// Covers every byte of the draft model, as the drafts do.
Result<uint64_t> fingerprint_of_drafter(const ModelSettings& models, uint64_t salt) {
  return whole_fingerprint_of_model(models.draft_model, salt,
                                    models.threads > 0 ? models.threads : usable_cores());
}

// What drafts: --draft-model, or a drafter that looks at text alone. Texts get no longer than
// p.max_model_len. Null: the drafter has no vocabulary of its own.
Result<std::unique_ptr<Tokenizer>> read_drafter(const ModelSettings& models, Preparation& p) {
  p.draft_info = {.name = models.drafter,
                  .vocab_size = 0,
                  .vocabulary_fingerprint = 0,
                  .fingerprint = fingerprint_of_text(models.drafter),
                  .max_context = static_cast<int32_t>(p.max_model_len),
                  .isa = isa_name()};
  if (models.exits_early()) {
    if (models.exit_layer >= p.target.num_layers)
      return invalid_argument(fmt::format("--exit-layer {}: must be 1 to {}, below the target's {} layers",
                                          models.exit_layer, p.target.num_layers - 1, p.target.num_layers));
    p.draft_info.fingerprint = fingerprint_of_text(fmt::format("{} {}", models.drafter, models.exit_layer));
  }
  if (models.head()) return std::unique_ptr<Tokenizer>();
  if (!models.uses_draft_model()) return std::unique_ptr<Tokenizer>();
  ASSIGN_OR_RETURN(p.draft, read_config("--draft-model", models.draft_model, models, p.warnings));
  ASSIGN_OR_RETURN(auto tokenizer, read_tokenizer("--draft-model", models.draft_model));
  const uint64_t numerics = fingerprint_of_text(
      fmt::format("{} {} {} {} {}", isa_name(), models.draft_weight_format.text(),
                  models.activation_format.text(), models.kv_dtype.text(), models.draft_vocab_size));
  ASSIGN_OR_RETURN(p.draft_info.fingerprint, fingerprint_of_drafter(models, numerics));
  p.draft_info.name = display_name(models.draft_model);
  if (models.draft_vocab_size >= p.draft->vocab_size)
    p.warnings.push_back(fmt::format("--draft-vocab-size {} has no effect: the draft model has {} tokens",
                                     models.draft_vocab_size, p.draft->vocab_size));
  if (models.drafts_from_both()) {
    p.draft_info.fingerprint =
        fingerprint_of_text(fmt::format("{:x} {}", p.draft_info.fingerprint, models.drafter));
    p.draft_info.name += "+suffix";
  }
  p.draft_info.vocab_size = static_cast<int32_t>(p.draft->vocab_size);
  p.draft_info.vocabulary_fingerprint = tokenizer->fingerprint();
  p.draft_info.max_context =
      static_cast<int32_t>(std::min(p.max_model_len, p.draft->max_position_embeddings));
  return tokenizer;
}

// Reads the target's tokenizer, and returns the drafter's (read_drafter). Large vocabularies take long, so
// both tokenizers are read at the same time.
Result<std::unique_ptr<Tokenizer>> read_tokenizers(const ModelSettings& models, Preparation& p) {
  if (!models.uses_draft_model()) {
    ASSIGN_OR_RETURN(p.tokenizer, read_tokenizer("--model", models.model));
    return read_drafter(models, p);
  }
  std::optional<Result<std::unique_ptr<Tokenizer>>> target, draft;
  run_on_threads(2, [&](int thread) {
    if (thread == 0)
      draft = read_drafter(models, p);
    else
      target = read_tokenizer("--model", models.model);
  });
  ASSIGN_OR_RETURN(p.tokenizer, *std::move(target));  // its error comes first
  return *std::move(draft);
}

// A head has no vocabulary of its own: it belongs to this very target, whose tokenizer was read.
Status read_head(const ModelSettings& models, Preparation& p) {
  const std::string flag = "--draft-model " + models.draft_model;
  auto head = read_head_config(models.draft_model, *models.head(), p.target);
  if (!head.ok()) return head.status().in(flag);
  p.head = std::move(head).value();
  const uint64_t numerics = fingerprint_of_text(
      fmt::format("{} {} {}", isa_name(), models.draft_weight_format.text(), models.drafter));
  auto fingerprint = fingerprint_of_drafter(models, numerics);
  if (!fingerprint.ok()) return fingerprint.status().in(flag);
  p.draft_info.fingerprint = std::max<uint64_t>(1, *fingerprint);
  const auto of_files = fingerprint_of_drafter(models, fingerprint_of_text(models.drafter));
  if (!of_files.ok()) return of_files.status().in(flag);
  p.hidden_state_head = std::max<uint64_t>(1, *of_files);
  p.draft_info.vocab_size = static_cast<int32_t>(p.target.vocab_size);
  p.draft_info.vocabulary_fingerprint = p.tokenizer->fingerprint();
  p.draft_info.name = display_name(models.draft_model);
  return {};
}

// A head apart from its target, of which it needs the sizes, the tokens and mostly the embedding.
Result<Preparation> prepare_head_worker(const ModelSettings& models) {
  Preparation p;
  ASSIGN_OR_RETURN(p.target, read_config("--model", models.model, models, p.warnings));
  ASSIGN_OR_RETURN(p.tokenizer, read_tokenizer("--model", models.model));
  p.max_model_len = std::min<int64_t>(models.max_model_len > 0 ? models.max_model_len : kDefaultMaxModelLen,
                                      p.target.max_position_embeddings);
  RETURN_IF_ERROR(read_drafter(models, p).status());
  RETURN_IF_ERROR(read_head(models, p));
  return p;
}

}  // namespace

Result<Preparation> prepare_drafter(const RoleSettings& settings) {
  const ModelSettings& models = settings.models;
  RETURN_IF_ERROR(check_drafter_settings(settings));
  if (!models.has_drafter())
    return invalid_argument("nothing to draft with: give --draft-model DIR or --drafter suffix");
  if (models.exits_early())
    return unsupported("--drafter layerskip: the target's own layers draft, and no draft worker does");
  if (models.head() && models.model.empty())
    return invalid_argument(
        fmt::format("--drafter {} needs --model: a head has its target's tokens, and mostly its embedding",
                    models.drafter));
  RETURN_IF_ERROR(check_device(models.device));
  RETURN_IF_ERROR(pin_isa(models.isa));
  if (models.head()) return prepare_head_worker(models);
  Preparation p;
  p.max_model_len = models.max_model_len > 0    ? models.max_model_len
                    : models.uses_draft_model() ? int64_t{kDefaultMaxModelLen}
                                                : kNgramContext;
  ASSIGN_OR_RETURN(p.tokenizer, read_drafter(models, p));
  if (p.tokenizer) p.vocabulary_beginnings = vocabulary_beginnings(*p.tokenizer, kMaxVocabularyBeginnings);
  if (p.draft) p.max_model_len = std::min(p.max_model_len, p.draft->max_position_embeddings);
  return p;
}

Result<Preparation> prepare(const RoleSettings& settings) {
  const ModelSettings& models = settings.models;
  RETURN_IF_ERROR(check_settings(settings));
  RETURN_IF_ERROR(check_device(models.device));
  RETURN_IF_ERROR(pin_isa(models.isa));
  Preparation p;
  ASSIGN_OR_RETURN(p.target, read_config("--model", models.model, models, p.warnings));
  if (models.max_model_len > p.target.max_position_embeddings)
    return invalid_argument(fmt::format("--max-model-len {}: the model supports {}", models.max_model_len,
                                        p.target.max_position_embeddings));
  p.max_model_len = models.max_model_len > 0
                        ? models.max_model_len
                        : std::min<int64_t>(p.target.max_position_embeddings, kDefaultMaxModelLen);
  if (models.kv_cache_tokens > 0 && models.max_model_len > models.kv_cache_tokens)
    return invalid_argument(
        fmt::format("--max-model-len {}: --kv-cache-tokens {} has no room for such a text",
                    models.max_model_len, models.kv_cache_tokens));
  if (models.kv_cache_tokens > 0) p.max_model_len = std::min(p.max_model_len, models.kv_cache_tokens);
  ASSIGN_OR_RETURN(const auto draft_tokenizer, read_tokenizers(models, p));
  p.target_info = {.name = display_name(models.model),
                   .vocab_size = static_cast<int32_t>(p.target.vocab_size),
                   .vocabulary_fingerprint = p.tokenizer->fingerprint(),
                   .max_context = static_cast<int32_t>(p.max_model_len),
                   .isa = isa_name()};
  if (models.head()) RETURN_IF_ERROR(read_head(models, p));
  if (draft_tokenizer) {
    if (Status same = check_same_vocabulary(*p.tokenizer, *draft_tokenizer); !same.ok())
      return same.in(fmt::format("--draft-model {}", models.draft_model));
    p.draft_info.vocabulary_fingerprint = p.target_info.vocabulary_fingerprint;  // where both have an id
  }
  return p;
}

// Fingerprints the target with its numerics. The instruction set is compared separately (ModelInfo::isa).
Status identify_target(const RoleSettings& settings, Preparation& prepared) {
  const ModelSettings& models = settings.models;
  const uint64_t numerics = fingerprint_of_text(fmt::format(
      "{} {} {}", models.weight_format.text(), models.activation_format.text(), models.kv_dtype.text()));
  const auto fingerprint = whole_fingerprint_of_model(models.model, numerics,
                                                      models.threads > 0 ? models.threads : usable_cores());
  if (!fingerprint.ok()) return fingerprint.status().in("--model " + models.model);
  prepared.target_info.fingerprint = std::max<uint64_t>(1, *fingerprint);
  return {};
}

void tell_warnings(const Preparation& prepared) {
  for (const std::string& warning : prepared.warnings)
    std::fprintf(stderr, "outrider: warning: %s\n", warning.c_str());
}

void limit_context(Preparation& prepared, int64_t max_model_len) {
  prepared.max_model_len = std::min(prepared.max_model_len, max_model_len);
  for (ModelInfo* info : {&prepared.target_info, &prepared.draft_info})
    info->max_context = std::min(info->max_context, static_cast<int32_t>(prepared.max_model_len));
}

}  // namespace outrider
