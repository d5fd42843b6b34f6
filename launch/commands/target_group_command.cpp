#include "launch/commands/target_group_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <thread>
#include <utility>

#include "base/program/exit_codes.h"
#include "base/program/interrupt.h"
#include "base/threads.h"
#include "comm/cores.h"
#include "coordinator/target_groups.h"
#include "start/device.h"
#include "start/flags/options.h"
#include "start/load_models.h"
#include "start/mpi_cluster.h"
#include "start/prepare.h"
#include "start/rank_setup.h"
#include "start/roles.h"
#include "start/tree_option.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;

constexpr const char* kNoNextJob = "there is no next job";

bool is_leaving() { return noted_signal() != 0; }

// True where the coordinator may not have noticed the loss of a group yet, so that a place becomes free
// later.
bool may_find_place_later(const Status& status) {
  return status.message().find(kGroupHasJoined) != std::string::npos ||
         status.message().find(kGroupsHaveJoined) != std::string::npos;
}

// One rank of the group: loads a model once, and uses it for one life after the other. Only the leader
// connects, and it decides for all ranks whether there is another life.
class GroupRank {
 public:
  GroupRank(const TargetGroupSettings& settings, const Preparation& prepared, const ZmqOptions& zmq,
            RoleThreads threads, Collectives& group)
      : settings_(settings), prepared_(prepared), zmq_(zmq), threads_(threads), group_(group) {}

  // Runs until it is asked to leave, the job ends, it is refused, or there is no coordinator for too long.
  // Throws if another rank is gone.
  Status run() {
    const IndexRange ids =
        vocab_range(prepared_.target_info.vocab_size, {.tp_rank = group_.rank(), .tp_size = group_.size()});
    ASSIGN_OR_RETURN(const LoadedModel target, load_target(settings_.run, prepared_, threads_, group_));
    ASSIGN_OR_RETURN(const auto head, load_draft_head(settings_.run, ids, threads_));
    alone_since_ = Clock::now();
    while (true) {
      std::unique_ptr<Transport> transport;
      Status ended;
      if (leads()) {
        auto connected = connect();
        ended = connected.status();
        if (connected.ok()) transport = std::move(connected).value();
      }
      if (!goes_on(transport != nullptr)) return ended;
      Status status =
          run_joined_rank(settings_.run, prepared_, threads_, group_, transport.get(),
                          {target.model.get(), target.pass_times, head}, {is_leaving, [this] { joined(); }});
      transport.reset();
      if (leads()) status = judge(std::move(status));
      if (!goes_on(status.ok() && !ended_)) return status;
    }
  }

 private:
  bool leads() const { return group_.rank() == 0; }

  // The leader's decision, on all ranks.
  bool goes_on(bool leader_says) {
    if (group_.size() == 1) return leader_says;
    word_.assign(1, std::byte(leader_says ? 1 : 0));
    group_.broadcast_message(word_, 0, 1);
    return !word_.empty() && word_[0] == std::byte(1);
  }

  // An error or null: there is no further life.
  Result<std::unique_ptr<Transport>> connect() {
    while (!is_leaving()) {
      auto transport = make_zmq_client(endpoints_.current(), zmq_);
      if (transport.ok() || is_final(transport.status())) return transport;
      endpoints_.turn();
      RETURN_IF_ERROR(wait(transport.status()));
    }
    return std::unique_ptr<Transport>();
  }

  // Called after a life. OK: the next one begins, unless `ended_` is set, which means a normal end.
  Status judge(Status status) {
    endpoints_.turn();
    const bool was_in = std::exchange(is_in_, false);
    ended_ = is_leaving() || (status.ok() && !settings_.stay);
    if (is_leaving() && was_in)
      messages_.tell(LogLevel::kInfo, "leave", fmt::format("signal {}", noted_signal()));
    if (!is_leaving() && status.ok() && (was_in || !settings_.stay))
      messages_.tell(LogLevel::kInfo, "leave", describe_end(settings_));
    if (ended_) return {};
    if (status.ok()) {
      if (was_in) {
        attempt_ = 0;
        alone_since_ = Clock::now();
        told_ = kNoNextJob;
      }
      return wait(unavailable(kNoNextJob));
    }
    const bool refused = may_find_place_later(status);
    if (is_final(status) && !refused) return status;
    if (!refused) {
      attempt_ = 0;
      alone_since_ = Clock::now();
    }
    if (attempt_ == 0) told_ = status.message();
    if (attempt_ == 0)
      messages_.tell(
          LogLevel::kWarning, "loss",
          fmt::format("{}; joining again for {} s (--retry-for)", status.message(), settings_.retry_for_s));
    constexpr int kPatient = 3;
    if (refused) attempt_ = std::max(attempt_, kPatient);
    return wait(refused ? unavailable(status.message()) : status);
  }

