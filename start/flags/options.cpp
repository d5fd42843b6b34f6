#include "start/flags/options.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/parse_number.h"
#include "start/flags/model_path.h"
#include "start/flags/speculative_config.h"
#include "start/tree_option.h"

namespace outrider {
namespace {

LogitBias parse_biases(const std::vector<std::string>& texts) {
  LogitBias biases;
  for (const std::string& text : texts) {
    const auto bias = parse_logit_bias(text);
    if (!bias.ok()) throw CLI::ValidationError(bias.status().message());
    biases.push_back(*bias);
  }
  return biases;
}

// A file, a pipe, or - for standard input; one line break at the end is left out. Returns what is wrong;
// empty: nothing.
std::string read_prompt_file(const std::string& file, std::string& text) {
  constexpr size_t kMaxBytes = size_t{64} << 20;
  std::FILE* const stream = file == "-" ? stdin : std::fopen(file.c_str(), "rb");
  if (!stream) return fmt::format("{}: {}", file, std::strerror(errno));
  text.clear();
  char bytes[1 << 16];
  for (size_t count = 1; count > 0 && text.size() <= kMaxBytes;)
    text.append(bytes, count = std::fread(bytes, 1, sizeof bytes, stream));
  const int error = std::ferror(stream) != 0 ? errno : 0;
  if (stream != stdin) std::fclose(stream);
  if (error != 0) return fmt::format("{}: {}", file, std::strerror(error));
  if (text.size() > kMaxBytes) return fmt::format("{}: longer than {} bytes", file, kMaxBytes);
  if (text.ends_with('\n')) text.pop_back();
  return text.empty() ? fmt::format("{}: there is no text in it", file) : std::string();
}

// -p TEXT, @FILE or -. Returns what is wrong; empty: nothing.
std::string read_prompt(std::string& text) {
  if (text.starts_with("@@")) {
    text.erase(0, 1);
    return {};
  }
  const bool is_file = text.size() > 1 && text.starts_with("@");
  if (!is_file && text != "-") return {};
  const std::string file = is_file ? text.substr(1) : "-";
  return read_prompt_file(file, text);
}

}  // namespace

CLI::Option* finds_model(CLI::Option* option, std::string* name_of_hub) {
  return option->transform(CLI::Validator(
      [name_of_hub](std::string& text) {
        auto found = find_model(text);
        if (!found.ok()) return found.status().message();
        if (name_of_hub && *found != text) *name_of_hub = without_hub_address(text);
        text = std::move(found).value();
        return std::string();
      },
      ""));
}

std::string model_display_name(const ModelSettings& settings) {
  return settings.model_of_hub.empty() ? model_display_name(settings.model) : settings.model_of_hub;
}

void add_text_drafter_options(CLI::App& app, ModelSettings& m) {
  app.add_option("--drafter", m.drafter,
                 "Drafts without a draft model, or with a draft head. ngram: from the newest place in the "
                 "text with the same last tokens. suffix: from the longest such places, in the text and "
                 "in finished outputs. recycling: along the tokens that the target ranked best after each "
                 "token. lookahead: from n-grams that the target makes in its own passes (recycling and "
                 "lookahead: targets on the CPU). eagle3, eagle (1 and 2), mtp, medusa, hydra, dflash "
                 "(and DSpark): a head in --draft-model that reads the target's hidden states. "
                 "model+suffix: the draft model, or suffix in steps for which it is expected to gain "
                 "more. layerskip: the target's first layers (--exit-layer). n-grams rarely beat plain "
                 "decoding on texts that do not repeat")
      ->check(CLI::IsMember({"model", "ngram", "suffix", "recycling", "lookahead", "model+suffix", "eagle3",
                             "eagle", "mtp", "medusa", "hydra", "dflash", "layerskip"}))
      ->transform([](const std::string& name) { return name == "dspark" ? std::string("dflash") : name; })
      ->group("Models");
  app.add_option("--draft-drafter", m.draft_drafter,
                 "Proposes tokens to the draft model from the text alone, so that the draft model "
                 "prefills several tokens in one pass. The drafts are the same, sooner where texts "
                 "repeat. It is used while it is measured to be faster")
      ->check(CLI::IsMember({"off", "ngram", "suffix"}))
      ->group("Models")
      ->capture_default_str();
  app.add_option(
         "--lookahead-ngram", m.lookahead_ngram,
         "Tokens of an n-gram of --drafter lookahead. Half of the nodes of --speculative-tree are its "
         "window, as wide as they allow")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--draft-history-tokens", m.draft_history_tokens,
                 "Tokens of finished outputs that --drafter suffix searches, in 28 bytes each; the oldest "
                 "are dropped first. 0: a request is searched in its own text alone")
      ->group("Models")
      ->capture_default_str();
}

