#include "launch/options.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>

#include "cluster/simulation/acceptance_process.h"
#include "comm/emulated_link.h"
#include "comm/q_rows.h"
#include "transformer/shard.h"

namespace outrider {
namespace {

constexpr int64_t kLeastRowBytes = 16;   // a token of any vocabulary
constexpr int64_t kAutoRowBytes = 1024;  // the entropy of a text does not shrink with the vocabulary

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string RunOptions::policy() const {
  if (!gamma_policy.empty()) return gamma_policy;
  return num_speculative_tokens ? fmt::format("fixed:gamma={}", *num_speculative_tokens) : "ewma";
}

void add_model_options(CLI::App& app, RunOptions& o) {
  app.add_option("-m,--model", o.model,
                 "Target model: a Hugging Face directory (config.json, safetensors, tokenizer)")
      ->envname("OUTRIDER_MODEL")
      ->group("Models");
  app.add_option("--draft-model,-d,--model-draft,--speculative-draft-model-path", o.draft_model,
                 "Draft model with the same tokenizer. Without any drafter it is plain decoding")
      ->envname("OUTRIDER_DRAFT_MODEL")
      ->group("Models");
  app.add_option("--drafter", o.drafter, "ngram: draft by looking up the text's own past, no model needed")
      ->check(CLI::IsMember({"model", "ngram"}))
      ->envname("OUTRIDER_DRAFTER")
      ->group("Models");
  app.add_option("--tensor-parallel-size,--tp", o.tensor_parallel_size,
                 "Target ranks: 1, 2, 4 or 8. The text does not depend on it")
      ->envname("OUTRIDER_TENSOR_PARALLEL_SIZE")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--draft-tensor-parallel-size", o.draft_tensor_parallel_size,
                 "Must be 1: a draft model is not split")
      ->envname("OUTRIDER_DRAFT_TENSOR_PARALLEL_SIZE")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--threads", o.threads, "Threads of this process for arithmetic; 0: one per core")
      ->envname("OUTRIDER_THREADS")
      ->group("Models")
      ->capture_default_str();
  app.add_option(
         "--draft-threads", o.draft_threads,
         "Threads of the draft model alone, taken from those of the target, so that both can work at the "
         "same time; 0: all threads, in turns")
      ->envname("OUTRIDER_DRAFT_THREADS")
      ->group("Models")
      ->capture_default_str();
  app.add_option(
         "--weight-format", o.weight_format,
         "Weights in memory: auto (as stored), bf16, int8, int4 (embedding and head int8; CPUs only) or fp8 "
         "(CUDA only); quantised while loading")
      ->envname("OUTRIDER_WEIGHT_FORMAT")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--draft-weight-format", o.draft_weight_format, "The same for the draft model")
      ->envname("OUTRIDER_DRAFT_WEIGHT_FORMAT")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--kv-dtype", o.kv_dtype, "KV cache: auto (as the weights), fp32 or bf16")
      ->envname("OUTRIDER_KV_DTYPE")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--device", o.device,
                 "Where models run: cpu, cuda (workers take the GPUs in turn), cuda:N, or auto (the CPU)")
      ->envname("OUTRIDER_DEVICE")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--isa", o.isa,
                 "Instruction set of the kernels; `outrider doctor` lists what this machine has")
      ->envname("OUTRIDER_ISA")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--max-num-seqs", o.max_num_seqs, "Sequences decoded together")
      ->envname("OUTRIDER_MAX_NUM_SEQS")
      ->group("Models")
      ->capture_default_str();
  app.add_option(
         "--max-model-len", o.max_model_len,
         fmt::format("Longest text in tokens; 0: what the model supports, at most {}", kDefaultMaxModelLen))
      ->envname("OUTRIDER_MAX_MODEL_LEN")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--startup-timeout", o.startup_timeout_s,
                 "Seconds until every role must have loaded its model and joined")
      ->envname("OUTRIDER_STARTUP_TIMEOUT")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--layout", o.layout, "Under mpirun: roles by rank, e.g. coordinator=1,draft=1,target=2")
      ->envname("OUTRIDER_LAYOUT")
      ->group("Models");
  app.add_flag(
         "--allow-remote", o.allow_remote,
         "Under mpirun on several hosts whose libzmq has no CURVE: the coordinator listens where the others "
         "can "
         "reach it all the same. Nothing is encrypted or authenticated then: trusted networks only. With "
         "CURVE every job makes its own keys and this is not needed")
      ->envname("OUTRIDER_ALLOW_REMOTE")
      ->group("Models");
  app.add_option("--bind-host", o.bind_host,
                 "Several hosts: the coordinator's address to listen on, an IPv4 address of its host. "
                 "Default: what "
                 "its host name resolves to, or its first interface; on one host always loopback")
      ->envname("OUTRIDER_BIND_HOST")
      ->group("Models");
}

