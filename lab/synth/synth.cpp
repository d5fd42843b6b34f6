#include "lab/synth/synth.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/printable.h"
#include "base/program/abandoned.h"
#include "base/program/exit_codes.h"
#include "base/program/interrupt.h"
#include "base/program/partial_directory.h"
#include "base/program/progress.h"
#include "comm/cores.h"
#include "lab/synth/calibrate.h"
#include "lab/synth/vocabulary.h"
#include "model_files/model_config.h"
#include "requests/provenance.h"
#include "start/device.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecord = "synth.json";  // marks what may be replaced

// A signal ends the writing at its next step, so that what is unfinished can be removed.
bool interrupted() { return noted_signal() != 0; }

// With --force an existing output is replaced, if this command wrote it.
Status check_output(const fs::path& path, bool force) {
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  if (!force)
    return invalid_argument(
        fmt::format("--output {}: exists; choose another, or replace it with --force", path.string()));
  if (!fs::is_regular_file(path / kRecord, error))
    return invalid_argument(fmt::format(
        "--output {}: exists and was not written by synth; --force replaces only what synth wrote",
        path.string()));
  return {};
}

Status write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? Status() : unavailable(fmt::format("{}: cannot be written", path.string()));
}

Status write_json_files(const fs::path& directory, const SynthShape& shape, int64_t layers) {
  RETURN_IF_ERROR(write_text(directory / "config.json", json_text(synth_config(shape, layers), 2) + "\n"));
  RETURN_IF_ERROR(write_text(
      directory / "generation_config.json",
      json_text(nlohmann::json{{"bos_token_id", kSynthBos}, {"eos_token_id", kSynthEos}}, 2) + "\n"));
  RETURN_IF_ERROR(write_text(directory / "tokenizer.json", json_text(synth_tokenizer(shape.vocab)) + "\n"));
  return write_text(directory / "tokenizer_config.json",
                    json_text(synth_tokenizer_config(shape.max_positions), 2) + "\n");
}