void add_model_options(CLI::App& app, ClusterSettings& o) {
  ModelSettings& m = o.models;
  finds_model(
      app.add_option("-m,--model,MODEL", m.model,
                     "Target model: a GGUF file, a Hugging Face directory (config.json, safetensors, "
                     "tokenizer), or the hub's name of one in its cache, org/name or org/name:Q4_K_M"),
      &m.model_of_hub)
      ->group("Models");
  finds_model(app.add_option("--draft-model,-d,--model-draft,--speculative-draft-model-path", m.draft_model,
                             "Draft model with the same tokenizer, or a draft head with --drafter. Without "
                             "any drafter it is plain decoding"))
      ->group("Models");
  add_text_drafter_options(app, m);
  app.add_option("--head-place", m.head_place,
                 "Where a head drafts. target: in the process of the target's leader, right after its "
                 "pass. worker: at a draft worker, to which the hidden states of each committed token are "
                 "sent. auto: both hold the head, in their own memory, and the place that is measured to "
                 "be faster is used; without a worker it is target")
      ->check(CLI::IsMember({"target", "worker", "auto"}))
      ->group("Models")
      ->capture_default_str();
  app.add_option("--exit-layer", m.exit_layer,
                 "With --drafter layerskip: how many of the target's layers draft, before its final norm and "
                 "output head")
      ->group("Models");
  app.add_option("--tensor-parallel-size,--tp", m.tensor_parallel_size,
                 "Target ranks of a group: 1, 2, 4 or 8. The text does not depend on it")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--data-parallel-size,--dp", m.data_parallel_size,
                 "Target groups, each with the whole model: a request runs in one of them, and goes on in "
                 "another should its own fail. The text does not depend on it. Draft workers serve all "
                 "groups")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--prefill-groups", m.prefill_groups,
                 "Target groups that only prefill, beside those of --data-parallel-size: they compute long "
                 "prompts, and send the keys and values to the group that decodes. The text does not depend "
                 "on it")
      ->group("Models")
      ->capture_default_str();
  app.add_option(
         "--min-prefill-tokens", m.min_prefill_tokens,
         "With --prefill-groups: a prompt with fewer tokens that are not cached is prefilled where it "
         "is decoded. Default: 64")
      ->group("Models");
  app.add_option("--draft-tensor-parallel-size", m.draft_tensor_parallel_size,
                 "Ranks that a draft model is split over, of each draft worker: 1, 2, 4 or 8. Drafts do not "
                 "depend on it")
      ->group("Models")
      ->capture_default_str();
  app.add_option(
         "--threads", m.threads,
         "Threads of this process for arithmetic; 0: as many cores as the weights are worth, 8 MiB each")
      ->group("Models")
      ->capture_default_str();
  app.add_option(
         "--draft-threads", m.draft_threads,
         "Threads of the draft model alone, taken from those of the target, so that both can work at the "
         "same time; 0: all threads, in turns")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--weight-format", m.weight_format,
                 "Weights in memory: auto (as stored), bf16, int8, int4 (embedding and head int8) or fp8 "
                 "(CUDA only); quantised while loading")
      ->check(m.weight_format.complaint)
      ->group("Models")
      ->capture_default_str();
  app.add_option("--draft-weight-format", m.draft_weight_format, "The same for the draft model")
      ->check(m.draft_weight_format.complaint)
      ->group("Models")
      ->capture_default_str();
  app.add_option("--draft-vocab-size", m.draft_vocab_size,
                 "The draft model draws only ids below this one; 0: all. A smaller output head makes its "
                 "steps cheaper, "
                 "and frequent tokens have low ids in most vocabularies (FR-Spec)")
      ->group("Models")
      ->capture_default_str();
  app.add_option(
         "--draft-window,--speculative-draft-window-size", m.draft_window,
         "Of a longer text the draft model reads only the first --draft-sinks and the last N tokens when "
         "it begins to draft: long prompts cost it less, and its drafts know less; 0: all")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--draft-sinks,--speculative-draft-sink-size", m.draft_sinks,
                 "Tokens at the beginning of a text that the draft model reads with --draft-window")
      ->group("Models")
      ->default_str(std::to_string(kDefaultDraftSinks));
  app.add_option(
         "--activation-format", m.activation_format,
         "Inputs of products with quantised files (GGUF, GPTQ, AWQ, ...) on the CPU: int8 or bf16; auto: "
         "int8. int8 is faster, bf16 is closer to the numbers of the file")
      ->check(m.activation_format.complaint)
      ->group("Models")
      ->capture_default_str();
  app.add_option("--kv-dtype", m.kv_dtype, "KV cache: auto (as the weights), fp32 or bf16")
      ->check(m.kv_dtype.complaint)
      ->group("Models")
      ->capture_default_str();
  app.add_option("--device", m.device,
                 "Where models run: cpu, cuda (workers take the GPUs in turn), cuda:N, or auto (the CPU)")
      ->check(m.device.complaint)
      ->group("Models")
      ->capture_default_str();
  app.add_option("--isa", m.isa,
                 "Instruction set of the kernels; `outrider doctor` lists what this machine has")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--max-num-seqs", m.max_num_seqs, "Sequences decoded together, in each target group")
      ->group("Models")
      ->capture_default_str();
  app.add_option(
         "-c,--max-model-len,--ctx-size", m.max_model_len,
         fmt::format("Longest text in tokens; 0: what the model supports, at most {}", kDefaultMaxModelLen))
      ->group("Models")
      ->capture_default_str();
  app.add_option("--prefix-caching", m.prefix_caching,
                 "on: the KV cache of a prefix serves later requests with the same beginning, until other "
                 "sequences need the slots. No text changes. off: every prompt is computed whole")
      ->check(CLI::IsMember({"on", "off"}))
      ->group("Models")
      ->capture_default_str();
  app.add_option("--kv-cache-tokens", m.kv_cache_tokens,
                 "Tokens that the target's KV cache has room for, over all sequences. When texts need "
                 "more, the newest sequence is preempted and prefilled again later; no text changes. 0: "
                 "the longest text for each of --max-num-seqs")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--scheduling-policy", m.scheduling_policy,
                 "Order of waiting requests. fcfs: first come, first served. priority: the lowest "
                 "`priority` of a request first (0 without one), then first come. Where the KV cache is "
                 "full, the last sequence in that order is preempted")
      ->check(CLI::IsMember({"fcfs", "priority"}))
      ->group("Models")
      ->capture_default_str();
  app.add_option("--startup-timeout", m.startup_timeout_s,
                 "Seconds until every role must have loaded its model and joined")
      ->group("Models")
      ->capture_default_str();
  app.add_option("--layout", o.mpi.layout,
                 "Under mpirun: roles by rank, e.g. coordinator=1,draft=1,target=2. target=2x4 is two groups "
                 "of four ranks each")
      ->group("Models");
  app.add_flag(
         "--allow-remote", o.mpi.allow_remote,
         "Under mpirun on several hosts whose libzmq has no CURVE: the coordinator listens where the others "
         "can reach it all the same. Nothing is encrypted or authenticated then: trusted networks only. With "
         "CURVE every job makes its own keys and this is not needed")
      ->group("Models");
  app.add_option("--bind-host", o.mpi.bind_host,
                 "Several hosts: the coordinator's address to listen on, an IPv4 address of its host. "
                 "Default: what its host name resolves to, or its first interface; on one host always "
                 "loopback")
      ->group("Models");
  app.add_flag(
         "--preflight", o.mpi.preflight,
         "Check everything that a run with these flags checks before it loads a model, print each rank's "
         "role, host, device, threads, free memory and clock, and end. Under mpirun the ranks compare "
         "their flags and weights, and each exchanges a message with the coordinator")
      ->group("Models");
  app.add_option("--preflight-timeout", o.mpi.preflight_timeout_s,
                 "Seconds in which all ranks must have begun the preflight; those that have not are named")
      ->check(CLI::Range(1, 3600))
      ->group("Models")
      ->default_str(std::to_string(kDefaultPreflightTimeout));
}