void add_pool_options(CLI::App& app, RunOptions& o) {
  app.add_option(
         "--num-draft-workers", o.num_draft_workers,
         "Draft workers in one process, each with a model of its own; they share the sequences. Under "
         "mpirun it is draft=N in --layout")
      ->envname("OUTRIDER_NUM_DRAFT_WORKERS")
      ->group("Draft workers")
      ->capture_default_str();
  app.add_option("--listen", o.listen,
                 "Let draft workers join and leave while the run goes on: tcp://127.0.0.1:PORT, or * for any "
                 "port, or ipc://PATH. The address is told on standard error; `outrider draft-worker "
                 "--connect` goes there. Other addresses than loopback need keys")
      ->envname("OUTRIDER_LISTEN")
      ->group("Draft workers");
  app.add_option("--wait-for-draft-workers", o.wait_for_draft_workers,
                 "Begin when so many have joined, those of the run itself included (default: just those)")
      ->envname("OUTRIDER_WAIT_FOR_DRAFT_WORKERS")
      ->group("Draft workers");
  app.add_option("--curve-secret-key", o.curve_secret_key,
                 "With --listen: our key file, from `outrider keygen`; workers need its .pub as --server-key")
      ->envname("OUTRIDER_CURVE_SECRET_KEY")
      ->group("Draft workers");
  app.add_option(
         "--allowed-keys", o.allowed_keys,
         "With --listen: a file of the public keys of workers that may join, one a line (or one .pub)")
      ->envname("OUTRIDER_ALLOWED_KEYS")
      ->group("Draft workers");
}

