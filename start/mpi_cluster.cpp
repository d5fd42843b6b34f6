#include "start/mpi_cluster.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string_view>
#include <thread>
#include <vector>

#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "cluster/bootstrap.h"
#include "comm/cores.h"
#include "comm/mpi_collectives.h"
#include "draft_worker/wire/slice_sender.h"
#include "model/cuda_backend.h"
#include "start/device.h"
#include "start/draft_child.h"
#include "start/draft_ranks.h"
#include "start/listener.h"
#include "start/preflight.h"
#include "start/preflight_watch.h"
#include "start/rank_setup.h"
#include "start/roles.h"
#include "start/row_links.h"

namespace outrider {
namespace {

constexpr std::chrono::minutes kReadingTime{10};  // other ranks wait while the coordinator reads prompts

// Collective, and the first step of every rank, whatever its command line.
std::unique_ptr<Collectives> everybody(const MpiSession& session) {
  return make_mpi_collectives(session.world().duplicate(), Waiting::kYield, {.timeout = kReadingTime});
}

// All ranks return the agreed code and one prints it: mpirun passes on the first code it sees.
int fail(const Status& status, bool print) { return print ? told_exit_code(status) : exit_code_of(status); }

// mpirun ends every rank as soon as one fails, so the coordinator first gets time to finish its requests.
[[noreturn]] void end_job(const std::string& reason) {
  tell_error(thread_role() + ": " + reason);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  MpiSession::abort_job(kExitRuntime);
}

// Whether ranks may end before the job without ending it.
bool may_lose_ranks(const Topology& topology) { return topology.groups() > 1 || topology.draft_width() > 1; }

// Collective. Ranks of a lost target group or draft worker come here early, and wait for the coordinator as
// long as the other ranks work.
void end_together(Collectives& closing, const RankContext& rank) {
  std::vector<std::byte> nothing;
  if (may_lose_ranks(rank.topology))
    closing.broadcast_message(nothing, rank.topology.coordinator().value(), 1);
  closing.barrier();
}

struct Cores {
  cpu_set_t allowed;
  int quota = 0;
};

// Collective. The number of cores for a rank: those of its affinity mask, shared with the target ranks of its
// host whose masks overlap. Draft and target take turns, so a draft rank takes no share; ranks of one draft
// worker share with each other.
int share_of_cores(Collectives& world, const RankContext& rank) {
  Cores mine{.allowed = {}, .quota = quota_cores()};
  CPU_ZERO(&mine.allowed);
  if (sched_getaffinity(0, sizeof mine.allowed, &mine.allowed) != 0) CPU_SET(0, &mine.allowed);
  std::vector<Cores> all(static_cast<size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  const Role kind =
      rank.self.role == Role::kDraft && rank.topology.draft_width() > 1 ? Role::kDraft : Role::kTarget;
  int on_host = 0, overlapping = 0;
  for (const RankPlace& place : rank.topology.ranks()) {
    if (place.host != rank.self.host || place.role != kind) continue;
    cpu_set_t both;
    CPU_AND(&both, &mine.allowed, &all[static_cast<size_t>(place.rank.value())].allowed);
    ++on_host;
    overlapping += CPU_COUNT(&both) > 0;
  }
  const int bound = CPU_COUNT(&mine.allowed) / std::max(1, overlapping);
  return std::max(1, std::min(bound, mine.quota / std::max(1, on_host)));
}

// The same for ranks of one host that all compute at the same time.
int share_of_cores(Collectives& host) {
  Cores mine{.allowed = {}, .quota = quota_cores()};
  CPU_ZERO(&mine.allowed);
  if (sched_getaffinity(0, sizeof mine.allowed, &mine.allowed) != 0) CPU_SET(0, &mine.allowed);
  std::vector<Cores> all(static_cast<size_t>(host.size()));
  host.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  const auto overlapping = std::count_if(all.begin(), all.end(), [&](Cores& other) {
    cpu_set_t both;
    CPU_AND(&both, &mine.allowed, &other.allowed);
    return CPU_COUNT(&both) > 0;
  });
  const int bound = CPU_COUNT(&mine.allowed) / std::max(1, static_cast<int>(overlapping));
  return std::max(1, std::min(bound, mine.quota / std::max(1, host.size())));
}

Status check_roles(const ClusterSettings& settings, const Topology& topology) {
  const int drafters = topology.draft_workers();
  if (settings.models.needs_draft_workers() && drafters == 0)
    return invalid_argument(
        "there is a drafter but no draft rank; add draft=1 to --layout and start one rank more");
  if (settings.models.drafts_beside_target() && drafters > 0)
    return invalid_argument(fmt::format(
        "there is a draft rank, but --drafter {} drafts beside the target; "
        "say coordinator=1,draft=0,target={}{} in --layout{}",
        settings.models.drafter, topology.groups() > 1 ? fmt::format("{}x", topology.groups()) : "",
        topology.tp_size(), settings.models.head() ? ", or --head-place worker or auto" : ""));
  if (!settings.models.has_drafter() && drafters > 0)
    return invalid_argument(
        "there is a draft rank but no drafter; add --draft-model DIR or --drafter suffix, or say "
        "draft=0 in --layout");
  if (settings.models.tensor_parallel_size > 1 && settings.models.tensor_parallel_size != topology.tp_size())
    return invalid_argument(
        fmt::format("--tensor-parallel-size {} but there are {} target ranks{}; drop the flag",
                    settings.models.tensor_parallel_size, topology.tp_size(),
                    topology.groups() > 1 ? " in each group" : ""));
  return {};
}

// The coordinator's socket outlives its coordinator: workers may still answer the last message before
// Shutdown, and would take a closed socket for a crash.
class BorrowedTransport final : public Transport {
 public:
  explicit BorrowedTransport(Transport& transport) : transport_(transport) {}
  Status send(PeerId to, const Message& message) override { return transport_.send(to, message); }
  std::optional<Incoming> receive(Clock::time_point deadline) override {
    return transport_.receive(deadline);
  }
  std::function<void()> waker() override { return transport_.waker(); }
  const TransportStats& stats() const override { return transport_.stats(); }
  std::string endpoint() const override { return transport_.endpoint(); }
  std::string host_of(PeerId peer) const override { return transport_.host_of(peer); }

 private:
  Transport& transport_;
};

// A draft worker of several ranks: not in a child process, because its ranks need MPI.
Status run_draft_rank(const ClusterSettings& settings, const Preparation& prepared, RankContext& rank,
                      RoleThreads threads) {
  set_thread_role(fmt::format("draft/{}.{}", rank.self.group, rank.self.draft_rank));
  Collectives& group = *rank.collectives;
  return rank.self.drafts() ? run_draft_worker(settings, prepared, threads, group, *rank.transport)
                            : run_draft_follower(settings, prepared, threads, group);
}

Status look_after_drafter(const ClusterSettings& settings, const Preparation& prepared, RankContext& rank,
                          RoleThreads threads) {
  if (rank.topology.draft_width() > 1) return run_draft_rank(settings, prepared, rank, threads);
  set_thread_role(fmt::format("draft/{}", rank.self.index));
  DraftChildOptions child;
  child.endpoint = rank.endpoint;
  child.curve = rank.curve;
  child.threads = settings.models.threads;
  child.cores = threads.cores;
  return supervise_draft_child(settings, child, *rank.transport);
}

// Whether other ranks reach an endpoint of this target rank.
Status can_be_reached(const RankContext& rank) {
  if (rank.one_host || !rank.host.empty()) return {};
  return unavailable(fmt::format("rank {} has no address for ranks on other hosts", rank.self.rank.value()));
}

// Collective over the target group. Opens the endpoints for dense rows of q, one for each rank's slice, and
// for announcements of hidden states from the leader's GPU to workers with a head. An emulated link applies
// to the coordinator's connections, so with one everything goes through the coordinator.
OpenSliceEndpoint open_endpoints(const ClusterSettings& settings, const Preparation& prepared,
                                 RankContext& rank) {
  const auto& q = settings.speculation.q_format;
  const bool is_dense = q.ok() && q->kind == QKind::kDense;
  const bool tells_hidden_states =
      settings.models.is_head_at_workers() && rank.topology.at(rank.topology.leader()).device != "cpu";
  if (!(is_dense || tells_hidden_states) || rank.topology.groups() > 1 ||
      !settings.speculation.emulate_link.text().empty())
    return {};
  constexpr int64_t kHeaders = 4096;
  constexpr int kMaxTransfers = 64;  // of hidden states, announced to a worker that has not polled
  const int64_t width = prepared.target_info.vocab_size / rank.topology.tp_size() + 1;
  return open_slice_endpoints(
      *rank.collectives,
      {.possible = can_be_reached(rank),
       .host = rank.host,
       .encrypted = rank.curve.has_value(),
       .allow_remote = settings.mpi.allow_remote,
       .max_message_bytes = kHeaders + kMaxSpeculativeTokens * width * int64_t{sizeof(uint16_t)},
       .high_water_mark = std::max(2 * settings.models.max_num_seqs, kMaxTransfers),
       .gpu = linkable_gpu(device_of_worker(settings.models, rank.collectives->rank()))});
}

// Collective over the job. A target rank's end for blocks of prefilled prompts, if there are groups that only
// prefill. Every rank opens an endpoint, and those that decode keep it. `queue`: block_queue_limit().
BlockEnd open_block_end(Collectives& world, const RankContext& rank, bool allow_remote, int queue) {
  const Topology& topology = rank.topology;
  if (topology.prefill_groups() == 0) return {};
  const bool is_target = rank.self.role == Role::kTarget;
  OpenSliceEndpoint endpoint =
      open_slice_endpoints(world, {.purpose = "blocks of prompts from groups that only prefill",
                                   .possible = is_target ? can_be_reached(rank) : Status(),
                                   .host = rank.host,
                                   .encrypted = rank.curve.has_value(),
                                   .allow_remote = allow_remote,
                                   .max_message_bytes = int64_t{64} << 20,
                                   .high_water_mark = queue,
                                   .gpu = {}});
  if (!is_target) return {};
  if (rank.self.group >= topology.prefill_groups() && !endpoint.own) return {};
  if (rank.self.group >= topology.prefill_groups())
    return {.connect = {},
            .inbox = std::move(endpoint.own),
            .inbox_name = static_cast<uint64_t>(rank.self.group) + 1};
  return {.connect = [all = std::move(endpoint.all), &topology, own = rank.self.tp_rank,
                      queue](uint64_t inbox) -> Result<std::unique_ptr<Transport>> {
            for (const RankPlace& place : topology.ranks())
              if (place.role == Role::kTarget && place.tp_rank == own &&
                  static_cast<uint64_t>(place.group) + 1 == inbox)
                return connect_to_endpoint(
                    all, static_cast<size_t>(place.rank.value()), std::chrono::milliseconds(5000),
                    {.high_water_mark = queue, .linger = std::chrono::milliseconds(1000)});
            return invalid_argument(fmt::format("there is no inbox {}", inbox));
          },
          .inbox = nullptr};
}

// Whether the job survives this failure: other groups replace a target group, and a draft worker of several
// ranks may be lost once it has worked.
bool is_spared(const Status& status, const RankContext& rank) {
  if (rank.self.role == Role::kTarget) return rank.topology.groups() > 1;
  return rank.topology.draft_width() > 1 && exit_code_of(status) == kExitRuntime;
}

Result<Preparation> prepare_rank(const ClusterSettings& settings, RankContext& rank) {
  RETURN_IF_ERROR(check_pool_settings(settings));
  if (settings.targets_join())
    return unsupported(
        "--listen-targets under mpirun: the coordinator is one process; start it without mpirun, and each "
        "`outrider target-group` with an mpirun of its own, if it has several ranks");
  ASSIGN_OR_RETURN(Preparation prepared, prepare(settings));
  if (rank.self.role == Role::kCoordinator && !settings.pool.listen.empty()) {
    ASSIGN_OR_RETURN(rank.transport, open_to_others(settings, prepared, std::move(rank.transport)));
  }
  return prepared;
}

// A launcher may use another MPI than this program's; then every process would be alone in its own job.
Status check_launcher(const MpiSession& session) {
  const int started = MpiSession::launched_size().value_or(1), seen = session.world().size();
  if (started == seen) return {};
  return invalid_argument(
      fmt::format("the launcher started {} processes, and MPI finds {}: this MPI does not know the "
                  "launcher's protocol; use "
                  "mpirun of the same MPI, or srun --mpi=pmix",
                  started, seen));
}

Result<RankSetup> setup_of(const ClusterSettings& settings, const Preparation& prepared,
                           const RankContext& rank) {
  const std::string name = fmt::format("rank {}", rank.self.rank.value());
  if (rank.self.role == Role::kTarget) return target_setup(settings, prepared, name);
  if (rank.self.role == Role::kDraft && rank.topology.draft_width() > 1)
    return draft_setup(settings, prepared, fmt::format("draft worker {}", rank.self.group), name);
  if (rank.self.role == Role::kCoordinator) return coordinator_setup(settings, prepared, name);
  return RankSetup();  // its process has nothing to compare
}

// Collective. The rank's preparation, if it agrees with the other ranks'. `roles`: check_roles() of the flags
// as they were given; `settings` have the layout's sizes.
Result<Preparation> prepare_alike(Collectives& world, const Status& roles, const ClusterSettings& settings,
                                  RankContext& rank, RoleThreads threads) {
  auto prepared = roles.ok() ? prepare_rank(settings, rank) : Result<Preparation>(roles);
  Result<RankSetup> setup = RankSetup();
  if (prepared.ok()) setup = setup_of(settings, *prepared, rank);
  const Status alike = compare_setups(world, setup.ok() ? *setup : RankSetup(), threads.count);
  if (!prepared.ok()) return prepared;
  RETURN_IF_ERROR(setup.status());
  RETURN_IF_ERROR(alike);
  return prepared;
}

// Collective. A rank that only checks would leave the others waiting for it.
Status agree_on_preflight(Collectives& world, bool mine) {
  std::vector<uint8_t> all(static_cast<size_t>(world.size()));
  const auto own = static_cast<uint8_t>(mine);
  world.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  const auto count = std::count(all.begin(), all.end(), uint8_t{1});
  if (count == 0 || count == world.size()) return {};
  return invalid_argument(
      fmt::format("--preflight: {} of {} ranks have the flag; give it to all of them", count, world.size()));
}

}  // namespace

struct MpiCluster::State {
  Collectives& world;
  RankContext& rank;
  const ClusterSettings& settings;
  RoleThreads threads;
  // kRefused: some rank cannot start, and all ranks know. kRunning: all ranks have valid input. kChecked: the
  // preflight is over.
  enum class Phase { kPreparing, kRefused, kRunning, kChecked } phase = Phase::kPreparing;
};

bool MpiCluster::launched() { return MpiSession::launched_size().value_or(1) > 1; }
bool MpiCluster::is_first() { return !launched() || MpiSession::launched_rank() == 0; }

Status MpiCluster::start() {
  Status agreed = agree(state_.world, {});
  state_.phase = agreed.ok() ? State::Phase::kRunning : State::Phase::kRefused;
  return agreed;
}

Status MpiCluster::preflight() {
  const Status agreed = agree(state_.world, {});
  state_.phase = agreed.ok() ? State::Phase::kChecked : State::Phase::kRefused;
  RETURN_IF_ERROR(agreed);
  return check_ranks(state_.world, state_.rank, state_.settings, state_.threads);
}

std::unique_ptr<Transport> MpiCluster::take_transport() {
  return std::make_unique<BorrowedTransport>(*state_.rank.transport);
}

int MpiCluster::draft_workers() const { return state_.rank.topology.draft_workers(); }

std::vector<HostInfo> MpiCluster::hosts() {
  const MpiSession session;
  const auto gpus = cuda_device_count();
  return gather_hosts(*everybody(session), gpus.ok() ? *gpus : 0);
}

int MpiCluster::leave(const std::string& out, const std::string& error, int code) {
  const MpiSession session;
  if (!check_launcher(session).ok() && !is_first()) return code;
  const auto world = everybody(session);
  // Rank 0 may have to print the error for this rank, as a part of its own message.
  constexpr std::string_view kPrefix = "outrider: ";
  std::string_view reason = error;
  if (reason.starts_with(kPrefix)) reason.remove_prefix(kPrefix.size());
  if (reason.ends_with('\n')) reason.remove_suffix(1);
  (void)agree(*world, invalid_argument(std::string(reason)));
  if (world->rank() == 0) {
    std::fputs(out.c_str(), stdout);
    std::fputs(error.c_str(), stderr);
  }
  return code;
}

int MpiCluster::run_group(const GroupRank& rank) {
  const MpiSession session;
  try {
    if (const Status known = check_launcher(session); !known.ok()) return fail(known, is_first());
    const auto world = everybody(session);
    if (Status refused = agree(*world, {}); !refused.ok())
      return fail(refused, world->rank() == 0);  // see leave()
    const auto host = make_mpi_collectives(session.world().split_by_host(), Waiting::kYield);
    const int cores = share_of_cores(*host);
    const MpiComm all = session.world();
    const auto group = make_mpi_collectives(all.duplicate(), choose_waiting(all));
    const int code = rank(*group, host->rank(), cores);
    if (code != kExitOk) {  // others may wait for this rank
      std::fflush(nullptr);
      MpiSession::abort_job(code);
    }
    group->barrier();
    return code;
  } catch (const std::exception& error) {
    end_job(error.what());
  }
}

int MpiCluster::run(const ClusterSettings& settings, const Coordinate& coordinate) {
  std::optional<PreflightWatch> watch;
  if (settings.mpi.preflight)
    watch.emplace(launched_rank(),
                  std::chrono::seconds(settings.mpi.preflight_timeout_s.value_or(kDefaultPreflightTimeout)),
                  [] { _exit(kExitRuntime); });
  const MpiSession session;
  try {
    if (const Status known = check_launcher(session); !known.ok()) return fail(known, is_first());
    return run_rank(session, settings, coordinate, watch);
  } catch (const std::exception& error) {
    end_job(error.what());  // others may wait for this rank
  }
}

int MpiCluster::run_rank(const MpiSession& session, const ClusterSettings& settings,
                         const Coordinate& coordinate, std::optional<PreflightWatch>& watch) {
  const auto world = everybody(session);
  set_thread_role(fmt::format("rank/{}", world->rank()));
  if (Status refused = agree(*world, {}); !refused.ok())
    return fail(refused, world->rank() == 0);  // see leave()
  if (Status same = agree_on_preflight(*world, settings.mpi.preflight); !same.ok())
    return fail(same, world->rank() == 0);
  watch.reset();
  RendezvousOptions meeting;
  meeting.layout = settings.mpi.layout;
  meeting.groups = settings.models.groups();
  meeting.prefill_groups = settings.models.prefill_groups;
  meeting.draft_width = settings.models.draft_tensor_parallel_size;
  meeting.gpus = gpus_for(settings.models);
  meeting.bind_host = settings.mpi.bind_host;
  meeting.zmq.allow_remote = settings.mpi.allow_remote;
  auto context = bootstrap(session.world(), meeting);
  if (!context.ok()) return fail(context.status(), world->rank() == 0);
  RankContext& rank = *context;
  // A rank that hangs holds up the others' end no longer than this has patience.
  const auto closing = make_mpi_collectives(session.world().duplicate(), Waiting::kYield);
  const bool coordinates = rank.self.role == Role::kCoordinator;
  if (coordinates) set_thread_role("coordinator");

  ClusterSettings rank_settings = settings;
  rank_settings.models.tensor_parallel_size = rank.topology.tp_size();
  rank_settings.models.prefill_groups = rank.topology.prefill_groups();
  rank_settings.models.data_parallel_size = rank.topology.groups() - rank.topology.prefill_groups();
  rank_settings.models.draft_tensor_parallel_size = rank.topology.draft_width();
  if (rank.self.device != "cpu") rank_settings.models.device = rank.self.device;  // a GPU by local rank
  rank_settings.quiet |= !coordinates && !(rank.self.is_leader() && rank.self.group == 0);
  const int cores = share_of_cores(*world, rank);
  const RoleThreads threads = role_threads(settings.models.threads, cores);
  const Result<Preparation> prepared =
      prepare_alike(*world, check_roles(settings, rank.topology), rank_settings, rank, threads);
  std::vector<int> threads_of(static_cast<size_t>(world->size()));
  world->all_gather(std::as_bytes(std::span(&threads.count, 1)),
                    std::as_writable_bytes(std::span(threads_of)));
  BlockEnd blocks = open_block_end(*world, rank, settings.mpi.allow_remote,
                                   prepared.ok() ? block_queue_limit(rank_settings.models, *prepared) : 1);

  if (coordinates) {
    // For the report, which speaks of the target.
    const RankPlace& leader = rank.topology.at(rank.topology.leader());
    rank_settings.models.threads = threads_of[static_cast<size_t>(leader.rank.value())];
    if (leader.device != "cpu") rank_settings.models.device = leader.device;
    State state{*world, rank, rank_settings, threads};
    MpiCluster cluster(state);
    const int code = prepared.ok() ? coordinate(rank_settings, *prepared, cluster) : kExitUsage;
    if (state.phase == State::Phase::kRunning) {
      if (code == kExitRuntime) {  // whoever failed may never come to an end
        std::fflush(nullptr);
        MpiSession::abort_job(code);
      }
      end_together(*closing, rank);
    }
    if (state.phase != State::Phase::kPreparing) return code;
    // The coordinator has reported the error in its input; all ranks end.
    const auto kind = code == kExitRuntime ? StatusCode::kUnavailable : StatusCode::kInvalidArgument;
    const Status agreed = agree(*world, prepared.ok() ? Status(kind, "") : prepared.status());
    return prepared.ok() ? code : fail(agreed, true);
  }
  if (Status agreed = agree(*world, prepared.status()); !agreed.ok()) return fail(agreed, false);
  if (settings.mpi.preflight) {
    const Status checked = check_ranks(*world, rank, rank_settings, threads);
    return checked.ok() ? kExitOk : fail(checked, false);
  }
  const Status status =
      rank.self.role == Role::kDraft
          ? look_after_drafter(rank_settings, *prepared, rank, threads)
          : run_target_rank(rank_settings, *prepared, threads, *rank.collectives, rank.transport.get(), {},
                            nullptr, open_endpoints(rank_settings, *prepared, rank), rank.self.group,
                            std::move(blocks));
  if (!status.ok() && !is_spared(status, rank)) end_job(status.message());
  if (!status.ok())
    tell_error(fmt::format("{}: its {} is lost: {}", thread_role(),
                           rank.self.role == Role::kTarget ? "target group" : "draft worker",
                           status.message()));
  end_together(*closing, rank);
  return kExitOk;
}

}  // namespace outrider