void add_pool_options(CLI::App& app, PoolSettings& o) {
  app.add_option(
         "--num-draft-workers", o.num_draft_workers,
         "Draft workers in one process, each with a model of its own; they share the sequences. Under "
         "mpirun it is draft=N in --layout")
      ->group("Draft workers")
      ->capture_default_str();
  app.add_option("--listen", o.listen,
                 "Let draft workers join and leave during the run: tcp://127.0.0.1:PORT, or * for any "
                 "port, or ipc://PATH. The address is printed on standard error; `outrider draft-worker "
                 "--connect` takes it. Other addresses than loopback need keys")
      ->group("Draft workers");
  app.add_option("--wait-for-draft-workers", o.wait_for_draft_workers,
                 "Start when this many draft workers have joined, those of the run itself included "
                 "(default: those)")
      ->group("Draft workers");
  app.add_option("--listen-targets", o.listen_targets,
                 "Target groups are programs of their own, `outrider target-group --connect`, that join "
                 "here, up to --data-parallel-size of them; this process loads no target. A request "
                 "survives the loss of its group, and a group may be started again. Addresses as with "
                 "--listen")
      ->group("Target groups that join");
  app.add_option("--wait-for-target-groups", o.wait_for_target_groups,
                 "Start when this many have joined (default: 1)")
      ->group("Target groups that join");
  app.add_option("--target-timeout", o.target_timeout_s,
                 "Seconds that requests wait for a group to join when the last one was lost; then they end "
                 "with an error. 0: they end at once")
      ->group("Target groups that join")
      ->capture_default_str();
  app.add_option("--allowed-target-keys", o.allowed_target_keys,
                 "With --curve-secret-key: a file of the public keys of groups that may join, one a line. "
                 "A holder of such a key decides what texts say")
      ->group("Target groups that join");
  app.add_option("--curve-secret-key", o.curve_secret_key,
                 "With --listen and --listen-targets: our key file, from `outrider keygen`; workers need its "
                 ".pub as --server-key")
      ->group("Draft workers");
  app.add_option("--allowed-keys", o.allowed_keys,
                 "With --listen: a file of the public keys of workers that may join, one a line (or one "
                 ".pub). It is read again when it changes: a key that is removed cannot connect any more, "
                 "and open connections stay")
      ->group("Draft workers");
}