void add_generate_options(CLI::App& app, RunOptions& o) {
  app.add_option("-p,--prompt", o.prompt, "Text to continue")->group("Requests");
  app.add_option("--prompts", o.prompts_file,
                 "JSON lines, each with `prompt` or `messages`, and optionally seed, max_tokens, stop, "
                 "temperature, ...")
      ->group("Requests");
  app.add_option("-o,--output", o.output_file,
                 "Write results here as JSON lines instead of to standard output")
      ->group("Requests");
  app.add_flag("--chat", o.chat, "Treat the prompt as a user's message and apply the model's chat template")
      ->group("Requests");
  app.add_option("-n,--max-tokens", o.max_tokens, "Tokens to generate at most")
      ->group("Requests")
      ->capture_default_str();
  app.add_option("-t,--temperature", o.temperature, "0: greedy")->group("Requests")->capture_default_str();
  app.add_option("--top-k", o.top_k, "Keep the k best tokens; 0: all")
      ->group("Requests")
      ->capture_default_str();
  app.add_option("--top-p", o.top_p, "Keep the best tokens with this much probability")
      ->group("Requests")
      ->capture_default_str();
  app.add_option("--min-p", o.min_p, "Drop tokens less likely than this share of the best")
      ->group("Requests")
      ->capture_default_str();
  app.add_option("--repetition-penalty", o.repetition_penalty,
                 "Above 1 discourages tokens already in the text")
      ->group("Requests")
      ->capture_default_str();
  app.add_option("--presence-penalty", o.presence_penalty, "Subtracted once from tokens already generated")
      ->group("Requests")
      ->capture_default_str();
  app.add_option("--frequency-penalty", o.frequency_penalty, "Subtracted per occurrence of a generated token")
      ->group("Requests")
      ->capture_default_str();
  app.add_option("--logit-bias", o.logit_bias, "ID:V, added to the logit of a token; may be repeated")
      ->group("Requests");
  app.add_option("--stop", o.stop, "End before this text; may be repeated")->group("Requests");
  app.add_flag("--ignore-eos", o.ignore_eos, "Go on after end-of-sequence tokens")->group("Requests");
  app.add_option("-s,--seed", o.seed, "Seed of the text; lines of --prompts mix in their number")
      ->check([](const std::string& text) {  // a minus would wrap around
        return text.starts_with('-') ? fmt::format("{} must be 0 to 18446744073709551615", text)
                                     : std::string();
      })
      ->group("Requests")
      ->capture_default_str();
  app.add_option("--logprobs", o.logprobs, "Report the log-probability of every token and of the N best ones")
      ->group("Requests");

  app.add_option("-g,--num-speculative-tokens,--draft-max,--spec-draft-n-max,--speculative-num-draft-tokens",
                 o.num_speculative_tokens, "Draft exactly so many tokens a round (policy fixed); 0: none")
      ->group("Speculation");
  app.add_option(
         "--gamma-policy", o.gamma_policy,
         "How long drafts get: NAME[:key=value,...]; `list` explains them. Default: ewma, which maximises "
         "measured tokens per second")
      ->group("Speculation");
  app.add_option(
         "--synthetic-acceptance", o.synthetic_acceptance,
         "For studies without a matching pair: rates:0.8/0.7[,spread=S], length:TOKENS[/GAMMA] or "
         "trace:FILE decides what is accepted. All work is done, the text means nothing, nothing ends "
         "early")
      ->group("Speculation");
  app.add_option("--rule,--rejection-sample-method", o.rule,
                 "Verification: auto (greedy at temperature 0, else invariant), greedy, invariant, naive, "
                 "token, block")
      ->group("Speculation")
      ->capture_default_str();
  app.add_option(
         "--q-format", o.q_format,
         "Draft distribution for token and block; each form is exact, what it leaves out is never drafted. "
         "budget:BYTES: the best tokens that fit into so many bytes for each drafted token; sparse:M: the best "
         "M; dense: all; auto: a budget of 1 % of a dense row of 16 bits, and at least 1024")
      ->group("Speculation")
      ->capture_default_str();
  app.add_option(
         "--pipeline", o.pipeline,
         "What the drafter does while its draft is verified: lockstep (nothing), ahead (goes on as if all "
         "were accepted), fanout (drafts for the likeliest outcomes), auto (as many as pay)")
      ->check(CLI::IsMember({"lockstep", "ahead", "fanout", "auto"}))
      ->envname("OUTRIDER_PIPELINE")
      ->group("Speculation")
      ->capture_default_str();
  app.add_option("--fanout-budget", o.fanout_budget, "Outcomes to draft for at most, per sequence")
      ->envname("OUTRIDER_FANOUT_BUDGET")
      ->group("Speculation")
      ->capture_default_str();
  app.add_option(
         "--emulate-link", o.emulate_link,
         "For experiments: a slow or faulty network between coordinator and draft workers, e.g. "
         "delay=1ms,rate=1gbit (one way; us, ms, s; kbit, mbit, gbit). loss=, duplicate=, corrupt=, reorder= "
         "with a share of the messages, 0.1 or 10%; links=draft, target (delay and rate only) or all; seed=N")
      ->envname("OUTRIDER_EMULATE_LINK")
      ->group("Speculation");
  app.add_flag("--compare-plain", o.compare_plain,
               "First decode the same requests without a drafter; compare the text and report the speed-up")
      ->group("Speculation");

  app.add_option("--report", o.report_file, "Write every metric of the run here, as JSON")->group("Reports");
  app.add_option("--trace", o.trace_file, "Write a Chrome trace here (open it in Perfetto)")
      ->group("Reports");
  app.add_option(
         "--record-rounds", o.record_rounds_file,
         "Write every round here, for `outrider simulate replay`: what other draft lengths would have "
         "done. Rounds without a draft leave gaps; the drafter guesses once more after each draft that was "
         "fully "
         "accepted")
      ->group("Reports");
  app.add_flag("-q,--quiet", o.quiet, "No progress and no report on standard error")->group("Reports");
}

