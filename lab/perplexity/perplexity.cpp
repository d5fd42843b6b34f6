#include "lab/perplexity/perplexity.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "base/json_file.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "base/program/temporary_file.h"
#include "base/utf8.h"
#include "comm/collectives.h"
#include "comm/cores.h"
#include "lab/perplexity/scores.h"
#include "requests/output.h"
#include "start/device.h"
#include "start/flags/options.h"
#include "start/load_models.h"
#include "start/prepare.h"
#include "start/role_threads.h"

namespace outrider {
namespace {

constexpr size_t kMaxTextBytes = size_t{256} << 20;
constexpr int64_t kMinContext = 8;
constexpr int64_t kRowsAtOnce = 64;  // of logits, which are rows x vocabulary

// Errors of a model name --model, and here perhaps --base.
Status in_place_of_model(const Status& status, const std::string& flag) {
  constexpr std::string_view kModel = "--model";
  const std::string& text = status.message();
  if (!text.starts_with(kModel)) return status.in(flag);
  return {status.code(), flag + text.substr(kModel.size())};
}

RoleSettings settings_of(const PerplexityOptions& options, const ModelSettings& models) {
  RoleSettings settings{.models = models, .speculation = {}, .quiet = options.quiet};
  settings.models.max_num_seqs = 1;
  return settings;
}

// Without weights.
Result<Preparation> prepare_model(const PerplexityOptions& options, const ModelSettings& models,
                                  const char* flag) {
  auto prepared = prepare(settings_of(options, models));
  if (!prepared.ok()) return in_place_of_model(prepared.status(), flag);
  if (options.context > prepared->target.max_position_embeddings)
    return invalid_argument(fmt::format("--ctx-size {}: {} {} supports {}", options.context, flag,
                                        models.model, prepared->target.max_position_embeddings));
  prepared->max_model_len = options.context;
  return prepared;
}

// A loaded model with one sequence.
class ScoringModel {
 public:
  static Result<ScoringModel> load(const PerplexityOptions& options, const ModelSettings& models,
                                   const char* flag) {
    ScoringModel out;
    const RoleSettings settings = settings_of(options, models);
    ASSIGN_OR_RETURN(out.prepared_, prepare_model(options, models, flag));
    tell_warnings(out.prepared_);
    out.group_ = make_single_collectives();
    auto loaded = load_target(settings, out.prepared_, role_threads(models.threads, usable_cores()),
                              *out.group_, 0, false);
    if (!loaded.ok()) return in_place_of_model(loaded.status(), flag);
    out.model_ = std::move(loaded->model);
    return out;
  }

  const Tokenizer& tokenizer() const { return *prepared_.tokenizer; }
  int64_t vocab_size() const { return model_->config().vocab_size; }

  // Appends the tokens to the chunk. Returns logits of the last `rows` tokens, valid until the next call.
  Result<LogitsShard> read(std::span<const TokenId> tokens, int64_t rows) {
    const BatchSlice slice{.sequence = *sequence_, .tokens = tokens, .logit_rows = rows};
    return model_->forward({&slice, 1});
  }
  void begin_chunk() {
    if (sequence_) model_->kv().release(*sequence_);
    sequence_ = model_->kv().create();
  }

 private:
  Preparation prepared_;
  std::unique_ptr<Collectives> group_;
  std::unique_ptr<Model> model_;
  std::optional<KvHandle> sequence_;
};

struct Scores {
  Likelihood model;
  PairedLikelihood paired;
  Difference difference;
};

// Tells from time to time how far the run is.
class ChunkLines {
 public:
  ChunkLines(int64_t chunks, bool enabled) : chunks_(chunks), enabled_(enabled) {}
  void tell(int64_t done, const Scores& scores) {
    constexpr std::chrono::seconds kBetween(5);
    const auto now = std::chrono::steady_clock::now();
    if (!enabled_ || done == chunks_ || now - last_ < kBetween) return;
    last_ = now;
    const double spent = std::chrono::duration<double>(now - start_).count();
    std::fprintf(stderr, "outrider: chunk %ld of %ld, perplexity %.4f so far, %.0f s left\n",
                 static_cast<long>(done), static_cast<long>(chunks_), scores.model.perplexity(),
                 spent / static_cast<double>(done) * static_cast<double>(chunks_ - done));
  }

