#include "tests/support/fake_nccl.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/emulation/stream.h"

namespace outrider::testing {
namespace {

constexpr int kPollsOfACall = 2;  // until a call that goes on in the background is over

struct Operation {
  void* memory;
  size_t bytes;
  bool done = false;
};
using Shared = std::shared_ptr<Operation>;

// Waiting sends and receives of one pair of ranks.
struct Pair {
  std::deque<Shared> sends, receives;
};

struct Comm;
struct World {
  int size = 0;
  std::vector<std::shared_ptr<Comm>> joined;
  std::map<std::pair<int, int>, Pair> pairs;  // from, to
};

struct Posted {
  Shared operation;
  int peer;
  bool is_send;
};
// A kernel. Streams hold nothing but these, so it begins when the one before it has ended.
struct Group {
  std::vector<Posted> parts;
  int64_t number;  // of its communicator's
  bool begun = false;
  bool is_done() const {
    return std::all_of(parts.begin(), parts.end(), [](const Posted& part) { return part.operation->done; });
  }
};

struct Comm {
  std::shared_ptr<World> world;
  int rank = 0;
  int polls = kPollsOfACall;
  int64_t groups = 0;
  bool aborted = false;
  std::deque<std::shared_ptr<Group>> queue;
};

std::mutex mutex;  // of all that follows
std::map<uint64_t, std::shared_ptr<World>> worlds;
std::map<ncclComm_t, std::shared_ptr<Comm>> comms;
uint64_t next_id = 0;

struct OpenGroup {
  std::shared_ptr<Comm> comm;
  cuda::StreamView stream;
  std::vector<Posted> parts;
};
thread_local OpenGroup open_group;

void match(Pair& pair) {
  while (!pair.sends.empty() && !pair.receives.empty()) {
    const Shared from = pair.sends.front(), to = pair.receives.front();
    pair.sends.pop_front();
    pair.receives.pop_front();
    if (from->bytes != to->bytes)
      ++fake_nccl().mismatched;
    else
      std::memcpy(to->memory, from->memory, from->bytes);
    from->done = to->done = true;
    ++fake_nccl().sent;
  }
}

void begin(Comm& comm, Group& group) {
  group.begun = true;
  for (const Posted& part : group.parts) {
    const bool is_mute = part.is_send && fake_nccl().mute_after >= 0 && group.number > fake_nccl().mute_after;
    const bool is_deaf = !part.is_send && fake_nccl().deaf_rank == comm.rank && group.number > 1;
    if (is_mute || is_deaf) continue;
    const auto ends = part.is_send ? std::pair(comm.rank, part.peer) : std::pair(part.peer, comm.rank);
    Pair& pair = comm.world->pairs[ends];
    (part.is_send ? pair.sends : pair.receives).push_back(part.operation);
    match(pair);
  }
}

// Runs the background work of the devices until nothing more can proceed.
void go_on(World& world) {
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& comm : world.joined) {
      while (!comm->queue.empty() && comm->queue.front()->begun && comm->queue.front()->is_done())
        comm->queue.pop_front();
      if (comm->queue.empty() || comm->queue.front()->begun) continue;
      begin(*comm, *comm->queue.front());
      changed = true;
    }
  }
}

void forget(Comm& comm) {
  for (const auto& group : comm.queue)
    for (const Posted& part : group->parts)
      for (auto& [ends, pair] : comm.world->pairs) {
        std::erase(pair.sends, part.operation);
        std::erase(pair.receives, part.operation);
      }
  comm.queue.clear();
}

// Reported when nothing is on its way, so that the fault by itself loses no rows.
bool has_failed(const Comm& comm) {
  return comm.rank == fake_nccl().fail_rank && fake_nccl().fail_after >= 0 &&
         comm.groups > fake_nccl().fail_after &&
         std::all_of(comm.queue.begin(), comm.queue.end(), [](const auto& group) { return group->is_done(); });
}

ncclResult_t state_of(Comm& comm) {
  if (has_failed(comm)) return ncclRemoteError;
  if (static_cast<int>(comm.world->joined.size()) < comm.world->size || fake_nccl().init_hangs)
    return ncclInProgress;
  return comm.polls > 0 && comm.polls-- > 0 ? ncclInProgress : ncclSuccess;
}

ncclResult_t post(void* memory, size_t bytes, int peer, ncclComm_t comm, cudaStream_t stream, bool is_send) {
  const std::lock_guard lock(mutex);
  open_group.comm = comms.at(comm);
  open_group.stream = cuda::StreamView(reinterpret_cast<cuda::StreamHandle*>(stream));
  open_group.parts.push_back({std::make_shared<Operation>(Operation{memory, bytes}), peer, is_send});
  return ncclSuccess;
}

ncclResult_t launch() {
  const std::lock_guard lock(mutex);
  const auto comm = open_group.comm;
  const auto group =
      std::make_shared<Group>(Group{.parts = std::move(open_group.parts), .number = ++comm->groups});
  comm->polls = kPollsOfACall;
  comm->queue.push_back(group);
  go_on(*comm->world);
  cuda::emulation::hold_up(open_group.stream, [comm, group] {
    const std::lock_guard inner(mutex);
    return !fake_nccl().lingers && (comm->aborted || group->is_done());
  });
  return ncclInProgress;
}

cuda::NcclApi make_api() {
  cuda::NcclApi api;
  api.get_unique_id = [](ncclUniqueId* id) {
    const std::lock_guard lock(mutex);
    ++next_id;
    std::memset(id, 0, sizeof *id);
    std::memcpy(id, &next_id, sizeof next_id);
    return ncclSuccess;
  };
  api.init_rank = [](ncclComm_t* out, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
    const std::lock_guard lock(mutex);
    uint64_t number = 0;
    std::memcpy(&number, &id, sizeof number);
    auto& world = worlds[number];
    if (!world) world = std::make_shared<World>();
    world->size = size;
    const auto comm = std::make_shared<Comm>(Comm{.world = world, .rank = rank});
    *out = reinterpret_cast<ncclComm_t>(comm.get());
    comms[*out] = comm;
    world->joined.push_back(comm);
    ++fake_nccl().made;
    return ncclInProgress;
  };
  api.async_error = [](ncclComm_t comm, ncclResult_t* result) {
    const std::lock_guard lock(mutex);
    return *result = state_of(*comms.at(comm)), ncclSuccess;
  };
  api.abort = [](ncclComm_t handle) {
    const std::lock_guard lock(mutex);
    Comm& comm = *comms.at(handle);
    comm.aborted = true;
    forget(comm);
    comms.erase(handle);
    ++fake_nccl().aborted;
    return ncclSuccess;
  };
  api.error_string = [](ncclResult_t) { return "made-up error"; };
  api.group_start = [] { return open_group = {}, ncclSuccess; };
  api.send = [](const void* from, size_t bytes, ncclDataType_t, int peer, ncclComm_t comm,
                cudaStream_t stream) {
    return post(const_cast<void*>(from), bytes, peer, comm, stream, true);
  };
  api.receive = [](void* to, size_t bytes, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
    return post(to, bytes, peer, comm, stream, false);
  };
  api.group_end = &launch;
  return api;
}

}  // namespace

FakeNccl& fake_nccl() {
  static FakeNccl instance;
  return instance;
}

const cuda::NcclApi& fake_nccl_api() {
  static const cuda::NcclApi api = make_api();
  return api;
}

}  // namespace outrider::testing
