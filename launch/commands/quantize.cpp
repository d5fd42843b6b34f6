#include "launch/commands/quantize.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json_file.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "base/program/abandoned.h"
#include "base/program/exit_codes.h"
#include "base/program/partial_directory.h"
#include "base/program/progress.h"
#include "base/program/temporary_file.h"
#include "comm/cores.h"
#include "lab/perplexity/perplexity.h"
#include "model/block_file.h"
#include "model/quantized_file.h"
#include "model_files/gguf_file.h"
#include "model_files/importance_matrix.h"
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

Status write_config(const fs::path& from, const fs::path& to, const std::string& format) {
  ASSIGN_OR_RETURN(nlohmann::json config, read_json_file(from, {}));
  config["quantization_config"] = {{"quant_method", kQuantMethod}, {"weight_format", format}};
  return write_file(to.string(), json_text(config, 2) + "\n");
}

// The model, its new format and the flags.
struct Job {
  const QuantizeOptions& options;
  const TensorFiles& files;
  const ModelConfig& config;
  const BlockFormat* blocks = nullptr;  // null: `format`
  WeightFormat format = WeightFormat::kAuto;
  const ImportanceMatrix* importance = nullptr;

  Status write_to(const std::string& path) const;
};

Status exists_already(const QuantizeOptions& o) {
  return invalid_argument(fmt::format("--output {}: exists already; name a new {}", o.output,
                                      is_gguf_path(o.model) ? "file" : "directory"));
}

Status Job::write_to(const std::string& path) const {
  ThreadPool pool(options.threads > 0 ? options.threads : usable_cores());
  Progress progress("quantising", !options.quiet);
  ASSIGN_OR_RETURN(TemporaryFile weights, TemporaryFile::create(path));
  const auto report = [&](int64_t done, int64_t total) { progress.update(done, total); };
  const fs::path from(options.model);
  if (!blocks) {
    const Status written = write_quantized(files, config, format, pool, report, weights.stream());
    const bool is_of_output = written.code() == StatusCode::kUnavailable;
    RETURN_IF_ERROR(is_of_output ? written.in("--output " + options.output) : written);
  } else {
    const BlockWriting how{.format = *blocks,
                           .takes_codes = options.allow_requantize,
                           .pool = pool,
                           .progress = report,
                           .importance = importance};
    const Status written = is_gguf_path(from) ? write_gguf_blocks(from, files, config, how, weights.stream())
                                              : write_blocks(files, config, how, weights.stream());
    const bool is_of_output = written.code() == StatusCode::kUnavailable;
    const bool names_file = written.message().starts_with(options.model);
    RETURN_IF_ERROR(written.in(is_of_output ? "--output " + options.output
                               : names_file ? "--model"
                                            : "--model " + options.model));
  }
  // Hours may have passed.
  std::error_code error;
  if (fs::exists(options.output, error)) return exists_already(options);
  return weights.commit().in("--output");
}

void tell_what_was_written(const Job& job, const fs::path& weights) {
  const QuantizeOptions& o = job.options;
  if (o.quiet) return;
  std::error_code error;
  const auto after = static_cast<double>(fs::file_size(weights, error));
  const auto before = static_cast<double>(job.files.total_bytes());
  tell_error(
      fmt::format("wrote {}: {} weights of {:.1f} MB{}", o.output, o.weight_format, after * 1e-6,
                  after < before ? "" : fmt::format(", no smaller than before ({:.1f} MB)", before * 1e-6)));
}

Status quantize_gguf(const Job& job) {
  const QuantizeOptions& o = job.options;
  if (!is_gguf_path(o.output) && fs::path(o.output).extension() != ".gguf")
    return invalid_argument(
        fmt::format("--output {}: a GGUF file becomes another one; name it NAME.gguf", o.output));
  RETURN_IF_ERROR(job.write_to(o.output));
  tell_what_was_written(job, o.output);
  return {};
}

Status quantize_directory(const Job& job) {
  const QuantizeOptions& o = job.options;
  const fs::path from(o.model);
  std::error_code error;
  RETURN_IF_ERROR(unused_tensors(job.files, job.config).status());  // what is unused is copied
  ASSIGN_OR_RETURN(PartialDirectory directory, PartialDirectory::create(o.output));
  for (const fs::directory_entry& entry : fs::directory_iterator(from))
    if (is_copied(entry) && !fs::copy_file(entry.path(), directory.path() / entry.path().filename(), error))
      return unavailable(
          fmt::format("--output {}: {}: {}", o.output, entry.path().filename().string(), error.message()));
  RETURN_IF_ERROR(
      write_config(from / "config.json", directory.path() / "config.json", o.weight_format).in("--output"));
  RETURN_IF_ERROR(job.write_to((directory.path() / "model.safetensors").string()));
  RETURN_IF_ERROR(directory.commit());
  tell_what_was_written(job, fs::path(o.output) / "model.safetensors");
  return {};
}

PerplexityOptions scoring_of(const QuantizeOptions& o, const std::string& model) {
  PerplexityOptions scored{.file = o.perplexity, .file_flag = "--perplexity", .quiet = o.quiet};
  scored.model.model = model;
  scored.model.threads = o.threads;
  return scored;
}