Result<Rule> resolve_rule(const std::string& name, float temperature) {
  const bool greedy = temperature < kGreedyTemperature;
  if (name == "auto") return greedy ? Rule::kGreedy : Rule::kInvariant;
  const auto rule = rule_from_name(name);
  if (!rule)
    return invalid_argument(
        fmt::format("--rule {}: choose auto, greedy, invariant, naive, token or block", name));
  if (*rule == Rule::kGreedy && !greedy)
    return invalid_argument(fmt::format(
        "--rule greedy means temperature 0, but the temperature is {}; drop one of them", temperature));
  return greedy ? Rule::kGreedy : *rule;
}

Result<std::pair<TokenId, float>> parse_logit_bias(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon != std::string::npos) {
    const auto id = parse_number<int32_t>(std::string_view(text).substr(0, colon));
    const auto value = parse_number<float>(std::string_view(text).substr(colon + 1));
    if (id && value && *id >= 0 && std::isfinite(*value)) return std::pair{TokenId(*id), *value};
  }
  return invalid_argument(fmt::format("--logit-bias {}: write ID:V, for example 42:-1.5", text));
}

Result<Pipeline> parse_pipeline(const std::string& name) {
  if (name == "lockstep") return Pipeline::kLockstep;
  if (name == "ahead") return Pipeline::kAhead;
  if (name == "fanout") return Pipeline::kFanout;
  if (name == "auto") return Pipeline::kAuto;
  return invalid_argument(fmt::format("--pipeline {}: choose lockstep, ahead, fanout or auto", name));
}

Result<QFormat> parse_q_format(const std::string& text) {
  if (text == "auto") return QFormat{};
  if (text == "dense") return QFormat{.kind = QKind::kDense, .sparse_m = 0};
  if (text.starts_with("sparse:")) {
    const auto m = parse_number<int32_t>(std::string_view(text).substr(7));
    if (m && *m >= 1) return QFormat{.kind = QKind::kSparse, .sparse_m = *m};
  }
  if (text.starts_with("budget:")) {
    const auto bytes = parse_number<int64_t>(std::string_view(text).substr(7));
    if (bytes && *bytes >= kLeastRowBytes) return QFormat{.kind = QKind::kSparse, .bytes = *bytes};
  }
  return invalid_argument(fmt::format(
      "--q-format {}: choose auto, dense, sparse:M with M at least 1, or budget:BYTES with at least {}", text,
      kLeastRowBytes));
}

int32_t QFormat::entries(int64_t vocab_size) const {
  if (kind != QKind::kSparse) return 0;
  if (sparse_m > 0) return sparse_m;
  const int64_t dense_bytes = 2 * vocab_size;
  return sparse_entries_within(bytes > 0 ? bytes : std::max(kAutoRowBytes, dense_bytes / 100), vocab_size);
}

Result<ModelOptions::Kv> parse_kv_dtype(const std::string& text) {
  if (text == "auto") return ModelOptions::Kv::kAuto;
  if (text == "fp32" || text == "float32") return ModelOptions::Kv::kFloat32;
  if (text == "bf16" || text == "bfloat16") return ModelOptions::Kv::kBFloat16;
  return invalid_argument(fmt::format("--kv-dtype {}: choose auto, fp32 or bf16", text));
}

Result<SamplingParams> sampling_of(const RunOptions& o) {
  ASSIGN_OR_RETURN(const Rule rule, resolve_rule(o.rule, o.temperature));
  SamplingParams params{.rule = rule,
                        .temperature = o.temperature,
                        .top_k = o.top_k,
                        .top_p = o.top_p,
                        .min_p = o.min_p,
                        .repetition_penalty = o.repetition_penalty,
                        .presence_penalty = o.presence_penalty,
                        .frequency_penalty = o.frequency_penalty,
                        .logit_bias = {},
                        .seed = Seed{o.seed},
                        .logprobs = o.logprobs};
  for (const std::string& bias : o.logit_bias) {
    ASSIGN_OR_RETURN(auto parsed, parse_logit_bias(bias));
    params.logit_bias.push_back(parsed);
  }
  return params;
}

