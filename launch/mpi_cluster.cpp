#include "launch/mpi_cluster.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "cluster/bootstrap.h"
#include "comm/cores.h"
#include "comm/mpi_collectives.h"
#include "launch/generate.h"
#include "launch/roles.h"

namespace outrider {
namespace {

constexpr size_t kMaxReason = 4096;

// Everybody's status: a failure anywhere is a failure everywhere. The lowest rank that failed keeps its words, the
// others get an empty message.
Status agree(Collectives& world, const Status& mine) {
  constexpr uint64_t kNobody = ~uint64_t{0};
  uint64_t failed = mine.ok() ? kNobody : static_cast<uint64_t>(world.rank());
  world.all_reduce_min(std::span(&failed, 1));
  if (failed == kNobody) return {};
  return failed == static_cast<uint64_t>(world.rank()) ? mine : invalid_argument("");
}

int fail(const Status& status) {
  if (!status.message().empty()) std::fprintf(stderr, "outrider: %s\n", status.message().c_str());
  return kExitUsage;
}

// Cores of this host, shared by the ranks that compute on it.
RoleThreads threads_of(const RunOptions& options, const RankContext& rank) {
  if (options.threads > 0) return {.count = options.threads};
  const auto& ranks = rank.topology.ranks();
  const auto sharing = std::count_if(ranks.begin(), ranks.end(), [&](const RankPlace& place) {
    return place.host == rank.self.host && place.role == Role::kTarget;
  });
  return {.count = std::max(1, usable_cores() / std::max(1, static_cast<int>(sharing)))};
}

Status check_roles(const RunOptions& options, const Topology& topology) {
  const int drafters = topology.count(Role::kDraft);
  if (options.speculates() && drafters == 0)
    return invalid_argument("--layout has no draft rank for the drafter; add draft=1 and a rank");
  if (!options.speculates() && drafters > 0)
    return invalid_argument("--layout has a draft rank but there is no drafter; add --draft-model DIR or --drafter ngram, "
                            "or use draft=0");
  if (options.tensor_parallel_size > 1 && options.tensor_parallel_size != topology.tp_size())
    return invalid_argument(fmt::format("--tensor-parallel-size {} but --layout has {} target ranks; drop the flag",
                                        options.tensor_parallel_size, topology.tp_size()));
  return {};
}

}  // namespace

struct MpiCluster::State {
  Collectives& world;
  RankContext& rank;
  bool started = false;
};

bool MpiCluster::launched() { return MpiSession::launched_size().value_or(1) > 1; }

Status MpiCluster::start() {
  state_.started = true;
  return agree(state_.world, {});
}

std::unique_ptr<Transport> MpiCluster::take_transport() { return std::move(state_.rank.transport); }

int MpiCluster::run(const RunOptions& options, const Coordinate& coordinate) {
  const MpiSession session;
  const auto world = make_mpi_collectives(session.world().duplicate(), choose_waiting(session.world()),
                                          {.timeout = std::chrono::minutes(10)});
  set_thread_role(fmt::format("rank/{}", world->rank()));
  auto context = bootstrap(session.world(), {.layout = options.layout});
  if (!context.ok()) return world->rank() == 0 ? fail(context.status()) : kExitUsage;
  RankContext& rank = *context;

  RunOptions rank_options = options;
  rank_options.tensor_parallel_size = rank.topology.tp_size();
  rank_options.quiet |= rank.self.role != Role::kCoordinator && !rank.self.is_leader();
  State state{*world, rank};
  MpiCluster cluster(state);
  Status ready = check_roles(options, rank.topology);
  Result<Preparation> prepared = ready.ok() ? prepare(rank_options) : Result<Preparation>(ready);

  if (rank.self.role == Role::kCoordinator) {
    const int code = prepared.ok() ? coordinate(rank_options, *prepared, cluster) : kExitUsage;
    if (!state.started) {
      // The coordinator has told what is wrong with its input; everybody goes home.
      const Status agreed = agree(*world, prepared.ok() ? invalid_argument("") : prepared.status());
      return fail(agreed);
    }
    return code;
  }
  if (Status agreed = agree(*world, prepared.status()); !agreed.ok()) return fail(agreed);
  const RoleThreads threads = threads_of(options, rank);
  const Status status = rank.self.role == Role::kDraft
                            ? run_draft_worker(rank_options, *prepared, threads, *rank.transport)
                            : run_target_rank(rank_options, *prepared, threads, *rank.collectives, rank.transport.get());
  if (status.ok()) return kExitOk;
  std::fprintf(stderr, "outrider: %s: %s\n", thread_role().c_str(), status.message().c_str());
  // mpirun ends every rank as soon as one fails: the coordinator first gets the time to tell its requests.
  std::this_thread::sleep_for(std::chrono::seconds(2));
  MpiSession::abort_job(kExitRuntime);
}

}  // namespace outrider