void add_sampling_options(CLI::App& app, RequestParams& o, std::string& generation_config) {
  app.add_option("--generation-config", generation_config,
                 "auto: where no flag sets how to sample, the target's generation_config.json does, or "
                 "general.sampling.* of a GGUF file. none: the defaults shown here hold")
      ->check(CLI::IsMember({"none", "auto"}))
      ->group("Requests")
      ->capture_default_str();
  app.add_option("-t,--temperature,--temp", o.temperature, "0: greedy")
      ->group("Requests")
      ->capture_default_str();
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
}

// The range of lengths, for errors that have the flag as it was typed. Words and longer numbers fail the
// conversion.
static std::string wrong_draft_length(const std::string& text) {
  const auto number = parse_number<int>(text);
  if (!number || (*number >= 0 && *number <= kMaxSpeculativeTokens)) return {};
  return fmt::format("Value {} not in range 0 to {}", text, kMaxSpeculativeTokens);
}

void add_speculation_options(CLI::App& app, SpeculationSettings& o, std::string& rule) {
  app.add_option("-g,--num-speculative-tokens,--draft-max,--spec-draft-n-max,--speculative-num-draft-tokens",
                 o.num_speculative_tokens,
                 "Tokens of every draft (policy fixed), in place of --gamma-policy; 0: none")
      ->check(wrong_draft_length)
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
  app.add_option(
         "--rule,--rejection-sample-method", rule,
         "Verification: auto (greedy at temperature 0, else invariant), greedy, invariant, naive; p/q "
         "rules for chains: token, block; p/q rules for trees: specinfer, kseq (children drawn "
         "independently), swor, traversal (without replacement)")
      ->group("Speculation")
      ->capture_default_str();
  app.add_option("--q-format", o.q_format,
                 "Draft distribution for p/q rules. Each form is exact, because the drafter draws from "
                 "what it sends. budget:BYTES: rounded until it fits into that many bytes for each "
                 "drafted token; tokens too unlikely to be listed share one weight. dense: every token's "
                 "weight in 16 bits. hidden[:BITS]: the draft model's hidden state in 3 to 7 bits an "
                 "element, from which the target computes every weight with the draft model's output head "
                 "(in memory in int8 at both ends), with at least 4 bits, and more where 1 % of a dense "
                 "row has room; requests with filters, penalties or biases, and drafts on CUDA devices, "
                 "take auto. auto: a budget of 1 % of a dense row, and at least 1024")
      ->check(o.q_format.complaint)
      ->group("Speculation")
      ->capture_default_str();
  add_tree_option(app, o.speculative_tree, "Speculation");
  app.add_option(
         "--pipeline", o.pipeline,
         "What the drafter does while its draft is verified: lockstep (nothing), ahead (goes on as if all "
         "were accepted), fanout (drafts for the likeliest outcomes), auto (as many as pay)")
      ->check(CLI::IsMember({"lockstep", "ahead", "fanout", "auto"}))
      ->group("Speculation")
      ->capture_default_str();
  app.add_option("--fanout-budget", o.fanout_budget, "Outcomes to draft for at most, per sequence")
      ->group("Speculation")
      ->capture_default_str();
  app.add_option("--unload-drafter", o.unload_drafter_s,
                 "Seconds in which hardly any round had a draft, after which a draft worker gives its memory "
                 "back. It comes back after four times as long, and is unloaded for twice as long each time "
                 "that nothing has changed. 0: it stays")
      ->group("Speculation")
      ->capture_default_str();
  app.add_option(
         "--emulate-link", o.emulate_link,
         "For experiments: a slow or faulty network between coordinator and draft workers, e.g. "
         "delay=1ms,rate=1gbit (one way; us, ms, s; kbit, mbit, gbit). loss=, duplicate=, corrupt=, reorder= "
         "with a share of the messages, 0.1 or 10%; partition=5s..35s: nothing arrives in that time after "
         "the first worker came; links=draft, target (delay and rate only) or all; seed=N")
      ->check([](const std::string& text) {
        return text.empty() ? "--emulate-link is empty; write KEY=VALUE, for example delay=1ms,rate=1gbit"
                            : decltype(o.emulate_link)::complaint(text);
      })
      ->group("Speculation");
}

