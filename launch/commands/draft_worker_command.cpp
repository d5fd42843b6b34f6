#include "launch/commands/draft_worker_command.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "base/program/exit_codes.h"
#include "base/program/interrupt.h"
#include "base/threads.h"
#include "comm/cores.h"
#include "launch/commands/joined_worker.h"
#include "launch/commands/shared_worker.h"
#include "start/draft_ranks.h"
#include "start/flags/options.h"
#include "start/load_models.h"
#include "start/mpi_cluster.h"
#include "start/rank_setup.h"
#include "start/roles.h"

namespace outrider {
namespace {

// False if the parent has died already: it would send no signal.
bool follow_parent(pid_t parent) { return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent; }

// The first rank is the worker; the other ranks hold their part of its model.
Status serve_alone(const DraftWorkerSettings& settings, const Preparation& prepared, const ZmqOptions& zmq,
                   RoleThreads threads, Collectives& group) {
  DraftRanks ranks(settings.run, prepared, threads, group);
  const LoadWorkerModels load = [&]() -> Result<WorkerModels> {
    WorkerModels models;
    if (settings.run.models.head()) {
      ASSIGN_OR_RETURN(auto compute, head_compute(settings.run, threads, nullptr));
      ASSIGN_OR_RETURN(
          models.hidden_state_head,
          load_head(settings.run, prepared, settings.run.models.sequences(), std::move(compute)));
    }
    if (settings.run.models.uses_draft_model()) {
      ASSIGN_OR_RETURN(models.draft, ranks.load());
      ASSIGN_OR_RETURN(models.head, load_draft_head(settings.run, {0, prepared.draft->vocab_size}, threads));
    }
    return models;
  };
  if (settings.share) return serve_shared(settings, prepared, zmq, load);
  JoinedWorker worker(settings, prepared, zmq, load);
  RETURN_IF_ERROR(worker.load());
  note_first_signal();
  return worker.run();
}

Status serve_rank(const DraftWorkerSettings& settings, const Preparation& prepared, const ZmqOptions& zmq,
                  RoleThreads threads, Collectives& group) {
  if (group.size() == 1) return serve_alone(settings, prepared, zmq, threads, group);
  if (group.rank() > 0) return run_draft_follower(settings.run, prepared, threads, group);
  Status status;
  try {
    status = serve_alone(settings, prepared, zmq, threads, group);
  } catch (const std::exception& error) {
    status = unavailable(what_failed(error));
  }
  if (!status.ok()) group.abort();  // so that the other ranks do not wait for a failed one
  return status;
}

// Inputs of all ranks of this process.
struct Prepared {
  ZmqOptions zmq;
  Preparation prepared;
};

Result<Prepared> prepare_job(const DraftWorkerSettings& settings, bool warns) {
  ASSIGN_OR_RETURN(ZmqOptions zmq, joining_options(settings));
  ASSIGN_OR_RETURN(Preparation prepared, prepare_drafter(settings.run));
  if (warns && !settings.run.quiet) tell_warnings(prepared);
  return Prepared{std::move(zmq), std::move(prepared)};
}

// Ranks are threads; the first error is reported as the worker's.
Status serve_here(const DraftWorkerSettings& settings) {
  ASSIGN_OR_RETURN(const Prepared job, prepare_job(settings, true));
  const int ranks = settings.run.models.draft_tensor_parallel_size;
  RoleThreads threads = worker_threads(settings.run.models.threads, settings.cores, usable_cores());
  if (ranks == 1) return serve_rank(settings, job.prepared, job.zmq, threads, *make_single_collectives());
  threads.count = std::max(1, threads.count / ranks);
  const auto group = make_thread_collectives(ranks);
  std::mutex mutex;
  Status first;
  run_on_threads(ranks, [&](int r) {
    set_thread_role(fmt::format("draft/{}", r));
    const Status status =
        serve_rank(settings, job.prepared, job.zmq, threads, *group[static_cast<size_t>(r)]);
    const std::lock_guard lock(mutex);
    if (first.ok()) first = status;
  });
  return first;
}

int ended(const Status& status) { return told_exit_code(status.in("draft worker")); }

// Under mpirun all ranks form one worker.
int serve_under_mpirun(const DraftWorkerSettings& settings) {
  return MpiCluster::run_group([&](Collectives& group, int, int cores) {
    set_thread_role(fmt::format("draft/{}", group.rank()));
    DraftWorkerSettings own = settings;
    int& ranks = own.run.models.draft_tensor_parallel_size;
    if (ranks > 1 && ranks != group.size())
      return ended(invalid_argument(fmt::format(
          "--draft-tensor-parallel-size {} but there are {} ranks; drop the flag", ranks, group.size())));
    ranks = group.size();
    const auto job = prepare_job(own, group.rank() == 0);
    if (!job.ok()) return ended(job.status());
    if (group.size() > 1 && own.run.models.uses_draft_model()) {
      const auto setup =
          draft_setup(own.run, job->prepared, "a draft worker", fmt::format("rank {}", group.rank()));
      if (!setup.ok()) return ended(setup.status());
      if (const Status alike = compare_setups(group, *setup, std::max(1, cores)); !alike.ok())
        return ended(alike);
    }
    if (group.rank() > 0) note_first_signal();  // the first rank leaves, and the others with it
    return ended(
        serve_rank(own, job->prepared, job->zmq, role_threads(own.run.models.threads, cores), group));
  });
}

}  // namespace

void add_draft_worker_options(CLI::App& app, DraftWorkerSettings& s) {
  app.footer(
      "Examples, beside `outrider generate --listen ...`, which prints its address:\n"
      "  outrider draft-worker --connect tcp://127.0.0.1:41017 --draft-model DRAFT\n"
      "  mpirun -n 2 outrider draft-worker --connect tcp://127.0.0.1:41017 --draft-model DRAFT\n"
      "  outrider draft-worker --connect tcp://127.0.0.1:41017 --drafter suffix\n"
      "  outrider draft-worker --share --connect tcp://10.0.0.1:7000 --connect tcp://10.0.0.2:7000 "
      "--draft-model DRAFT ...\n"
      "  outrider draft-worker --connect tcp://127.0.0.1:41017 --drafter eagle3 --draft-model HEAD --model "
      "TARGET\n"
      "Exit codes: 0 asked to leave or the job ended, 2 refused, cannot work or received nonsense, 3 "
      "no "
      "job for --retry-for seconds.");
  RoleSettings& o = s.run;
  app.add_option(
         "--connect", s.coordinators,
         "Endpoint of the job, as `outrider generate --listen` prints it; after a comma that of its server "
         "with --standby, which is tried in turn. With --share once for each coordinator")
      ->allow_extra_args(false);
  app.add_flag("--share", s.share,
               "Drafts for several coordinators at once, each in a --connect of its own. The draft model is "
               "loaded once");
  app.add_option("--share-weights", s.share_weights,
                 "With --share: the coordinators' shares of computing time, sequences and KV cache, as "
                 "numbers up to a million in the order of --connect, such as 2,1,1; without it all are equal")
      ->delimiter(',')
      ->allow_extra_args(false);
  finds_model(app.add_option("--draft-model,-d", o.models.draft_model,
                             "Draft model: a GGUF file or a directory, with the target's tokenizer"));
  finds_model(app.add_option("--model,-m", o.models.model,
                             "The target, with --drafter eagle3, eagle, mtp, medusa, hydra or dflash: a head "
                             "has its tokens, and mostly its embedding"));
  add_text_drafter_options(app, o.models);
  app.add_option(
      "--curve-secret-key", s.curve_secret_key,
      "Key file of this worker, from `outrider keygen`; the job needs its .pub among its --allowed-keys");
  app.add_option("--server-key", s.server_key, "The job's public key: the .pub file of its key");
  app.add_option(
         "--retry-for", s.retry_for_s,
         "Seconds without a coordinator, at the start or after a broken connection, until it gives up")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_flag("--stay", s.stay,
               "After the end of a job, wait for the next one at this address for --retry-for seconds, with "
               "the model loaded");
  app.add_option("--max-num-seqs", o.models.max_num_seqs, "Sequences it drafts for at most")
      ->capture_default_str();
  app.add_option("--max-model-len", o.models.max_model_len,
                 "Longest text in tokens; 0: what the draft model supports")
      ->capture_default_str();
  app.add_option("--fanout-budget", o.speculation.fanout_budget,
                 "Outcomes there is room to prepare for, per sequence, if the job asks for it")
      ->capture_default_str();
  o.speculation.speculative_tree = "best-first:16";
  app.add_option(
         "--speculative-tree", o.speculation.speculative_tree,
         "Drafts there is room to branch for, per sequence, if the job asks for it, as in the job's own "
         "flag; larger trees end where the room does")
      ->check(o.speculation.speculative_tree.complaint)
      ->capture_default_str();
  app.add_option("--threads", o.models.threads,
                 "Threads for arithmetic; 0: as many cores as the weights are worth")
      ->capture_default_str();
  app.add_option("--draft-tensor-parallel-size", o.models.draft_tensor_parallel_size,
                 "Ranks that the draft model is split over, as threads of this process: 1, 2, 4 or 8. Under "
                 "mpirun every rank is one of them")
      ->capture_default_str();
  app.add_option("--cores", s.cores, "Cores that --threads 0 may count on; 0: all that this process may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--activation-format", o.models.activation_format,
                 "Inputs of products with quantised files: auto (int8), int8 or bf16")
      ->check(o.models.activation_format.complaint)
      ->capture_default_str();
  app.add_option("--draft-weight-format", o.models.draft_weight_format,
                 "auto (as stored), bf16, int8 or int4")
      ->check(o.models.draft_weight_format.complaint)
      ->capture_default_str();
  app.add_option("--draft-vocab-size", o.models.draft_vocab_size,
                 "The draft model draws only ids below this one; 0: all. A smaller output head makes its "
                 "steps cheaper, "
                 "and frequent tokens have low ids in most vocabularies (FR-Spec)")
      ->capture_default_str();
  app.add_option("--draft-window,--speculative-draft-window-size", o.models.draft_window,
                 "Of a longer text the draft model reads only the first --draft-sinks and the last N tokens "
                 "when it begins to draft; 0: all")
      ->capture_default_str();
  app.add_option("--draft-sinks,--speculative-draft-sink-size", o.models.draft_sinks,
                 "Tokens at the beginning of a text that the draft model reads with --draft-window")
      ->default_str(std::to_string(kDefaultDraftSinks));
  app.add_option(
         "--q-format", o.speculation.q_format,
         "hidden: have the model's output head ready, in int8, for jobs with --q-format hidden; the job "
         "decides what is sent")
      ->check(o.speculation.q_format.complaint)
      ->capture_default_str();
  app.add_option("--kv-dtype", o.models.kv_dtype, "KV cache: auto (as the weights), fp32 or bf16")
      ->check(o.models.kv_dtype.complaint)
      ->capture_default_str();
  app.add_option("--device", o.models.device, "Where the model runs: cpu, cuda, cuda:N, or auto (the CPU)")
      ->check(o.models.device.complaint)
      ->capture_default_str();
  app.add_option("--isa", o.models.isa,
                 "Instruction set of the kernels; `outrider doctor` lists what this machine has")
      ->capture_default_str();
  app.add_option("--parent", s.parent, "Leave when this process, the one that started us, ends");
  app.add_flag("-q,--quiet", o.quiet, "Nothing on standard error but errors");
}

int run_draft_worker_command(DraftWorkerSettings settings) {
  set_thread_role("draft");
  if (const Status status = check_sharing(settings); !status.ok()) return ended(status);
  settings.run.models.tensor_parallel_size = 0;  // no target here: the worker takes the first GPU
  settings.run.speculation.pipeline = "auto";    // the job decides; there is room for whatever it asks
  if (settings.parent != 0) {
    prctl(PR_SET_NAME, "outrider-draft");  // it was started as /proc/self/exe
    if (!follow_parent(settings.parent)) return kExitOk;
  }
  if (settings.share && MpiCluster::launched())
    return ended(
        unsupported("--share under mpirun: a draft model over several ranks serves one coordinator; drop "
                    "--share or mpirun"));
  if (settings.parent == 0 && MpiCluster::launched()) return serve_under_mpirun(settings);
  return ended(serve_here(settings));
}

}  // namespace outrider