  void joined() {
    is_in_ = true;
    attempt_ = 0;
    messages_.tell(LogLevel::kInfo, "join",
                   fmt::format("serves {} at {}", prepared_.target_info.name, endpoints_.current()));
  }

  // Waits before the next attempt. An error: there were too many.
  Status wait(const Status& why) {
    if (attempt_ == 0 && why.message() != told_ && alone_since_ != Clock::time_point{}) {
      told_ = why.message();
      messages_.tell(
          fmt::format("{}; trying again for {} s (--retry-for)", why.message(), settings_.retry_for_s));
    }
    if (Clock::now() - alone_since_ >= std::chrono::seconds(settings_.retry_for_s))
      return why.in(fmt::format("--retry-for {}", settings_.retry_for_s));
    std::this_thread::sleep_for(pause_before(attempt_++));
    return {};
  }

  const TargetGroupSettings& settings_;
  JoinEndpoints endpoints_{settings_};
  const JoiningMessages messages_{"target group", settings_, settings_.run.quiet};
  const Preparation& prepared_;
  const ZmqOptions& zmq_;
  const RoleThreads threads_;
  Collectives& group_;
  std::vector<std::byte> word_;
  bool ended_ = false;
  bool is_in_ = false;  // it has joined a job that has not ended
  int attempt_ = 0;
  std::string told_;  // the last reported reason for a missing coordinator
  Clock::time_point alone_since_;
};

// Only the leader sends the model's fingerprint to the coordinator.
Result<Preparation> prepare_group(const TargetGroupSettings& settings, bool leads) {
  if (settings.connect.empty())
    return invalid_argument(
        "--connect is missing: name the endpoint that the run with --listen-targets prints");
  ASSIGN_OR_RETURN(Preparation prepared, prepare(settings.run));
  if (leads) RETURN_IF_ERROR(identify_target(settings.run, prepared));
  return prepared;
}

// For a rank that is a process.
Status run_rank(const TargetGroupSettings& settings, RoleThreads threads, Collectives& group) {
  ASSIGN_OR_RETURN(const ZmqOptions zmq, joining_options(settings));
  ASSIGN_OR_RETURN(const Preparation prepared, prepare_group(settings, group.rank() == 0));
  if (group.size() > 1) {
    ASSIGN_OR_RETURN(const RankSetup setup,
                     target_setup(settings.run, prepared, fmt::format("rank {}", group.rank())));
    group.meet();  // the leader has read the weights
    RETURN_IF_ERROR(compare_setups(group, setup, threads.count));
  }
  if (group.rank() == 0 && !settings.run.quiet) tell_warnings(prepared);
  note_first_signal();
  return GroupRank(settings, prepared, zmq, threads, group).run();
}

// Ranks are threads; the first error is reported as the group's.
Status run_here(const TargetGroupSettings& settings) {
  const int ranks = std::max(1, settings.run.models.tensor_parallel_size);  // checked below
  const LocalThreads threads = local_threads(settings.run.models.threads, 0, ranks, usable_cores());
  if (ranks == 1) return run_rank(settings, threads.target, *make_single_collectives());
  ASSIGN_OR_RETURN(const ZmqOptions zmq, joining_options(settings));
  ASSIGN_OR_RETURN(const Preparation prepared, prepare_group(settings, true));
  if (!settings.run.quiet) tell_warnings(prepared);
  note_first_signal();
  const auto group = make_thread_collectives(ranks);
  std::mutex mutex;
  Status first;
  run_on_threads(ranks, [&](int r) {
    set_thread_role(fmt::format("target/{}", r));
    Status status;
    try {
      status = GroupRank(settings, prepared, zmq, threads.target, *group[static_cast<size_t>(r)]).run();
    } catch (const std::exception& error) {
      status = unavailable(what_failed(error));
    }
    if (status.ok()) return;
    const std::lock_guard lock(mutex);
    if (first.ok()) first = status;
    group[static_cast<size_t>(r)]->abort();  // so that the other ranks do not wait for a failed one
  });
  return first;
}

int finish(const Status& status) { return told_exit_code(status.in("target group")); }

}  // namespace