void add_form_options(CLI::App& app, FormFlags& o) {
  app.add_option(
         "--response-format", o.response_format,
         "The form of the text: json_object, or the field of OpenAI's name, {\"type\": \"json_schema\", "
         "\"json_schema\": {\"schema\": ...}}. @FILE: what is in it")
      ->group("Requests");
  app.add_option("--structured-outputs-choice,--guided-choice", o.choices,
                 "The text is this one, or another such; may be repeated")
      ->group("Requests");
  app.add_option("--structured-outputs-json,--guided-json,--json-schema", o.json,
                 "The text is JSON of this schema; or @FILE")
      ->group("Requests");
  app.add_option("--structured-outputs-regex,--guided-regex", o.regex,
                 "The text is a whole match of this expression")
      ->group("Requests");
  app.add_option("--structured-outputs-grammar,--guided-grammar,--grammar", o.grammar,
                 "The text is one of this Lark grammar, in llguidance's dialect; or @FILE")
      ->group("Requests");
}

void add_grammar_library_option(CLI::App& app, std::vector<std::string>& libraries, const char* group) {
  app.add_option(
         "--grammar-library", libraries,
         "llguidance, for JSON schemas, regular expressions, grammars and strict tools: libllguidance.so, or "
         "the "
         "library of the package that pip installs; with commas, libraries that it needs before it. Default: "
         "libllguidance.so where the system finds it, else the package of the Python in PATH")
      ->delimiter(',')
      ->group(group);
}