int64_t bytes_of(const std::vector<SynthTensor>& tensors) {
  int64_t bytes = 0;
  for (const SynthTensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

Status check_space(const fs::path& directory, int64_t bytes) {
  std::error_code error;
  const auto space = fs::space(directory, error);
  if (error || static_cast<int64_t>(space.available) > bytes) return {};
  return resource_exhausted(fmt::format(
      "--output {}: {:.1f} GB are needed and {:.1f} GB are free; choose another disk or a smaller "
      "--shape",
      directory.parent_path().string(), static_cast<double>(bytes) * 1e-9,
      static_cast<double>(space.available) * 1e-9));
}

Result<SynthWeightFile> write_model(const SynthOptions& options, const SynthShape& shape, int64_t layers,
                                    const fs::path& directory, const char* what) {
  RETURN_IF_ERROR(write_json_files(directory, shape, layers));
  if (auto config = read_model_config(directory); !config.ok()) return config.status();
  Progress progress(fmt::format("writing {}", what), !options.quiet);
  return SynthWeightFile::write(
      directory / "model.safetensors", synth_tensors(shape, layers, options.draft_layers),
      {.seed = {options.seed},
       .threads = options.threads > 0 ? options.threads : usable_cores(),
       .progress = [&](int64_t done, int64_t total) { progress.update(done, total); },
       .interrupted = interrupted});
}

// EAGLE-3 mostly knows a part of the vocabulary, the others all of it.
SynthHead head_of(const SynthOptions& options, const SynthShape& shape) {
  using Kind = SynthHead::Kind;
  constexpr int64_t kUsual = 32000;
  const Kind kind = options.head == "mtp"      ? Kind::kMtp
                    : options.head == "dflash" ? Kind::kDFlash
                    : options.head == "medusa" ? Kind::kMedusa
                    : options.head == "hydra"  ? Kind::kHydra
                                               : Kind::kEagle3;
  const bool branches = kind == Kind::kMedusa || kind == Kind::kHydra;
  const int64_t known = kind == Kind::kEagle3 ? std::min(shape.vocab, kUsual) : shape.vocab;
  return {.kind = kind,
          .draft_vocab = options.draft_vocab.value_or(known),
          .layers = kind == Kind::kDFlash ? options.head_layers : 1,
          .block_size = options.block_size,
          .branches = branches ? options.head_branches : 0};
}

Status write_head(const SynthOptions& options, const SynthShape& shape, const fs::path& directory) {
  if (options.head == "none") return {};
  if (std::error_code error; !fs::create_directory(directory, error))
    return unavailable(fmt::format("--output {}: {}", options.output, error.message()));
  const SynthHead head = head_of(options, shape);
  RETURN_IF_ERROR(check_space(directory, bytes_of(synth_head_tensors(shape, head))));
  RETURN_IF_ERROR(write_text(directory / "config.json", json_text(synth_head_config(shape, head), 2) + "\n"));
  ASSIGN_OR_RETURN(SynthWeightFile file,
                   SynthWeightFile::write(directory / "model.safetensors", synth_head_tensors(shape, head),
                                          {.seed = {options.seed},
                                           .threads = options.threads > 0 ? options.threads : usable_cores(),
                                           .interrupted = interrupted}));
  return file.sync();
}

nlohmann::json record_of(const SynthOptions& o, const Calibrated& c) {
  return {{"provenance", provenance({{"weights", o.seed}})},
          {"shape", o.shape},
          {"draft_layers", o.draft_layers},
          {"head", o.head},
          {"seed", o.seed},
          {"temperature", o.temperature},
          {"asked", {{"acceptance", o.acceptance}, {"entropy", o.entropy}}},
          {"measured", {{"acceptance", c.acceptance}, {"entropy", c.entropy}}},
          {"final_gain", c.final_gain},
          {"upper_gain", c.upper_gain}};
}

Result<Calibrated> synthesise(const SynthOptions& options) {
  ASSIGN_OR_RETURN(const SynthShape shape, check_synth_options(options));
  RETURN_IF_ERROR(check_device(options.device));
  RETURN_IF_ERROR(check_output(options.output, options.force));
  for (const std::string& left : remove_abandoned(options.output))
    if (!options.quiet) tell_error(fmt::format("removed {}, which a killed run had left", left));
  ASSIGN_OR_RETURN(PartialDirectory directory, PartialDirectory::create(options.output));
  const fs::path target_path = directory.path() / "target", draft_path = directory.path() / "draft";
  for (const fs::path& path : {target_path, draft_path})
    if (std::error_code error; !fs::create_directory(path, error))
      return unavailable(fmt::format("--output {}: {}", options.output, error.message()));
  RETURN_IF_ERROR(check_space(
      directory.path(), bytes_of(synth_tensors(shape, shape.layers, options.draft_layers)) +
                            bytes_of(synth_tensors(shape, options.draft_layers, options.draft_layers))));
  ASSIGN_OR_RETURN(SynthWeightFile draft,
                   write_model(options, shape, options.draft_layers, draft_path, "draft"));
  ASSIGN_OR_RETURN(SynthWeightFile target, write_model(options, shape, shape.layers, target_path, "target"));
  RETURN_IF_ERROR(write_head(options, shape, directory.path() / options.head));

  Calibration calibration{
      .acceptance = options.acceptance,
      .entropy = options.entropy,
      .layers = shape.layers,
      .draft_layers = options.draft_layers,
      .device = {.kind = options.device->kind, .index = options.device->index.value_or(0)},
      .threads = options.threads > 0 ? options.threads : usable_cores(),
      .probe = {.temperature = options.temperature, .seed = {options.seed}}};
  calibration.tell = [&](const std::string& line) {
    if (!options.quiet) std::fprintf(stderr, "%s\n", line.c_str());
  };
  calibration.interrupted = interrupted;
  ASSIGN_OR_RETURN(const Calibrated calibrated,
                   calibrate({target_path, &target}, {draft_path, &draft}, calibration));
  RETURN_IF_ERROR(
      write_text(directory.path() / kRecord, json_text(record_of(options, calibrated), 2) + "\n"));
  RETURN_IF_ERROR(target.sync());
  RETURN_IF_ERROR(draft.sync());
  if (interrupted()) return unavailable("interrupted");
  RETURN_IF_ERROR(directory.commit());
  return calibrated;
}

}  // namespace

int run_synth(const SynthOptions& options) {
  set_thread_role("synth");
  note_first_signal();
  const auto done = synthesise(options);
  if (!done.ok()) {
    end_as_noted();  // everything is removed
    tell_error(done.status().message());
    return done.status().code() == StatusCode::kInvalidArgument ? kExitUsage : kExitRuntime;
  }
  const fs::path output(options.output);
  std::printf(
      "%s: acceptance %.3f at temperature %g, entropy %.2f nats, both measured on text of the target\n",
      options.output.c_str(), done->acceptance, options.temperature, done->entropy);
  std::printf("outrider bench --model %s --draft-model %s --temperature %g\n", (output / "target").c_str(),
              (output / "draft").c_str(), options.temperature);
  return kExitOk;
}

}  // namespace outrider