// Quantising may take hours, so what scoring needs is known before.
Status check_scoring(const QuantizeOptions& o, WeightFormat format) {
  if (o.perplexity.empty()) return {};
  if (format == WeightFormat::kFloat8)
    return unsupported(
        fmt::format("--perplexity {}: fp8 weights are for CUDA devices; score the result by outrider "
                    "perplexity --device cuda",
                    o.perplexity));
  std::error_code error;
  if (!fs::is_regular_file(o.perplexity, error))
    return not_found(fmt::format("--perplexity {}: no such file; give a text", o.perplexity));
  return check_perplexity(scoring_of(o, o.model));
}

Status quantize(const QuantizeOptions& o) {
  const BlockFormat* const blocks = find_block_format(o.weight_format);
  WeightFormat format = WeightFormat::kAuto;
  if (!blocks) {
    const auto known = parse_weight_format("--weight-format", o.weight_format);
    if (!known.ok() || !is_quantized(*known))
      return invalid_argument(fmt::format(
          "--weight-format {}: choose int8, int4, fp8, q4_k, q4_k_m, q6_k or q8_0", o.weight_format));
    format = *known;
  }
  const fs::path from(o.model);
  std::error_code error;
  if (fs::exists(o.output, error)) return exists_already(o);
  if (!is_gguf_path(from) && fs::path(o.output).extension() == ".gguf")
    return invalid_argument(fmt::format(
        "--output {}: a directory becomes another one; name it without .gguf, or give a GGUF file as --model",
        o.output));
  if (is_gguf_path(from) && !blocks)
    return unsupported(fmt::format(
        "--model {}: of a GGUF file, --weight-format q4_k, q4_k_m, q6_k and q8_0 are written; {} is "
        "made of the directory of the original model",
        o.model, o.weight_format));
  if (o.allow_requantize && !is_gguf_path(from))
    return invalid_argument("--allow-requantize: is for GGUF files; of a directory, give the original model");
  if (!o.imatrix.empty() && (!is_gguf_path(from) || o.weight_format == "q8_0"))
    return invalid_argument(fmt::format("--imatrix {}: {}", o.imatrix,
                                        o.weight_format == "q8_0"
                                            ? "q8_0 has no scales to search for; leave the flag out"
                                            : "names tensors as a GGUF file does; give one as --model"));
  ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(from));
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(from));
  RETURN_IF_ERROR(check_scoring(o, format));
  std::optional<ImportanceMatrix> importance;
  if (!o.imatrix.empty()) {
    auto read = ImportanceMatrix::open(o.imatrix);
    if (!read.ok()) return read.status().in("--imatrix");
    importance = std::move(read).value();
  }
  for (const std::string& left : remove_abandoned(o.output))
    if (!o.quiet) tell_error(fmt::format("removed {}, which a killed run had left", left));
  const Job job{.options = o,
                .files = files,
                .config = config,
                .blocks = blocks,
                .format = format,
                .importance = importance ? &*importance : nullptr};
  return is_gguf_path(from) ? quantize_gguf(job) : quantize_directory(job);
}

}  // namespace

void add_quantize_options(CLI::App& app, QuantizeOptions& o) {
  app.footer(
      "Examples:\n"
      "  outrider quantize MODEL --weight-format q4_k --output MODEL-q4_k\n"
      "  outrider quantize MODEL-f16.gguf --weight-format q4_k --output MODEL-q4_k.gguf\n"
      "  outrider quantize MODEL-f16.gguf --weight-format q4_k_m --imatrix IMATRIX --output "
      "MODEL-q4_k_m.gguf\n"
      "What it lost (--perplexity TEXT does the same at once):\n"
      "  outrider perplexity MODEL-q4_k --file TEXT --base MODEL\n"
      "q4_k, q6_k and q8_0 are the types of llama.cpp, of 4.5, 6.6 and 8.5 bits a weight.\n"
      "q4_k_m gives the matrices that matter most 6.6 bits, as llama.cpp's Q4_K_M does.\n"
      "int8, int4 and fp8 give the text of MODEL with the same --weight-format.\n"
      "int4 is faster than q4_k, and loses more.");
  finds_model(
      app.add_option("-m,--model,MODEL", o.model,
                     "Directory of the model, the hub's name of one in its cache, org/name, or a GGUF file"))
      ->required();
  app.add_option("--weight-format", o.weight_format,
                 "q4_k (embedding and head q6_k), q4_k_m, q6_k or q8_0; int8; int4 (embedding and head "
                 "int8); or fp8, for "
                 "CUDA devices")
      ->capture_default_str();
  app.add_option("-o,--output", o.output, "Directory to create; of a GGUF file, the new file")->required();
  app.add_option(
      "--imatrix", o.imatrix,
      "Importance matrix of a GGUF file, as llama-imatrix writes it (GGUF or .dat): errors of columns with "
      "large inputs count more");
  app.add_option("--perplexity", o.perplexity,
                 "Then prints the perplexity of this text before and after, and the difference");
  app.add_flag("--allow-requantize", o.allow_requantize,
               "Quantise what a GGUF file holds in codes already, and loses once more");
  app.add_option("--threads", o.threads, "0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_flag("-q,--quiet", o.quiet, "No progress on standard error");
}

int run_quantize(const QuantizeOptions& options) {
  const int code = told_exit_code(quantize(options));
  if (code != 0 || options.perplexity.empty()) return code;
  PerplexityOptions scored = scoring_of(options, options.output);
  scored.base.model = options.model;
  return run_perplexity(scored);
}

}  // namespace outrider
