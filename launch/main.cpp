// The `outrider` program: parses the command line and hands over.
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "base/log.h"
#include "base/log_level.h"
#include "base/printable.h"
#include "base/program/bus_error.h"
#include "base/program/descriptors.h"
#include "base/program/exit_codes.h"
#include "base/program/temporary_file.h"
#include "base/threads.h"
#include "lab/bench/bench.h"
#include "lab/perplexity/perplexity.h"
#include "lab/serve_bench/serve_bench.h"
#include "lab/simulate/simulate.h"
#include "lab/study/study.h"
#include "lab/synth/synth.h"
#include "launch/commands/completion.h"
#include "launch/commands/doctor.h"
#include "launch/commands/draft_worker_command.h"
#include "launch/commands/generate.h"
#include "launch/commands/keygen.h"
#include "launch/commands/quantize.h"
#include "launch/commands/target_group_command.h"
#include "requests/provenance.h"
#include "serve/batch.h"
#include "serve/chat.h"
#include "serve/serve.h"
#include "start/flags/command_line.h"
#include "start/flags/generation_config.h"
#include "start/flags/help_format.h"
#include "start/flags/options.h"
#include "start/mpi_cluster.h"

namespace {

constexpr const char* kGenerateExamples =
    "Examples:\n"
    "  outrider generate TARGET 'Once upon a time' --draft-model DRAFT\n"
    "  outrider generate --model TARGET --drafter suffix --prompts prompts.jsonl --output out.jsonl\n"
    "  mpirun -n 4 outrider generate --layout coordinator=1,draft=1,target=2 --model ... --draft-model ...\n"
    "Exit codes: 0 success, 1 a request failed, 2 bad flag, file or request, 3 a rank or a write failed.";

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

constexpr const char* kServeExamples =
    R"(Examples:
  outrider serve TARGET --draft-model DRAFT
  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json'
       -d '{"prompt": "Once upon a time", "max_tokens": 64, "temperature": 0}'
  curl -N http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json'
       -d '{"messages": [{"role": "user", "content": "Tell me a story"}], "stream": true}'
  curl http://127.0.0.1:8000/health    200 when requests can be served, 503 while loading, draining or failed
  curl http://127.0.0.1:8000/ready     the same, and 503 while requests wait for a target group
  curl http://127.0.0.1:8000/metrics   counters for Prometheus
  outrider serve TARGET --host 0.0.0.0 --api-key-file key.txt
      Clients send `Authorization: Bearer KEY`.
  mpirun -n 4 outrider serve --layout coordinator=1,draft=1,target=2 --model ... --draft-model ...
      SIGTERM to the process of rank 0 drains; its number is written at the start.
Options under Requests are the defaults of requests.
Exit codes: 0 after SIGTERM or SIGINT, 2 bad flag or file, 3 a port is taken, memory is short or a rank failed.)";

// A closed standard stream would give its number to the next file that is opened, and output would go there.
// Standard output is opened read-only, so that writing to it stays an error, which is reported.
void occupy_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) == -1 && open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY) != fd) std::abort();
}

// Prints an error that all ranks share once.
int refuse(const std::string& text) {
  if (outrider::MpiCluster::launched()) return outrider::MpiCluster::leave("", text, outrider::kExitUsage);
  std::fputs(text.c_str(), stderr);
  return outrider::kExitUsage;
}

