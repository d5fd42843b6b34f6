#include "launch/commands/quantize.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json_file.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "base/program/partial_directory.h"
#include "base/program/progress.h"
#include "base/program/temporary_file.h"
#include "comm/cores.h"
#include "model/quantized_file.h"
#include "model_files/gguf_file.h"
#include "model_files/unused_tensors.h"
#include "requests/output.h"
#include "start/flags/options.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

// Weights and their index are written anew; all other files of the directory are copied.
bool is_copied(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string(), extension = entry.path().extension().string();
  return entry.is_regular_file() && name != "config.json" && name != "model.safetensors.index.json" &&
         extension != ".safetensors" && extension != ".bin" && extension != ".pth";
}

Status write_config(const fs::path& from, const fs::path& to, WeightFormat format) {
  ASSIGN_OR_RETURN(nlohmann::json config, read_json_file(from, {}));
  config["quantization_config"] = {{"quant_method", kQuantMethod},
                                   {"weight_format", weight_format_name(format)}};
  return write_file(to.string(), json_text(config, 2) + "\n");
}

Status quantize(const QuantizeOptions& o) {
  ASSIGN_OR_RETURN(const WeightFormat format, parse_weight_format("--weight-format", o.weight_format));
  if (!is_quantized(format))
    return invalid_argument(fmt::format("--weight-format {}: choose int8, int4 or fp8", o.weight_format));
  const fs::path from(o.model), to(o.output);
  std::error_code error;
  if (fs::exists(to, error))
    return invalid_argument(fmt::format("--output {}: exists already; name a new directory", o.output));
  if (is_gguf_path(from))
    return unsupported(fmt::format(
        "--model {}: a GGUF file has codes of its own and is not quantised again; give the directory of the "
        "original model, or serve the file as it is",
        o.model));
  ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(from));
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(from));
  RETURN_IF_ERROR(unused_tensors(files, config).status());  // what is unused is copied
  ASSIGN_OR_RETURN(PartialDirectory directory, PartialDirectory::create(to));
  for (const fs::directory_entry& entry : fs::directory_iterator(from))
    if (is_copied(entry) && !fs::copy_file(entry.path(), directory.path() / entry.path().filename(), error))
      return unavailable(
          fmt::format("--output {}: {}: {}", o.output, entry.path().filename().string(), error.message()));
  RETURN_IF_ERROR(
      write_config(from / "config.json", directory.path() / "config.json", format).in("--output"));

  ThreadPool pool(o.threads > 0 ? o.threads : usable_cores());
  Progress progress("quantising", !o.quiet);
  ASSIGN_OR_RETURN(TemporaryFile weights,
                   TemporaryFile::create((directory.path() / "model.safetensors").string()));
  const auto report = [&](int64_t done, int64_t total) { progress.update(done, total); };
  RETURN_IF_ERROR(write_quantized(files, config, format, pool, report, weights.stream()));
  RETURN_IF_ERROR(weights.commit().in("--output"));
  const auto bytes = fs::file_size(directory.path() / "model.safetensors", error);
  RETURN_IF_ERROR(directory.commit());
  if (!o.quiet)
    tell_error(fmt::format("wrote {}: {} weights of {:.1f} MB", o.output, weight_format_name(format),
                           static_cast<double>(bytes) * 1e-6));
  return {};
}

}  // namespace

void add_quantize_options(CLI::App& app, QuantizeOptions& o) {
  app.footer(
      "Example:\n  outrider quantize --model MODEL --weight-format int8 --output MODEL-int8\n"
      "The new directory gives the same text as MODEL with the same --weight-format. What it lost:\n"
      "  outrider perplexity MODEL-int8 --file TEXT --base MODEL");
  finds_model(app.add_option("-m,--model", o.model,
                             "Directory of the model, or the hub's name of one in its cache, org/name"))
      ->required();
  app.add_option("--weight-format", o.weight_format,
                 "int8; int4 (embedding and head int8); or fp8, for CUDA devices")
      ->capture_default_str();
  app.add_option("-o,--output", o.output, "Directory to create")->required();
  app.add_option("--threads", o.threads, "0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_flag("-q,--quiet", o.quiet, "No progress on standard error");
}

int run_quantize(const QuantizeOptions& options) { return told_exit_code(quantize(options)); }

}  // namespace outrider
