#include "launch/commands/generate.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/hash.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "base/program/interrupt.h"
#include "launch/commands/compare_plain.h"
#include "launch/commands/generate_job.h"
#include "requests/by_category.h"
#include "requests/finished_results.h"
#include "requests/output.h"
#include "requests/report.h"
#include "requests/round_record.h"
#include "requests/round_table.h"
#include "start/coordinator_run.h"
#include "start/describe.h"
#include "start/make_coordinator.h"
#include "start/mpi_cluster.h"
#include "start/tree_option.h"
#include "text/chat_template/chat_template.h"

namespace outrider {

const char* const kGenerateExamples =
    "Examples:\n"
    "  outrider generate TARGET 'Once upon a time' --draft-model DRAFT\n"
    "  outrider generate --model TARGET --drafter suffix --prompts prompts.jsonl --output out.jsonl\n"
    "  mpirun -n 4 outrider generate --layout coordinator=1,draft=1,target=2 --model ... --draft-model ...\n"
    "Exit codes: 0 success, 1 a request failed, 2 bad flag, file or request, 3 a rank or a write failed.";

namespace {

constexpr const char* kRequestFormat =
    R"(A line of --prompts is {"prompt": "..."}, or for the chat template
  {"messages": [{"role": "user", "content": "..."}]}
and with it add_generation_prompt, continue_final_message, which leaves the last message open, and
chat_template_kwargs, an object of the template's variables, such as the date that some templates print.
Besides, instead of the flag of that name: seed, max_tokens, temperature, top_k, top_p, min_p, stop (a text or
a list), ignore_eos, repetition_penalty, presence_penalty, frequency_penalty, logit_bias ({"ID": V}), logprobs,
rule, num_speculative_tokens or gamma_policy. Without a flag: stop_token_ids, min_tokens; response_format or
structured_outputs, the form of the text as a server takes it; id, which comes back with the result; and
category, by which the report sums. All
lines are checked before the first one runs.
Results come in the order of the requests, a line each:
  index, id, text, token_ids, finish_reason (stop, length, cancelled or error), error, request (tells for
  --resume what the text depends on), checksum (of the rest of the line; --resume refuses one that was changed),
  usage {prompt_tokens, completion_tokens}, logprobs [{id, token, logprob, top}], which are the model's own, before
  temperature, filters, penalties and biases
)";

RoundRecord record_of(const GenerateJob& job, const GenerateResult& result, const Trace& trace) {
  RoundRecord record{.drafter = job.cluster.models.drafts_from_text() ? job.cluster.models.drafter : "model",
                     .gamma_policy = job.cluster.speculation.policy(),
                     .synthetic = !job.cluster.speculation.synthetic_acceptance.empty(),
                     .max_num_seqs = job.cluster.models.max_num_seqs,
                     .gamma_max = kMaxSpeculativeTokens,
                     .max_context = static_cast<int32_t>(job.prepared.max_model_len),
                     .dropped = static_cast<int64_t>(trace.dropped()),
                     .costs = result.costs,
                     .requests = {},
                     .rounds = {}};
  std::map<int64_t, size_t> texts;  // by id
  for (size_t i = 0; i < job.requests.size(); ++i) {
    const Request& request = result.asked[i];
    if (result.asked_as[i] == 0) continue;
    record.requests.push_back({.id = result.asked_as[i],
                               .rule = std::string(rule_name(request.sampling.rule)),
                               .prompt_tokens = static_cast<int32_t>(request.prompt.size()),
                               .max_tokens = request.max_tokens,
                               .emitted = static_cast<int32_t>(result.generated[i].ids.size()),
                               .prompt_chance = result.generated[i].prompt_chance()});
    texts[result.asked_as[i]] = i;
  }
  for (const RoundDone& round : trace.rounds()) {
    RecordedRound& recorded = record.rounds.emplace_back(RecordedRound::of(round));
    const auto text = texts.find(recorded.request);
    if (text == texts.end()) continue;
    const size_t begin = static_cast<size_t>(recorded.base) - result.asked[text->second].prompt.size();
    recorded.chances = result.generated[text->second].chances(begin, static_cast<size_t>(recorded.emitted));
  }
  return record;
}

// Options that compare or record whole runs cannot be used with a resumed run.
Status check_resume(const RunFiles& files, bool compares_plain) {
  if (files.resume.empty()) return {};
  if (files.prompts.empty()) return invalid_argument("--resume needs --prompts, whose results it takes over");
  if (compares_plain) return invalid_argument("--resume and --compare-plain exclude each other; drop one");
  if (!files.record_rounds.empty())
    return invalid_argument("--resume and --record-rounds exclude each other; drop one");
  return {};
}

Status check_comparison(const RunOptions& options, const ClusterSettings& cluster, bool is_mpi) {
  if (!options.compare_plain)
    return options.compare_turns > 1 ? invalid_argument("--compare-turns needs --compare-plain") : Status();
  if (is_mpi) return unsupported("--compare-plain works in one process; drop it or mpirun");
  if (cluster.targets_join())
    return unsupported(
        "--compare-plain runs twice, and target groups that join leave with the first run; drop it or "
        "--listen-targets");
  if (options.compare_turns > 1 && !cluster.pool.listen.empty())
    return unsupported("draft workers that join leave with the run; drop --compare-turns or --listen");
  if (!cluster.speculates())
    return invalid_argument(
        "--compare-plain needs a drafter: --draft-model DIR, --drafter suffix or --listen");
  return {};
}

void tell_what_is_finished(const std::string& file, const std::vector<PromptRequest>& requests,
                           const FinishedResults& finished) {
  const auto found = std::count_if(requests.begin(), requests.end(), [&](const PromptRequest& request) {
    return finished.has(request.fingerprint);
  });
  tell_error(fmt::format("{} of {} requests are finished in {}", found, requests.size(), file));
}

// The new output contains the resumed results, so the partial file of an earlier run of the same --output is
// removed. A file with results of other requests is kept.
void remove_resumed(const RunFiles& files, const std::vector<PromptRequest>& requests,
                    const FinishedResults& finished) {
  const std::string& left = files.resume;
  if (files.output.empty() || !left.starts_with(files.output + ".") || !left.ends_with(".partial")) return;
  const std::set<uint64_t> asked = [&] {
    std::set<uint64_t> all;
    for (const PromptRequest& request : requests) all.insert(request.fingerprint);
    return all;
  }();
  const auto taken = std::count_if(asked.begin(), asked.end(), [&](uint64_t id) { return finished.has(id); });
  std::error_code ignored;
  if (static_cast<size_t>(taken) == finished.size()) std::filesystem::remove(left, ignored);
}

// Texts that the context ended before their requested length, with or without --ignore-eos: the model did not
// end them.
std::vector<size_t> cut_by_context(const GenerateResult& result) {
  std::vector<size_t> cut;
  for (size_t i = 0; i < result.generated.size(); ++i) {
    const Generated& text = result.generated[i];
    if (result.asked_as[i] > 0 && text.reason == FinishReason::kLength &&
        static_cast<int64_t>(text.ids.size()) < result.asked[i].max_tokens)
      cut.push_back(i);
  }
  return cut;
}

void tell_cut(const std::vector<size_t>& cut, size_t texts, int64_t context) {
  if (cut.empty()) return;
  const std::string which = texts == 1 ? "the text" : fmt::format("{} of {} texts", cut.size(), texts);
  tell_error(
      fmt::format("{} ended where the context of {} tokens does, before --max-tokens; lower that, shorten "
                  "the prompt, or raise --max-model-len where the model allows more",
                  which, context));
}

Result<std::vector<PromptRequest>> read_asked(const RunOptions& options, const ClusterSettings& cluster,
                                              const Preparation& prepared, std::vector<std::string>& notes) {
  RequestParams params = options.request;
  ASSIGN_OR_RETURN(params.grammar, form_of(options.form));
  ASSIGN_OR_RETURN(const auto grammars, make_grammars(prepared, options.grammar_library));
  const auto chat = load_chat_template(cluster.models.model);
  RequestModel model = request_model(cluster.models, cluster.speculation, prepared, chat);
  model.reads_files = true;
  model.grammars = grammars.get();
  return read_requests(params, options.files.prompts, model, &notes);
}

// The coordinator's side of a run, from prompts to report. `mpi` is null in one process.
Result<int> coordinate(const RunOptions& options, const ClusterSettings& cluster, const Preparation& prepared,
                       MpiCluster* mpi) {
  if (!options.request.prompt && options.files.prompts.empty())
    return invalid_argument("nothing to do: give a text, --prompt-file FILE or --prompts FILE.jsonl");
  if (options.request.prompt && !options.files.prompts.empty())
    return invalid_argument("--prompt and --prompts exclude each other; drop one");
  if (!options.request.system.empty() && !options.request.chat)
    return invalid_argument("--system needs --chat, whose template writes it");
  RETURN_IF_ERROR(check_comparison(options, cluster, mpi != nullptr));
  RETURN_IF_ERROR(parse_gamma_policy(cluster.speculation.policy()).status());
  RETURN_IF_ERROR(check_rule_of_trees(cluster.speculation.speculative_tree, options.request.rule));
  RETURN_IF_ERROR(check_resume(options.files, options.compare_plain));
  std::vector<std::string> notes;
  auto asked = read_asked(options, cluster, prepared, notes);
  if (!asked.ok())  // a prompt over the context is bad input, not a missing resource
    return Status(StatusCode::kInvalidArgument, asked.status().message());
  std::vector<PromptRequest> requests = std::move(asked).value();
  if (!cluster.quiet)
    for (const std::string& note : notes) tell_error(note);
  // A text that is only shown has no line that a later run could resume from.
  const bool is_only_shown =
      options.request.prompt && options.files.output.empty() && options.files.resume.empty();
  RequestFingerprints fingerprint(0);
  if (!is_only_shown) {
    ASSIGN_OR_RETURN(fingerprint, request_fingerprints(cluster.models, cluster.speculation));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    uint64_t& own = requests[i].fingerprint = fingerprint(requests[i]);
    if (!requests[i].follows) continue;  // the fingerprint of a later turn depends on the answers before it
    own = hash_combine(own, requests[i - 1].fingerprint);
    for (const TokenId id : requests[i].turn) own = hash_combine(own, static_cast<uint64_t>(id.value()));
  }
  FinishedResults finished;
  if (!options.files.resume.empty()) {
    ASSIGN_OR_RETURN(finished, FinishedResults::read(options.files.resume));
    if (!cluster.quiet) tell_what_is_finished(options.files.resume, requests, finished);
  }
  ASSIGN_OR_RETURN(Output output,
                   Output::open({.files = options.files,
                                 .has_one_prompt = options.request.prompt.has_value(),
                                 .synthetic_acceptance = cluster.speculation.synthetic_acceptance,
                                 .quiet = cluster.quiet},
                                *prepared.tokenizer));

  const int own_workers = mpi ? mpi->draft_workers() : cluster.pool.num_draft_workers;
  const GenerateJob job{cluster,
                        prepared,
                        requests,
                        finished,
                        cluster.models.has_draft_workers() ? own_workers : 0,
                        !cluster.pool.listen.empty()};
  if (cluster.mpi.preflight) return preflight(cluster, prepared, mpi);
  std::optional<PlainRuns> plain;
  if (options.compare_plain) RETURN_IF_ERROR(plain.emplace(job).first());
  Trace trace;
  const RunFiles& files = options.files;
  const bool wanted = !files.trace.empty() || !files.record_rounds.empty() || !files.rounds.empty();
  Trace* const traced = wanted ? &trace : nullptr;
  if (mpi) RETURN_IF_ERROR(mpi->start());
  GenerateResult result =
      mpi ? run_generate_job(job, mpi->take_transport(), &output, traced, [] { return Status(); })
          : run_in_one_process(job, &output, traced);
  if (const Status whole = result.status.ok() ? output.close() : result.status; !whole.ok()) {
    output.give_up(requests.size());
    return whole;
  }
  remove_resumed(options.files, requests, finished);

  const std::vector<size_t> cut = cut_by_context(result);
  tell_cut(cut, requests.size(), prepared.max_model_len);
  std::optional<PlainComparison> comparison;
  if (plain) comparison = plain->compare(result, {job.listens ? 1 : options.compare_turns});
  const RunDescription run = describe_run(cluster, prepared);
  const auto categories =
      by_category(result.requests, plain ? plain->requests() : std::vector<RequestResult>());
  if (!cluster.quiet) {
    std::fputs(screen_report(run, result.totals, result.metrics, comparison).c_str(), stderr);
    if (categories.size() > 1) std::fputs(category_table(categories).c_str(), stderr);
  }
  if (!options.files.report.empty()) {
    nlohmann::json report = json_report(run, requests, options.request.seed, result.totals,
                                        std::move(result.metrics), comparison);
    report["by_category"] = categories_json(categories);
    report["by_request"] = requests_json(result.requests);
    report["cut_by_context"] = cut;  // places of requests, from 0
    RETURN_IF_ERROR(write_file(options.files.report, json_text(report, 2) + "\n").in("--report"));
  }
  if (!options.files.trace.empty()) RETURN_IF_ERROR(write_trace(options.files.trace, trace).in("--trace"));
  if (!options.files.record_rounds.empty())
    RETURN_IF_ERROR(
        write_file(options.files.record_rounds, format_round_record(record_of(job, result, trace)))
            .in("--record-rounds"));
  if (!files.rounds.empty())
    RETURN_IF_ERROR(write_file(files.rounds, round_table(trace.rounds())).in("--rounds"));

  bool failed = false;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Generated& g = result.generated[i];
    if (g.reason != FinishReason::kError) continue;
    failed = true;
    tell_error(fmt::format("request {}: {}", i, g.error.message()));
  }
  return failed ? kExitRequestFailed : kExitOk;
}

}  // namespace

void add_generate_flags(CLI::App& app, RunOptions& options) {
  add_model_options(app, options.cluster);
  add_pool_options(app, options.cluster.pool);
  add_generate_options(app, options);
  app.footer(std::string(kRequestFormat) + kGenerateExamples);
}

int run_generate(RunOptions options) {
  set_thread_role("coordinator");
  SpeculationSettings& speculation = options.cluster.speculation;
  if (speculation.gamma_policy == "list") {
    std::fputs(list_gamma_policies().c_str(), stdout);
    return kExitOk;
  }
  speculation.synthetic_seed = options.request.seed;
  speculation.record_guesses = !options.files.record_rounds.empty();
  if (speculation.record_guesses && options.request.logprobs >= 0) options.request.prompt_logprobs = 0;
  const int code = run_coordinator(
      options.cluster, [&options](const ClusterSettings& cluster, const Preparation& prepared,
                                  MpiCluster* mpi) { return coordinate(options, cluster, prepared, mpi); });
  if (!MpiCluster::launched()) end_as_noted();
  return code;
}

}  // namespace outrider