int run(int argc, char** argv) {
  using namespace outrider;
  occupy_standard_streams();
  init_logging();
  if (const std::string wrong = wrong_log_level(); !wrong.empty())
    return refuse(fmt::format("outrider: {}\n", wrong));
  remove_temporary_file_on_signals();
  raise_descriptor_limit();
  explain_bus_errors();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves is a write error, told once
  CLI::App app("Distributed speculative decoding: the target model's own text, sooner.", "outrider");
  HelpLength help_length;
  std::vector<std::string> words = without_help_forms(argc, argv, help_length);
  name_hub_flags(words);
  app.formatter(help_formatter(help_width(), help_length));
  app.set_version_flag("--version", version_text, "Version, commit and what is built in");
  app.require_subcommand(1);
  LogFlags log_flags;
  RunOptions options;
  CLI::App* generate =
      app.add_subcommand("generate", "Continue a prompt, or every prompt of a JSON-lines file");
  add_model_options(*generate, options.cluster);
  add_pool_options(*generate, options.cluster.pool);
  add_generate_options(*generate, options);
  generate->footer(std::string(kRequestFormat) + kGenerateExamples);
  std::string config_file;
  add_log_options(*generate, log_flags);
  add_config_layer(*generate, config_file);

  ServeOptions serve_options;
  CLI::App* serve = app.add_subcommand("serve", "Answer requests over HTTP, as OpenAI's API does");
  add_serve_options(*serve, serve_options);
  serve->footer(kServeExamples);
  std::string serve_config_file;
  add_log_options(*serve, log_flags);
  add_config_layer(*serve, serve_config_file);

  BatchOptions batch_options;
  CLI::App* batch = app.add_subcommand("batch", "Answer the requests of an OpenAI batch file");
  add_batch_options(*batch, batch_options);
  batch->footer(
      "Example:\n  outrider batch --model TARGET --draft-model DRAFT --input in.jsonl --output out.jsonl");
  std::string batch_config_file;
  add_log_options(*batch, log_flags);
  add_config_layer(*batch, batch_config_file);

  ChatSettings chat_settings;
  CLI::App* chat = app.add_subcommand("chat", "Talk with a model in the terminal");
  add_chat_options(*chat, chat_settings);
  chat->footer(
      "Examples:\n"
      "  outrider chat MODEL.gguf --draft-model DRAFT.gguf\n"
      "  outrider chat MODEL 'What is a prime number?' --system 'Answer in one sentence.' --temperature 0\n"
      "  echo 'What is a prime number?' | outrider chat MODEL --quiet\n"
      "Within it /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.\n"
      "Exit codes: 0 the user left, 1 a message from a pipe was not answered, 2 bad flag or file, 3 a rank "
      "failed.");
  std::string chat_config_file;
  add_log_options(*chat, log_flags);
  add_config_layer(*chat, chat_config_file);

  DoctorOptions doctor_options;
  CLI::App* doctor =
      app.add_subcommand("doctor", "What this machine has, and what a layout would place where");
  doctor->add_option("--ranks", doctor_options.ranks, "Number of ranks to lay out (as mpirun -n)");
  doctor->add_option("--layout", doctor_options.layout,
                     "Roles by rank, e.g. coordinator=1,draft=1,target=2; target=2x4 is two groups of four");
  finds_model(
      doctor->add_option("-m,--model", doctor_options.model,
                         "Family, formats and memory of this model, by part and rank, without loading it"));
  doctor->footer(
      "Examples:\n"
      "  outrider doctor\n"
      "  outrider doctor --ranks 4 --layout coordinator=1,draft=1,target=2 --model TARGET");

  DraftWorkerSettings draft_worker_settings;
  CLI::App* draft_worker = app.add_subcommand("draft-worker", "Join a running job and draft for it");
  add_draft_worker_options(*draft_worker, draft_worker_settings);
  std::string draft_worker_config_file;
  add_log_options(*draft_worker, log_flags);
  add_config_layer(*draft_worker, draft_worker_config_file);

  TargetGroupSettings target_group_settings;
  CLI::App* target_group =
      app.add_subcommand("target-group", "Join a running job as one of its target groups");
  add_target_group_options(*target_group, target_group_settings);
  std::string target_group_config_file;
  add_log_options(*target_group, log_flags);
  add_config_layer(*target_group, target_group_config_file);

  BenchOptions bench_options;
  CLI::App* bench = app.add_subcommand("bench", "What speculation costs and gains on this machine");
  add_bench_options(*bench, bench_options);
  std::string bench_config_file;
  add_config_layer(*bench, bench_config_file);

  ServeBenchOptions serve_bench_options;
  CLI::App* serve_bench =
      app.add_subcommand("serve-bench", "Servers with OpenAI's API under the load of a trace, in turns");
  add_serve_bench_options(*serve_bench, serve_bench_options);
  serve_bench->footer(
      "Examples:\n"
      "  outrider serve-bench --rates 1,2,4 --prompt-tokens 128 --output-tokens 64 --html load.html\n"
      "  outrider serve-bench --trace AzureLLMInferenceTrace_conv.csv --length-scale 0.2 --max-prompt-tokens "
      "300\n"
      "      --variant 'plain={\"num_speculative_tokens\": 0}' --variant 'drafts={}'\n"
      "  outrider serve-bench --server ours=http://127.0.0.1:8000 --server other=http://127.0.0.1:8001");

  SynthOptions synth_options;
  CLI::App* synth =
      app.add_subcommand("synth", "Write a target and a draft of any shape, with random weights");
  add_synth_options(*synth, synth_options);
  std::string synth_config_file;
  add_config_layer(*synth, synth_config_file);

  CLI::App* simulate =
      app.add_subcommand("simulate", "Policies and layouts on a simulated cluster; needs no model");
  SimulateCommand simulate_command(*simulate);
  StudyOptions study_options;
  CLI::App* study = app.add_subcommand("study", "Sweep options of generate as a file says, and report");
  add_study_options(*study, study_options);
  QuantizeOptions quantize_options;
  CLI::App* quantize =
      app.add_subcommand("quantize", "Write a model directory with int8, int4 or fp8 weights");
  add_quantize_options(*quantize, quantize_options);
  PerplexityOptions perplexity_options;
  CLI::App* perplexity =
      app.add_subcommand("perplexity", "How well a model predicts a text, and what its formats change");
  add_perplexity_options(*perplexity, perplexity_options);
  std::string perplexity_config_file;
  add_config_layer(*perplexity, perplexity_config_file);
  std::string key_file;
  CLI::App* keygen = app.add_subcommand("keygen", "Make keys for connections that leave the machine");
  keygen->add_option("-o,--output", key_file, "File to create, mode 0600; the public key goes to FILE.pub")
      ->required();
  keygen->footer(
      "Examples, both ends of a connection:\n"
      "  outrider keygen --output job.key\n"
      "  outrider keygen --output worker.key\n"
      "  outrider generate --listen 'tcp://10.0.0.1:7000' --curve-secret-key job.key --allowed-keys "
      "worker.key.pub ...\n"
      "  outrider draft-worker --connect tcp://10.0.0.1:7000 --curve-secret-key worker.key --server-key "
      "job.key.pub ...");
  std::string shell;
  CLI::App* completion =
      app.add_subcommand("completion", "Print a script that completes commands in a shell");
  completion->add_option("shell", shell, "Which")->check(CLI::IsMember({"bash", "zsh", "fish"}))->required();
  completion->footer(
      "Examples:\n"
      "  source <(outrider completion bash)        # in ~/.bashrc or ~/.zshrc, there with zsh\n"
      "  outrider completion fish | source         # in config.fish");
  app.footer(kGenerateExamples);  // last: commands inherit the footer that is there when they are added

  if (argc > 2 && argv[1] == std::string_view("help")) {
    const auto commands = app.get_subcommands({});
    const bool is_known = std::any_of(commands.begin(), commands.end(), [&](const CLI::App* command) {
      return command->get_name() == words[1];
    });
    if (!is_known) words.pop_back();  // --help, which would hide that there is no such command
  }
  std::vector<const char*> word_pointers;
  int word_count = 0;
  const auto parse = [&] {
    word_pointers.clear();
    for (const std::string& word : words) word_pointers.push_back(word.c_str());
    word_count = static_cast<int>(words.size());
    app.parse(word_count, word_pointers.data());
  };
  try {
    parse();
    for (const CLI::App* command : {generate, chat})
      if (*command && add_model_of_settings(*command, words)) parse();
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, refusal;
    const int code = app.exit(error, out, refusal) == 0 ? kExitOk : kExitUsage;
    if (code != kExitOk) refusal.str(explain_parse_error(app, error, word_count, word_pointers.data()));
    if (MpiCluster::launched()) return MpiCluster::leave(out.str(), refusal.str(), code);
    std::fputs(out.str().c_str(), stdout);
    std::fputs(refusal.str().c_str(), stderr);
    return code;
  }
  if (const Status outputs = check_outputs(app); !outputs.ok())
    return refuse(fmt::format("outrider: {}\n", outputs.message()));
  if (*completion) {
    std::fputs(completion_script(app, shell).c_str(), stdout);
    return kExitOk;
  }
  const std::pair<const CLI::App*, const bool*> quiet_of[] = {
      {generate, &options.cluster.quiet},
      {serve, &serve_options.cluster.quiet},
      {batch, &batch_options.serve.cluster.quiet},
      {chat, &chat_settings.cluster.quiet},
      {draft_worker, &draft_worker_settings.run.quiet},
      {target_group, &target_group_settings.run.quiet}};
  for (const auto& [command, quiet] : quiet_of)
    if (*command) apply_log_flags(log_flags, *quiet);
  if (*doctor && MpiCluster::launched()) doctor_options.hosts = MpiCluster::hosts();
  if (*doctor && !MpiCluster::is_first()) return kExitOk;  // the first rank prints the findings of all
  if (MpiCluster::is_first()) std::fputs(explain_unread_variables(app, environ).c_str(), stderr);
  if (MpiCluster::launched())
    for (const CLI::App* alone : {bench, serve_bench, synth, simulate, study, quantize, perplexity, keygen})
      if (*alone)
        return refuse(
            fmt::format("outrider: {} is one process; start it without mpirun\n", alone->get_name()));
  if (*generate || *serve || *batch || *chat) {
    const Status taken =
        *chat ? take_generation_config(*chat, chat_settings.generation_config,
                                       chat_settings.cluster.models.model, chat_settings.request)
        : *batch
            ? take_generation_config(*batch, batch_options.serve.generation_config,
                                     batch_options.serve.cluster.models.model, batch_options.serve.defaults)
        : *serve ? take_generation_config(*serve, serve_options.generation_config,
                                          serve_options.cluster.models.model, serve_options.defaults)
                 : take_generation_config(*generate, options.generation_config, options.cluster.models.model,
                                          options.request);
    if (!taken.ok()) return refuse(fmt::format("outrider: {}\n", taken.message()));
  }
  try {
    if (*bench) return run_bench(bench_options);
    if (*serve_bench) return run_serve_bench(serve_bench_options);
    if (*draft_worker) return run_draft_worker_command(std::move(draft_worker_settings));
    if (*target_group) return run_target_group_command(std::move(target_group_settings));
    if (*keygen) return run_keygen(key_file);
    if (*synth) return run_synth(synth_options);
    if (*simulate) return simulate_command.run();
    if (*study) return run_study(study_options);
    if (*quantize) return run_quantize(quantize_options);
    if (*perplexity) return run_perplexity(perplexity_options);
    if (*serve) return run_serve(serve_options);
    if (*batch) return run_batch(batch_options);
    if (*chat) return run_chat(chat_settings);
    return *doctor ? run_doctor(doctor_options) : run_generate(std::move(options));
  } catch (const std::exception& error) {
    tell_error(what_failed(error));
    return kExitRuntime;
  }
}

}  // namespace

// The final flush of standard output may fail, for instance on a full disk.
int main(int argc, char** argv) {
  const int code = run(argc, argv);
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (code != outrider::kExitOk) return code;  // told already
  outrider::tell_error(
      fmt::format("standard output: cannot be written: {}", std::strerror(errno != 0 ? errno : EIO)));
  return outrider::kExitRuntime;
}
