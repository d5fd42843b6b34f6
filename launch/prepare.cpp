#include "launch/prepare.h"

#include <algorithm>
#include <filesystem>

#include "launch/device.h"
#include "transformer/ops/cpu_ops.h"
#include "transformer/safetensors.h"

namespace outrider {
namespace {

std::string display_name(const std::string& directory) {
  const std::filesystem::path path(directory);
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

Result<ModelConfig> read_config(const std::string& flag, const std::string& directory) {
  if (!std::filesystem::is_directory(directory))
    return not_found(
        fmt::format("{} {}: no such directory; name one that holds config.json, the weights and a tokenizer",
                    flag, directory));
  auto config = read_model_config(directory);
  if (!config.ok()) return config.status().in(fmt::format("{} {}", flag, directory));
  // The weights are opened here too, so that a missing shard is told before anything starts.
  if (auto files = TensorFiles::open(directory); !files.ok())
    return files.status().in(fmt::format("{} {}", flag, directory));
  return config;
}

Result<std::unique_ptr<Tokenizer>> read_tokenizer(const std::string& flag, const std::string& directory) {
  auto tokenizer = load_tokenizer(directory);
  if (!tokenizer.ok()) return tokenizer.status().in(fmt::format("{} {}", flag, directory));
  return tokenizer;
}

}  // namespace

Result<Preparation> prepare(const RunOptions& options) {
  RETURN_IF_ERROR(check_options(options));
  RETURN_IF_ERROR(check_device(options));
  RETURN_IF_ERROR(pin_isa(options.isa));
  Preparation p;
  ASSIGN_OR_RETURN(p.target, read_config("--model", options.model));
  ASSIGN_OR_RETURN(p.tokenizer, read_tokenizer("--model", options.model));
  if (options.max_model_len > p.target.max_position_embeddings)
    return invalid_argument(fmt::format("--max-model-len {}: the model supports {}", options.max_model_len,
                                        p.target.max_position_embeddings));
  p.max_model_len = options.max_model_len > 0
                        ? options.max_model_len
                        : std::min<int64_t>(p.target.max_position_embeddings, kDefaultMaxModelLen);
  p.target_info = {.name = display_name(options.model),
                   .vocab_size = static_cast<int32_t>(p.target.vocab_size),
                   .vocabulary_fingerprint = p.tokenizer->fingerprint(),
                   .max_context = static_cast<int32_t>(p.max_model_len),
                   .isa = isa_name()};
  p.draft_info = p.target_info;
  p.draft_info.name = "ngram";
  if (options.uses_draft_model()) {
    ASSIGN_OR_RETURN(p.draft, read_config("--draft-model", options.draft_model));
    ASSIGN_OR_RETURN(const auto draft_tokenizer, read_tokenizer("--draft-model", options.draft_model));
    if (Status same = check_same_vocabulary(*p.tokenizer, *draft_tokenizer); !same.ok())
      return same.in(fmt::format("--draft-model {}", options.draft_model));
    p.draft_info.name = display_name(options.draft_model);
    p.draft_info.vocab_size = static_cast<int32_t>(p.draft->vocab_size);
    p.draft_info.max_context =
        static_cast<int32_t>(std::min(p.max_model_len, p.draft->max_position_embeddings));
  }
  return p;
}

void limit_context(Preparation& prepared, int64_t max_model_len) {
  prepared.max_model_len = std::min(prepared.max_model_len, max_model_len);
  for (ModelInfo* info : {&prepared.target_info, &prepared.draft_info})
    info->max_context = std::min(info->max_context, static_cast<int32_t>(prepared.max_model_len));
}

}  // namespace outrider
