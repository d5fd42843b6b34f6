#include "cluster/bootstrap.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <vector>

#include "base/log.h"
#include "comm/mpi_collectives.h"

namespace outrider {
namespace {

constexpr size_t kMaxText = 4096;  // of a layout, an endpoint or an error message

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

// The text rank `root` has.
std::string broadcast_text(Collectives& world, std::string text, int root) {
  text.resize(std::min(text.size(), kMaxText));
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  std::vector<std::byte> bytes(first, first + text.size());
  world.broadcast_message(bytes, root, kMaxText);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<HostInfo> gather_hosts(Collectives& world, int gpus) {
  struct Slot {
    std::array<char, 256> name{};
    int32_t gpus = 0;
  } mine;
  const std::string name = host_name();
  std::memcpy(mine.name.data(), name.data(), std::min(name.size(), mine.name.size() - 1));
  mine.gpus = gpus;
  std::vector<Slot> all(static_cast<size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  std::vector<HostInfo> hosts;
  for (const Slot& slot : all) hosts.push_back({slot.name.data(), slot.gpus});
  return hosts;
}

// Everybody's status: a failure anywhere is a failure everywhere, and a rank that failed keeps its own words.
Status agree(Collectives& world, const Status& mine) {
  constexpr uint64_t kNobody = ~uint64_t{0};
  uint64_t failed = mine.ok() ? kNobody : static_cast<uint64_t>(world.rank());
  world.all_reduce_min(std::span(&failed, 1));
  if (failed == kNobody) return {};
  const std::string reason = broadcast_text(world, mine.message(), static_cast<int>(failed));
  return mine.ok() ? unavailable(fmt::format("rank {} could not start: {}", failed, reason)) : mine;
}

struct Listener {
  std::unique_ptr<Transport> transport;
  std::unique_ptr<PrivateDirectory> directory;
};

Result<Listener> listen(const BootstrapOptions& options, const ZmqOptions& zmq, bool one_host) {
  Listener listener;
  std::string address;
  if (one_host && options.wire == BootstrapOptions::Wire::kAuto) {
    ASSIGN_OR_RETURN(PrivateDirectory directory, PrivateDirectory::make());
    listener.directory = std::make_unique<PrivateDirectory>(std::move(directory));
    address = "ipc://" + listener.directory->path() + "/control";
  } else if (one_host) {
    address = "tcp://127.0.0.1:*";
  } else {
    if (!zmq.allow_remote)
      return invalid_argument(
          "the ranks are on several hosts, so the coordinator must listen where others can reach it, without "
          "encryption or authentication: pass --allow-remote if the network between the hosts is trusted");
    std::string host = options.bind_host;
    if (host.empty()) {
      ASSIGN_OR_RETURN(host, reachable_address());
    }
    address = fmt::format("tcp://{}:*", host);
  }
  ASSIGN_OR_RETURN(listener.transport, make_zmq_server(address, zmq));
  return listener;
}

// Empty: the coordinator listens at context.endpoint.
Status connect_to_coordinator(RankContext& context, const ZmqOptions& zmq) {
  const bool talks = context.self.role == Role::kDraft || context.self.is_leader();
  if (!talks) return {};
  ASSIGN_OR_RETURN(context.transport, make_zmq_client(context.endpoint, zmq));
  return {};
}

uint64_t random_id() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

Result<PrivateDirectory> PrivateDirectory::make() {
  std::error_code error;
  const auto parent = std::filesystem::temp_directory_path(error);
  if (error)
    return unavailable(fmt::format("no temporary directory: {}; set TMPDIR to one", error.message()));
  std::string path = parent / "outrider-XXXXXX";
  if (mkdtemp(path.data()) == nullptr)
    return unavailable(fmt::format("{}: cannot create a directory: {}; set TMPDIR to one that is writable",
                                   path, std::strerror(errno)));
  return PrivateDirectory(path);
}

PrivateDirectory::~PrivateDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

Result<RankContext> bootstrap(const MpiComm& world_comm, const BootstrapOptions& options) {
  const auto world =
      make_mpi_collectives(world_comm.duplicate(), Waiting::kYield, {.timeout = options.timeout});
  const Waiting waiting = choose_waiting(world_comm);
  const bool one_host = world_comm.split_by_host().size() == world_comm.size();

  // Every rank computes the same topology from the same text, so an error is the same everywhere.
  const std::string text = broadcast_text(*world, options.layout, 0);
  ASSIGN_OR_RETURN(const Layout layout,
                   text.empty() ? default_layout(world->size()) : parse_layout(text, world->size()));
  Topology topology(layout, gather_hosts(*world, options.gpus));
  const RankPlace self = topology.at(Rank(world->rank()));
  const int coordinator = topology.coordinator().value();
  RankContext context{.topology = std::move(topology),
                      .self = self,
                      .endpoint = {},
                      .endpoint_directory = {},
                      .transport = {},
                      .collectives = {}};

  MpiComm role_comm = world_comm.split(static_cast<int>(self.role));
  if (self.role == Role::kTarget)
    context.collectives = make_mpi_collectives(std::move(role_comm), waiting, options.collectives);

  ZmqOptions zmq = options.zmq;
  zmq.cluster = random_id();
  world->broadcast(std::as_writable_bytes(std::span(&zmq.cluster, 1)), coordinator);
  Status status;
  if (self.role == Role::kCoordinator) {
    auto listener = listen(options, zmq, one_host);
    status = listener.status();
    if (listener.ok()) {
      context.transport = std::move(listener->transport);
      context.endpoint_directory = std::move(listener->directory);
      context.endpoint = context.transport->endpoint();
    }
  }
  RETURN_IF_ERROR(agree(*world, status));
  context.endpoint = broadcast_text(*world, context.endpoint, coordinator);
  RETURN_IF_ERROR(agree(*world, connect_to_coordinator(context, zmq)));
  SPDLOG_DEBUG("rank {} is {}/{} at {}", self.rank.value(), role_name(self.role), self.index,
               context.endpoint);
  return context;
}

Result<std::string> reachable_address() {
  std::array<char, INET_ADDRSTRLEN> text{};
  const auto usable = [&text](const sockaddr* address) {
    if (address == nullptr || address->sa_family != AF_INET) return false;
    const auto* ipv4 = reinterpret_cast<const sockaddr_in*>(address);
    const bool loopback = (ntohl(ipv4->sin_addr.s_addr) >> 24) == 127;
    return !loopback && inet_ntop(AF_INET, &ipv4->sin_addr, text.data(), text.size()) != nullptr;
  };
  std::string found;
  // What other hosts know this host by; some systems map it to 127.0.1.1, then an interface must do.
  addrinfo hints{}, *names = nullptr;
  hints.ai_family = AF_INET;
  if (getaddrinfo(host_name().c_str(), nullptr, &hints, &names) == 0) {
    for (const addrinfo* name = names; name != nullptr && found.empty(); name = name->ai_next)
      if (usable(name->ai_addr)) found = text.data();
    freeaddrinfo(names);
  }
  if (!found.empty()) return found;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) == 0) {
    for (const ifaddrs* it = interfaces; it != nullptr && found.empty(); it = it->ifa_next)
      if ((it->ifa_flags & IFF_UP) != 0 && usable(it->ifa_addr)) found = text.data();
    freeifaddrs(interfaces);
  }
  if (!found.empty()) return found;
  return unavailable(
      fmt::format("{}: no IPv4 address but loopback; name one to bind with --bind-host", host_name()));
}

}  // namespace outrider
