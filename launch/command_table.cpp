#include "lab/bench/bench.h"
#include "lab/perplexity/perplexity.h"
#include "lab/serve_bench/serve_bench.h"
#include "lab/simulate/simulate.h"
#include "lab/study/study.h"
#include "lab/synth/synth.h"
#include "launch/command.h"
#include "launch/commands/completion.h"
#include "launch/commands/doctor.h"
#include "launch/commands/draft_worker_command.h"
#include "launch/commands/generate.h"
#include "launch/commands/keygen.h"
#include "launch/commands/quantize.h"
#include "launch/commands/target_group_command.h"
#include "serve/batch.h"
#include "serve/chat.h"
#include "serve/serve.h"

namespace outrider {
namespace {

template <typename Options>
SamplingDefaults defaults_of_requests(Options& o) {
  return {o.generation_config, o.cluster.models.model, o.request};
}
SamplingDefaults defaults_of_server(ServeOptions& o) {
  return {o.generation_config, o.cluster.models.model, o.defaults};
}

}  // namespace

std::vector<Command> all_commands() {
  return {
      command<RunOptions>({.name = "generate",
                           .help = "Continue a prompt, or every prompt of a JSON-lines file",
                           .add_flags = add_generate_flags,
                           .run = run_generate,
                           .is_quiet = [](const RunOptions& o) { return o.cluster.quiet; },
                           .sampling_defaults = defaults_of_requests<RunOptions>,
                           .has_config_layer = true,
                           .takes_bare_text = true}),
      command<ServeOptions>({.name = "serve",
                             .help = "Answer requests over HTTP, as OpenAI's API does",
                             .add_flags = add_serve_options,
                             .run = run_serve,
                             .is_quiet = [](const ServeOptions& o) { return o.cluster.quiet; },
                             .sampling_defaults = defaults_of_server,
                             .has_config_layer = true}),
      command<BatchOptions>({.name = "batch",
                             .help = "Answer the requests of an OpenAI batch file",
                             .add_flags = add_batch_options,
                             .run = run_batch,
                             .is_quiet = [](const BatchOptions& o) { return o.serve.cluster.quiet; },
                             .sampling_defaults = [](BatchOptions& o) { return defaults_of_server(o.serve); },
                             .has_config_layer = true}),
      command<ChatSettings>({.name = "chat",
                             .help = "Talk with a model in the terminal",
                             .add_flags = add_chat_options,
                             .run = run_chat,
                             .is_quiet = [](const ChatSettings& s) { return s.cluster.quiet; },
                             .sampling_defaults = defaults_of_requests<ChatSettings>,
                             .has_config_layer = true,
                             .takes_bare_text = true}),
      command<DoctorOptions>({.name = "doctor",
                              .help = "What this machine has, and what a layout would place where",
                              .add_flags = add_doctor_options,
                              .run = run_doctor}),
      command<DraftWorkerSettings>({.name = "draft-worker",
                                    .help = "Join a running job and draft for it",
                                    .add_flags = add_draft_worker_options,
                                    .run = run_draft_worker_command,
                                    .is_quiet = [](const DraftWorkerSettings& s) { return s.run.quiet; },
                                    .has_config_layer = true}),
      command<TargetGroupSettings>({.name = "target-group",
                                    .help = "Join a running job as one of its target groups",
                                    .add_flags = add_target_group_options,
                                    .run = run_target_group_command,
                                    .is_quiet = [](const TargetGroupSettings& s) { return s.run.quiet; },
                                    .has_config_layer = true}),
      command<BenchOptions>({.name = "bench",
                             .help = "What speculation costs and gains on this machine",
                             .add_flags = add_bench_options,
                             .run = run_bench,
                             .has_config_layer = true,
                             .is_one_process = true}),
      command<ServeBenchOptions>({.name = "serve-bench",
                                  .help = "Servers with OpenAI's API under the load of a trace, in turns",
                                  .add_flags = add_serve_bench_options,
                                  .run = run_serve_bench,
                                  .is_one_process = true}),
      command<SynthOptions>({.name = "synth",
                             .help = "Write a target and a draft of any shape, with random weights",
                             .add_flags = add_synth_options,
                             .run = run_synth,
                             .has_config_layer = true,
                             .is_one_process = true}),
      command<SimulateCommand>(
          {.name = "simulate",
           .help = "Policies and layouts on a simulated cluster; needs no model",
           .add_flags = [](CLI::App& app, SimulateCommand& simulate) { simulate.add_options(app); },
           .run = &SimulateCommand::run,
           .is_one_process = true}),
      command<StudyOptions>({.name = "study",
                             .help = "Sweep options of generate as a file says, and report",
                             .add_flags = add_study_options,
                             .run = run_study,
                             .is_one_process = true}),
      command<QuantizeOptions>(
          {.name = "quantize",
           .help = "Write a model with fewer bits a weight, as a directory or a GGUF file",
           .add_flags = add_quantize_options,
           .run = run_quantize,
           .is_one_process = true}),
      command<PerplexityOptions>({.name = "perplexity",
                                  .help = "How well a model predicts a text, and what its formats change",
                                  .add_flags = add_perplexity_options,
                                  .run = run_perplexity,
                                  .has_config_layer = true,
                                  .is_one_process = true}),
      command<KeygenOptions>({.name = "keygen",
                              .help = "Make keys for connections that leave the machine",
                              .add_flags = add_keygen_options,
                              .run = run_keygen,
                              .is_one_process = true}),
      command<CompletionOptions>({.name = "completion",
                                  .help = "Print a script that completes commands in a shell",
                                  .add_flags = add_completion_options,
                                  .run = run_completion,
                                  .ignores_environment = true})};
}

}  // namespace outrider