void add_target_group_options(CLI::App& app, TargetGroupSettings& s) {
  app.footer(
      "Examples, beside `outrider serve --listen-targets 'tcp://127.0.0.1:*'`, which tells its address:\n"
      "  outrider target-group --connect tcp://127.0.0.1:41017 --model TARGET\n"
      "  mpirun -n 4 outrider target-group --connect tcp://127.0.0.1:41017 --model TARGET\n"
      "Exit codes: 0 asked to leave or the job ended, 2 refused or cannot work, 3 a rank failed, or no job "
      "for "
      "--retry-for seconds.");
  RoleSettings& o = s.run;
  ModelSettings& m = o.models;
  app.add_option(
         "--connect", s.connect,
         "Endpoint of the run, as the run with --listen-targets prints it; with commas also that of the "
         "server with --standby, which is tried in turn")
      ->delimiter(',');
  finds_model(app.add_option("-m,--model", m.model, "The target: the model that the run was started with"));
  finds_model(app.add_option(
      "--draft-model,-d", m.draft_model,
      "As the run says, where the target needs it: a head beside the target, or --q-format hidden"));
  add_text_drafter_options(app, m);
  app.add_option("--head-place", m.head_place, "Where a head drafts, as the run says")
      ->check(CLI::IsMember({"target", "worker", "auto"}))
      ->capture_default_str();
  app.add_option("--exit-layer", m.exit_layer, "With --drafter layerskip, as the run says");
  app.add_option(
      "--tensor-parallel-size,--tp", m.tensor_parallel_size,
      "Ranks as threads of this process: 1, 2, 4 or 8. Under mpirun every rank is one of the group");
  app.add_option("--curve-secret-key", s.curve_secret_key,
                 "Key file of this group, from `outrider keygen`; the run needs its .pub among its "
                 "--allowed-target-keys");
  app.add_option("--server-key", s.server_key, "The run's public key: the .pub file of its key");
  app.add_option(
         "--retry-for", s.retry_for_s,
         "Seconds without a coordinator, at the start or after a broken connection, until it gives up")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_flag("--stay", s.stay,
               "After the end of a run, wait for the next one at this address for --retry-for seconds, with "
               "the model loaded");
  app.add_option("--max-num-seqs", m.max_num_seqs,
                 "Sequences decoded together; the run's own limit holds, too")
      ->capture_default_str();
  app.add_option("--max-model-len", m.max_model_len,
                 fmt::format("Longest text in tokens, the same in all groups; 0: what the model supports, at "
                             "most {}",
                             kDefaultMaxModelLen))
      ->capture_default_str();
  app.add_option(
         "--kv-cache-tokens", m.kv_cache_tokens,
         "Tokens that the KV cache has room for, the same in all groups; 0: the longest text for each of "
         "--max-num-seqs")
      ->capture_default_str();
  o.speculation.speculative_tree = "";
  app.add_option("--speculative-tree", o.speculation.speculative_tree,
                 "With a head beside the target: trees that there is room for, as in the run's own flag "
                 "(default: best-first:16)")
      ->check(o.speculation.speculative_tree.complaint);
  app.add_option("--q-format", o.speculation.q_format, "hidden, where the run says so")
      ->check(o.speculation.q_format.complaint)
      ->capture_default_str();
  app.add_option("--threads", m.threads, "Threads for arithmetic; 0: as many cores as the weights are worth")
      ->capture_default_str();
  app.add_option("--weight-format", m.weight_format,
                 "auto (as stored), bf16, int8, int4 or fp8 (CUDA only), the same as in the run")
      ->check(m.weight_format.complaint)
      ->capture_default_str();
  app.add_option("--activation-format", m.activation_format,
                 "Inputs of products with quantised files: auto (int8), int8 or bf16, as in the run")
      ->check(m.activation_format.complaint)
      ->capture_default_str();
  app.add_option("--draft-weight-format", m.draft_weight_format, "The same for a head")
      ->check(m.draft_weight_format.complaint)
      ->capture_default_str();
  app.add_option("--kv-dtype", m.kv_dtype, "KV cache: auto (as the weights), fp32 or bf16, as in the run")
      ->check(m.kv_dtype.complaint)
      ->capture_default_str();
  app.add_option("--device", m.device, "Where the model runs: cpu, cuda, cuda:N, or auto (the CPU)")
      ->check(m.device.complaint)
      ->capture_default_str();
  app.add_option("--isa", m.isa,
                 "Instruction set of the kernels, the same in all groups; `outrider doctor` lists what this "
                 "machine has")
      ->capture_default_str();
  app.add_flag("-q,--quiet", o.quiet, "Nothing on standard error but errors");
}

int run_target_group_command(TargetGroupSettings settings) {
  set_thread_role("target");
  if (settings.run.speculation.speculative_tree.text().empty())
    settings.run.speculation.speculative_tree = settings.run.models.exits_early() ? "off" : "best-first:16";
  if (!MpiCluster::launched()) return finish(run_here(settings));
  return MpiCluster::run_group([&](Collectives& group, int local, int cores) {
    set_thread_role(fmt::format("target/{}", group.rank()));
    TargetGroupSettings own = settings;
    ModelSettings& models = own.run.models;
    if (models.tensor_parallel_size > 1 && models.tensor_parallel_size != group.size())
      return finish(
          invalid_argument(fmt::format("--tensor-parallel-size {} but there are {} ranks; drop the flag",
                                       models.tensor_parallel_size, group.size())));
    models.tensor_parallel_size = group.size();
    if (models.device == "cuda") models.device = fmt::format("cuda:{}", local);
    return finish(run_rank(own, role_threads(models.threads, cores), group));
  });
}

}  // namespace outrider
