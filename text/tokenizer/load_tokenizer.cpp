#include "base/model_download.h"
#include "model_files/gguf_file.h"
#include "text/tokenizer/loaders.h"

namespace outrider {

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& model_directory) {
  if (is_gguf_path(model_directory)) return load_gguf_tokenizer(model_directory);
  const auto has = [&](const char* name) { return is_entry(model_directory / name); };
  if (has("tokenizer.json")) return load_tokenizer_json(model_directory / "tokenizer.json");
  if (has("tokenizer.model")) return load_sentencepiece(model_directory / "tokenizer.model");
  if (has("vocab.json") && has("merges.txt")) return load_vocab_and_merges(model_directory);
  return not_found(
      model_directory.string() +
      ": no tokenizer here; put the model's tokenizer.json (or tokenizer.model, or vocab.json and "
      "merges.txt) beside its config.json");
}

}  // namespace outrider