 private:
  const int64_t chunks_;
  const bool enabled_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = start_;
};

// The logits of a row, without the padding of the head.
std::span<const float> row_of(const LogitsShard& logits, int64_t row, int64_t vocab_size) {
  return std::span<const float>(logits.logits.row(row)).first(static_cast<size_t>(vocab_size));
}

// Adds the second half of a chunk: each position there predicts the next token.
Status score_chunk(std::span<const TokenId> chunk, ScoringModel& model, ScoringModel* base, Scores& to) {
  const auto first = static_cast<int64_t>(chunk.size() / 2), end = static_cast<int64_t>(chunk.size()) - 1;
  model.begin_chunk();
  if (base) base->begin_chunk();
  const auto part = [&](int64_t from, int64_t until) {
    return chunk.subspan(static_cast<size_t>(from), static_cast<size_t>(until - from));
  };
  for (int64_t from = 0, until = 0; from < first; from = until) {
    until = std::min(first, from + kMaxRowsPerStep);
    RETURN_IF_ERROR(model.read(part(from, until), 0).status());
    if (base) RETURN_IF_ERROR(base->read(part(from, until), 0).status());
  }
  const int64_t vocab_size = model.vocab_size();
  for (int64_t from = first, until = 0; from < end; from = until) {
    until = std::min(end, from + kRowsAtOnce);
    ASSIGN_OR_RETURN(const LogitsShard logits, model.read(part(from, until), until - from));
    std::optional<LogitsShard> of_base;
    if (base) {
      ASSIGN_OR_RETURN(of_base, base->read(part(from, until), until - from));
    }
    for (int64_t row = 0; row < until - from; ++row) {
      const auto next = static_cast<size_t>(chunk[static_cast<size_t>(from + row + 1)].value());
      const std::span<const float> own = row_of(logits, row, vocab_size);
      const double nll = log_sum_exp(own) - own[next];
      to.model.add(nll);
      if (!of_base) continue;
      const std::span<const float> others = row_of(*of_base, row, vocab_size);
      to.paired.add(nll, log_sum_exp(others) - others[next]);
      add_difference(others, own, to.difference);
    }
  }
  return {};
}

std::string described(const ModelSettings& models) {
  std::string text = model_display_name(models);
  if (models.weight_format != "auto") text += fmt::format(", weights {}", models.weight_format.text());
  if (models.activation_format != "auto") text += fmt::format(", inputs {}", models.activation_format.text());
  if (models.kv_dtype != "auto") text += fmt::format(", KV cache {}", models.kv_dtype.text());
  return text;
}

nlohmann::json json_of(const ModelSettings& models, const Likelihood& likelihood) {
  return {{"model", models.model},
          {"weight_format", models.weight_format.text()},
          {"activation_format", models.activation_format.text()},
          {"kv_dtype", models.kv_dtype.text()},
          {"perplexity", likelihood.perplexity()},
          {"standard_error", likelihood.error()}};
}

Status print(const PerplexityOptions& o, const Scores& scores, int64_t chunks, bool has_base) {
  const auto line = [](const ModelSettings& models, const Likelihood& likelihood) {
    std::printf("perplexity %.4f +- %.4f  %s\n", likelihood.perplexity(), likelihood.error(),
                described(models).c_str());
  };
  line(o.model, scores.model);
  nlohmann::json report{{"file", o.file},
                        {"context", o.context},
                        {"chunks", chunks},
                        {"scored_tokens", scores.model.count()},
                        {"model", json_of(o.model, scores.model)}};
  if (has_base) {
    const Difference& d = scores.difference;
    const PairedLikelihood& paired = scores.paired;
    line(o.base, paired.base());
    std::printf("difference %+.4f +- %.4f, ratio %.5f +- %.5f\n", paired.difference(),
                paired.difference_error(), paired.ratio(), paired.ratio_error());
    std::printf("KL divergence %.6f (largest %.4f), same most likely token %.2f %%\n", d.mean_divergence(),
                d.divergence_max, 100 * d.same_top_share());
    report["base"] = json_of(o.base, paired.base());
    report["difference"] = {{"perplexity", paired.difference()},
                            {"standard_error", paired.difference_error()}};
    report["ratio"] = paired.ratio();
    report["ratio_standard_error"] = paired.ratio_error();
    report["kl_divergence"] = {{"mean", d.mean_divergence()}, {"largest", d.divergence_max}};
    report["same_top_token"] = d.same_top_share();
  }
  std::printf("%ld tokens scored in %ld chunks of %ld\n", static_cast<long>(scores.model.count()),
              static_cast<long>(chunks), static_cast<long>(o.context));
  if (std::fflush(stdout) != 0) return unavailable("standard output: cannot be written");
  return o.report.empty() ? Status() : write_file(o.report, json_text(report, 2) + "\n").in("--report");
}

Status check_base(const ScoringModel& model, const ScoringModel& base, const std::string& path) {
  if (!check_same_vocabulary(model.tokenizer(), base.tokenizer()).ok())
    return invalid_argument(fmt::format(
        "--base {}: has other tokens than --model, so their distributions cannot be compared", path));
  if (model.vocab_size() != base.vocab_size())
    return invalid_argument(fmt::format("--base {}: it has logits of {} tokens, --model has {}", path,
                                        base.vocab_size(), model.vocab_size()));
  return {};
}

Result<std::string> read_scored_text(const PerplexityOptions& o) {
  auto read = read_text_file(o.file, kMaxTextBytes);
  if (!read.ok()) return read.status().in(o.file_flag);
  if (const auto at = find_invalid_utf8(*read))
    return invalid_argument(fmt::format("{} {}: is not UTF-8 at byte {}", o.file_flag, o.file, *at));
  return read;
}

// The tokens of at least one chunk.
Result<std::vector<TokenId>> tokens_of(const std::string& text, const Tokenizer& tokenizer,
                                       int64_t vocab_size, const PerplexityOptions& o) {
  ASSIGN_OR_RETURN(std::vector<TokenId> tokens, tokenizer.encode(text, SpecialTokens::kAdd));
  // Special tokens of other inputs than text, such as images, may have no embedding.
  for (const TokenId token : tokens)
    if (token.value() >= vocab_size)
      return invalid_argument(
          fmt::format("{} {}: has the special token {}, which the model cannot read; "
                      "take it out of the text",
                      o.file_flag, o.file, printable(tokenizer.token(token))));
  if (tokens.size() >= static_cast<size_t>(o.context)) return tokens;
  const bool has_size = o.file_flag == PerplexityOptions().file_flag;
  return invalid_argument(fmt::format("{} {}: has {} tokens, a chunk {}has {}; give a longer text{}",
                                      o.file_flag, o.file, tokens.size(), has_size ? "of --ctx-size " : "",
                                      o.context, has_size ? " or a smaller --ctx-size" : ""));
}

Status perplexity(PerplexityOptions o) {
  if (!o.report.empty()) RETURN_IF_ERROR(TemporaryFile::check(o.report).in("--report"));
  ASSIGN_OR_RETURN(const std::string text, read_scored_text(o));
  const bool has_base = !o.base.model.empty() || o.base.weight_format != "auto" ||
                        o.base.activation_format != "auto" || o.base.kv_dtype != "auto";
  if (o.base.model.empty()) {
    o.base.model = o.model.model;
    o.base.model_of_hub = o.model.model_of_hub;
  }
  o.base.threads = o.model.threads;
  o.base.device = o.model.device;
  o.base.isa = o.model.isa;
  ASSIGN_OR_RETURN(ScoringModel model, ScoringModel::load(o, o.model, "--model"));
  ASSIGN_OR_RETURN(std::vector<TokenId> tokens, tokens_of(text, model.tokenizer(), model.vocab_size(), o));
  const auto context = static_cast<size_t>(o.context);
  auto chunks = static_cast<int64_t>(tokens.size() / context);
  if (o.chunks > 0) chunks = std::min(chunks, o.chunks);
  std::optional<ScoringModel> base;
  if (has_base) {
    ASSIGN_OR_RETURN(base, ScoringModel::load(o, o.base, "--base"));
    RETURN_IF_ERROR(check_base(model, *base, o.base.model));
  }
  Scores scores;
  ChunkLines lines(chunks, !o.quiet);
  for (int64_t c = 0; c < chunks; ++c) {
    const std::span<TokenId> chunk = std::span(tokens).subspan(static_cast<size_t>(c) * context, context);
    // As texts begin: llama-perplexity puts the token there, too.
    if (const auto bos = model.tokenizer().bos()) chunk.front() = *bos;
    RETURN_IF_ERROR(score_chunk(chunk, model, base ? &*base : nullptr, scores));
    lines.tell(c + 1, scores);
  }
  return print(o, scores, chunks, has_base);
}

}  // namespace

void add_perplexity_options(CLI::App& app, PerplexityOptions& o) {
  app.footer(
      "Examples:\n"
      "  outrider perplexity MODEL.gguf --file text.txt\n"
      "  outrider perplexity MODEL-int8 --file text.txt --base MODEL          what quantising changed\n"
      "  outrider perplexity MODEL.gguf --file text.txt --base-activation-format bf16\n"
      "The text is cut into chunks of --ctx-size tokens, and the second half of each chunk is scored, as in\n"
      "llama-perplexity of llama.cpp. Exit codes: 0 success, 2 bad flag or file, 3 no memory or a write "
      "failed.");
  finds_model(
      app.add_option("-m,--model,MODEL", o.model.model,
                     "GGUF file or directory of the model, or the hub's name of one in its cache, org/name"),
      &o.model.model_of_hub)
      ->required();
  app.add_option("-f,--file", o.file, "Text in UTF-8")->required();
  app.add_option("-c,--ctx-size", o.context, "Tokens of a chunk")
      ->check(CLI::Range(kMinContext, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--chunks", o.chunks, "Chunks from the beginning of the text; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  finds_model(app.add_option("--base", o.base.model,
                             "Also prints the divergence from this model, which has the same tokens"),
              &o.base.model_of_hub);
  const auto formats = [&](const std::string& prefix, ModelSettings& to, const std::string& of) {
    app.add_option(prefix + "weight-format", to.weight_format, "Weights in memory" + of + ": as in generate")
        ->capture_default_str();
    app.add_option(prefix + "activation-format", to.activation_format,
                   "Inputs of products with quantised files" + of + ": int8, bf16, or auto (int8)")
        ->capture_default_str();
    app.add_option(prefix + "kv-dtype", to.kv_dtype,
                   "KV cache" + of + ": auto (as the weights), fp32 or bf16")
        ->capture_default_str();
  };
  formats("--", o.model, "");
  formats("--base-", o.base, " of the base; without --base the base is --model");
  app.add_option("--device", o.model.device, "cpu, cuda, cuda:N, or auto (the CPU)")->capture_default_str();
  app.add_option("--isa", o.model.isa, "Instruction set of the kernels; `outrider doctor` lists them")
      ->capture_default_str();
  app.add_option("--threads", o.model.threads, "0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--report", o.report, "Writes the figures to this file as JSON");
  app.add_flag("-q,--quiet", o.quiet, "No progress on standard error");
}

Status check_perplexity(const PerplexityOptions& o) {
  ASSIGN_OR_RETURN(const std::string text, read_scored_text(o));
  ASSIGN_OR_RETURN(const Preparation prepared, prepare_model(o, o.model, "--model"));
  return tokens_of(text, *prepared.tokenizer, prepared.target.vocab_size, o).status();
}

int run_perplexity(const PerplexityOptions& options) { return told_exit_code(perplexity(options)); }

}  // namespace outrider