namespace {

Status check_pool_options(const RunOptions& o) {
  if (o.num_draft_workers < 1 || o.num_draft_workers > kMaxDraftWorkers)
    return invalid_argument(
        fmt::format("--num-draft-workers {}: must be 1 to {}", o.num_draft_workers, kMaxDraftWorkers));
  if (o.num_draft_workers > 1 && !o.has_drafter())
    return invalid_argument("--num-draft-workers needs --draft-model DIR or --drafter ngram");
  const int waits_for = o.wait_for_draft_workers.value_or(0);
  if (waits_for < 0 || waits_for > kMaxDraftWorkers || (waits_for > 0 && o.listen.empty()))
    return invalid_argument(fmt::format("--wait-for-draft-workers {}: must be 0 to {}, and needs --listen",
                                        waits_for, kMaxDraftWorkers));
  if (o.curve_secret_key.empty() != o.allowed_keys.empty())
    return invalid_argument(
        "--curve-secret-key and --allowed-keys go together: our key, and those of the workers");
  if (!o.curve_secret_key.empty() && o.listen.empty())
    return invalid_argument("--curve-secret-key needs --listen: nothing else here uses keys from files");
  return {};
}

}  // namespace

Status check_drafter_options(const RunOptions& o) {
  if (o.drafter == "ngram" && !o.draft_model.empty())
    return invalid_argument("--drafter ngram and --draft-model exclude each other; drop one");
  if (o.drafter == "model" && o.draft_model.empty())
    return invalid_argument("--drafter model needs --draft-model");
  if (o.threads < 0 || o.threads > 1024)
    return invalid_argument(fmt::format("--threads {}: must be 0 to 1024", o.threads));
  if (o.fanout_budget < 1 || o.fanout_budget > kMaxFanoutBudget)
    return invalid_argument(
        fmt::format("--fanout-budget {}: must be 1 to {}", o.fanout_budget, kMaxFanoutBudget));
  if (o.max_num_seqs < 1 || o.max_num_seqs > 256)
    return invalid_argument(fmt::format("--max-num-seqs {}: must be 1 to 256", o.max_num_seqs));
  if (o.max_model_len < 0) return invalid_argument("--max-model-len must not be negative");
  RETURN_IF_ERROR(parse_kv_dtype(o.kv_dtype).status());
  return parse_weight_format("--draft-weight-format", o.draft_weight_format).status();
}

Status check_options(const RunOptions& o) {
  if (o.model.empty()) return invalid_argument("--model is missing: name a Hugging Face model directory");
  if (!is_supported_tp_size(o.tensor_parallel_size))
    return invalid_argument(
        fmt::format("--tensor-parallel-size {}: must be 1, 2, 4 or 8", o.tensor_parallel_size));
  if (o.draft_tensor_parallel_size != 1)
    return unsupported(
        fmt::format("--draft-tensor-parallel-size {}: a draft model is not split over ranks; use 1",
                    o.draft_tensor_parallel_size));
  RETURN_IF_ERROR(check_drafter_options(o));
  if (o.draft_threads < 0 || o.draft_threads > 1024)
    return invalid_argument(fmt::format("--draft-threads {}: must be 0 to 1024", o.draft_threads));
  if (o.startup_timeout_s < 1) return invalid_argument("--startup-timeout must be at least 1 second");
  const int pinned = o.num_speculative_tokens.value_or(0);
  if (pinned < 0 || pinned > kMaxSpeculativeTokens)
    return invalid_argument(
        fmt::format("--num-speculative-tokens {}: must be 0 to {}", pinned, kMaxSpeculativeTokens));
  RETURN_IF_ERROR(parse_pipeline(o.pipeline).status());
  if (!o.synthetic_acceptance.empty()) {
    RETURN_IF_ERROR(
        AcceptanceProcess::parse(o.synthetic_acceptance, o.seed).status().in("--synthetic-acceptance"));
    if (o.logprobs >= 0)
      return invalid_argument(
          "--synthetic-acceptance: the tokens are not the model's, so --logprobs has no meaning");
  }
  RETURN_IF_ERROR(parse_link_emulation(o.emulate_link).status().in("--emulate-link"));
  RETURN_IF_ERROR(parse_q_format(o.q_format).status());
  RETURN_IF_ERROR(parse_weight_format("--weight-format", o.weight_format).status());
  return check_pool_options(o);
}

}  // namespace outrider