void add_log_options(CLI::App& app, LogFlags& flags) {
  app.add_option(
         "--log-level", flags.level,
         "The least level of the log on standard error. Joins, leaves and drains are info; losses, "
         "refusals, failovers and degraded service are warnings. Default: OUTRIDER_LOG, else info, or "
         "warning with --quiet")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "critical", "off"}))
      ->group("Reports");
  app.add_option("--log-format", flags.format,
                 "text, or json: a line of JSON for each line of the log, and for messages such as the "
                 "address of a server")
      ->check(CLI::IsMember({"text", "json"}))
      ->group("Reports")
      ->capture_default_str();
}

void add_report_options(CLI::App& app, RunFiles& files, bool& quiet) {
  app.add_option("--report", files.report,
                 "Write every metric of the run here, as JSON; an older report is replaced")
      ->group("Reports");
  app.add_option("--trace", files.trace, "Write a Chrome trace here (open it in Perfetto)")->group("Reports");
  app.add_flag("-q,--quiet", quiet, "No progress and no report on standard error")->group("Reports");
}

void add_generate_options(CLI::App& app, RunOptions& o) {
  RequestParams& r = o.request;
  app.add_option("-p,--prompt,PROMPT", r.prompt,
                 "Text to continue. @FILE: what is in it; -: standard input; @@ begins a text with an @")
      ->transform(CLI::Validator([](std::string& text) { return read_prompt(text); }, ""))
      ->group("Requests");
  app.add_option_function<std::string>(
         "-f,--prompt-file",
         [&r](const std::string& file) {
           if (r.prompt)
             throw CLI::ValidationError("--prompt-file and --prompt exclude each other; drop one");
           if (const std::string wrong = read_prompt_file(file, r.prompt.emplace()); !wrong.empty())
             throw CLI::ValidationError("--prompt-file " + wrong);
         },
         "A file with the text to continue, or - for standard input; one line break at its end is left out")
      ->group("Requests");
  app.add_option("--prompts", o.files.prompts,
                 "A file of requests, one JSON object a line (below), or a published one of Spec-Bench, "
                 "MT-bench, HumanEval, "
                 "GSM8K or Azure's traces as it is; - reads standard input")
      ->group("Requests");
  app.add_option(
         "-o,--output", o.files.output,
         "Write results here as JSON lines. The file appears when all are there; of a run that fails or is "
         "interrupted, FILE.PID.partial keeps those that were finished. - is standard output, which has JSON "
         "lines anyway with --prompts")
      ->group("Requests");
  app.add_flag("--overwrite", o.files.overwrite,
               "Replace files of --output and --record-rounds that exist; without it that is an error")
      ->group("Requests");
  app.add_option(
         "--resume", o.files.resume,
         "Results of an earlier run, its --output or the .partial that is left of it: what is finished "
         "there, of the same prompt, parameters and model, is taken over and not generated again")
      ->group("Requests");
  app.add_flag("--chat", r.chat, "Treat the prompt as a user's message and apply the model's chat template")
      ->group("Requests");
  app.add_option("--system", r.system,
                 "The system message of --chat. Default: what the template writes itself")
      ->group("Requests");
  app.add_option("-n,--max-tokens", r.max_tokens, "Tokens to generate at most")
      ->group("Requests")
      ->capture_default_str();
  add_sampling_options(app, r, o.generation_config);
  app.add_option_function<std::vector<std::string>>(
         "--logit-bias", [&r](const std::vector<std::string>& texts) { r.logit_bias = parse_biases(texts); },
         "ID:V, added to the logit of a token; may be repeated")
      ->group("Requests");
  app.add_option("--stop", r.stop, "End before this text; may be repeated")->group("Requests");
  app.add_flag("--ignore-eos", r.ignore_eos, "Go on after end-of-sequence tokens")->group("Requests");
  app.add_option("-s,--seed", r.seed, "Seed of the text; lines of --prompts mix in their number")
      ->check([](const std::string& text) {  // a minus would wrap around, and too large a number be cut
        return parse_number<uint64_t>(text) ? std::string()
                                            : fmt::format("{} must be 0 to 18446744073709551615", text);
      })
      ->group("Requests")
      ->capture_default_str();
  app.add_option(
         "--logprobs", r.logprobs,
         "Report the log-probability of every token and of the N best ones: those of the model, before "
         "temperature, filters, penalties and biases")
      ->group("Requests");

  add_form_options(app, o.form);
  add_grammar_library_option(app, o.grammar_library, "Requests");

  add_speculation_options(app, o.cluster.speculation, r.rule);
  add_speculative_config_option(app, o.cluster, r.rule);
  app.add_flag("--compare-plain", o.compare_plain,
               "First decode the same requests without a drafter; compare the text and report the speed-up")
      ->group("Speculation");
  app.add_option("--compare-turns", o.compare_turns,
                 "How often --compare-plain runs both, in turns; the speed-up is the median of theirs. 0: as "
                 "often as "
                 "begins within two seconds, nine times at most, and once with --listen")
      ->check(CLI::Range(0, 1000))
      ->group("Speculation")
      ->capture_default_str();

  add_report_options(app, o.files, o.cluster.quiet);
  app.add_option(
         "--record-rounds", o.files.record_rounds,
         "Write every round here, for `outrider simulate replay`: what other draft lengths would have done. "
         "Rounds without a draft leave gaps; the drafter guesses once more after each draft that was fully "
         "accepted. With --logprobs 0 also the target's probability of every token")
      ->group("Reports");
  app.add_option("--rounds", o.files.rounds,
                 "Write every round here as CSV: drafted, accepted, times, rows of the pass; `outrider study "
                 "plot FILE` draws it")
      ->group("Reports");
}

Status check_options(const RunOptions& o) {
  RETURN_IF_ERROR(check_settings(o.cluster));
  if (!o.cluster.speculation.synthetic_acceptance.empty() && o.request.logprobs >= 0)
    return invalid_argument(
        "--synthetic-acceptance: the tokens are not the model's, so --logprobs has no meaning");
  RETURN_IF_ERROR(check_rule_of_trees(o.cluster.speculation.speculative_tree, o.request.rule));
  return check_pool_settings(o.cluster);
}

}  // namespace outrider
