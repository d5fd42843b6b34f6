#include "cluster/bootstrap.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "base/log.h"
#include "base/log_line.h"
#include "cluster/host_address.h"
#include "comm/mpi_collectives.h"

namespace outrider {
namespace {

constexpr size_t kMaxText = 4096;  // of a layout, an endpoint or an error message

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

uint64_t random_id() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// The text of rank `root`, on all ranks.
std::string broadcast_text(Collectives& world, std::string text, int root) {
  text.resize(std::min(text.size(), kMaxText));
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  std::vector<std::byte> bytes(first, first + text.size());
  world.broadcast_message(bytes, root, kMaxText);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Every rank's network addresses, in rank order.
std::vector<std::vector<HostAddress>> gather_addresses(Collectives& world) {
  constexpr size_t kMaxAddresses = 32;  // of one host
  struct Slot {
    std::array<HostAddress, kMaxAddresses> addresses{};
    uint64_t count = 0;
  } mine;
  const auto found = host_addresses();
  mine.count = std::min(found.size(), kMaxAddresses);
  std::copy_n(found.begin(), mine.count, mine.addresses.begin());
  std::vector<Slot> all(static_cast<size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  std::vector<std::vector<HostAddress>> of_rank;
  for (const Slot& slot : all)
    of_rank.emplace_back(slot.addresses.begin(), slot.addresses.begin() + static_cast<ptrdiff_t>(slot.count));
  return of_rank;
}

// Several hosts: the address of `self` that all others can reach. `addresses`: of every rank.
Result<std::string> address_for_others(const Topology& topology, const RankPlace& self,
                                       const std::vector<std::vector<HostAddress>>& addresses) {
  std::vector<std::vector<HostAddress>> others;
  for (const RankPlace& place : topology.ranks())
    if (place.host != self.host) others.push_back(addresses[static_cast<size_t>(place.rank.value())]);
  const auto& mine = addresses[static_cast<size_t>(self.rank.value())];
  ASSIGN_OR_RETURN(const HostAddress chosen, choose_address(mine, addresses_of_host_name(), others));
  return to_string(chosen);
}

// The coordinator's address that all others can reach; an error if there is none.
Result<std::string> remote_host(const RendezvousOptions& options, const ZmqOptions& zmq,
                                const Topology& topology,
                                const std::vector<std::vector<HostAddress>>& addresses) {
  if (!zmq.curve && !zmq.allow_remote)
    return invalid_argument(
        "the ranks are on several hosts and this libzmq has no CURVE, so the coordinator would listen "
        "without "
        "encryption or authentication: pass --allow-remote if the network between the hosts is trusted");
  if (!options.bind_host.empty()) return options.bind_host;
  return address_for_others(topology, topology.at(topology.coordinator()), addresses);
}

Result<std::unique_ptr<Transport>> listen_remote(const std::string& host, const ZmqOptions& zmq) {
  // Workers connect to the bound address, so every worker must resolve it to this host and no other.
  const auto refuse = [&host](const std::string& reason) {
    return invalid_argument(
        fmt::format("{}: {}; name an IPv4 address or an interface of the coordinator's host with --bind-host",
                    host, reason));
  };
  auto server = make_zmq_server(fmt::format("tcp://{}:*", host), zmq);
  if (!server.ok()) return refuse(server.status().message());
  const std::string endpoint = server.value()->endpoint();
  if (endpoint.starts_with("tcp://127.")) return refuse("other hosts cannot reach loopback");
  if (endpoint.starts_with("tcp://0.0.0.0:"))
    return refuse("other hosts cannot connect to every address at once");
  return server;
}

// Called by the coordinator: fills its end and the endpoints of `context`.
Status start_listening(RankContext& context, const RendezvousOptions& options, const ZmqOptions& zmq,
                       bool one_host, const std::vector<std::vector<HostAddress>>& addresses) {
  if (!one_host) {
    ASSIGN_OR_RETURN(const std::string host, remote_host(options, zmq, context.topology, addresses));
    ASSIGN_OR_RETURN(context.transport, listen_remote(host, zmq));
  } else {
    // A name in the abstract namespace, for this user only: it leaves no file behind.
    const std::string address = options.wire == RendezvousOptions::Wire::kTcp
                                    ? "tcp://127.0.0.1:*"
                                    : fmt::format("ipc://@outrider-{:016x}{:016x}", random_id(), random_id());
    ASSIGN_OR_RETURN(context.transport, make_zmq_server(address, zmq));
  }
  context.endpoint = context.transport->endpoint();
  return {};
}

// Connects draft workers and the leader; the coordinator listens at context.endpoint.
Status connect_to_coordinator(RankContext& context, const ZmqOptions& zmq) {
  const bool talks = context.self.drafts() || context.self.is_leader();
  if (!talks) return {};
  auto client = make_zmq_client(context.endpoint, zmq);
  if (!client.ok() && context.endpoint.starts_with("tcp://"))
    return unavailable(
        fmt::format("{} If so, {} does not reach it at this address: name one that it does with --bind-host",
                    client.status().message(), context.self.host));
  ASSIGN_OR_RETURN(context.transport, std::move(client));
  return {};
}

// Collective. The coordinator makes keys for this job: one pair for itself and one for its workers. They
// travel over MPI, whose network the job has to trust anyway. Without CURVE in libzmq there are no keys.
void hand_out_keys(Collectives& world, int coordinator, ZmqOptions& zmq) {
  constexpr size_t kKey = 40;
  CurveKeys mine;
  std::string text;
  if (world.rank() == coordinator) {
    auto own = make_curve_key_pair(), workers = make_curve_key_pair();
    if (own.ok() && workers.ok()) {
      mine.own = *own;
      mine.allowed.push_back(workers->public_key);
      text = mine.own.public_key + workers->public_key + workers->secret_key;
    }
  }
  text = broadcast_text(world, std::move(text), coordinator);
  if (text.size() != 3 * kKey) return;
  if (world.rank() != coordinator) {
    mine.own = {text.substr(kKey, kKey), text.substr(2 * kKey)};
    mine.server = text.substr(0, kKey);
  }
  zmq.curve = std::move(mine);
}

}  // namespace

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

Status agree(Collectives& world, const Status& mine) {
  // The lowest rank that failed, and its code: all ranks end with the same exit code.
  constexpr uint64_t kNobody = ~uint64_t{0};
  uint64_t failed = mine.ok() ? kNobody : uint64_t(world.rank()) << 8 | static_cast<uint64_t>(mine.code());
  world.all_reduce_min(std::span(&failed, 1));
  if (failed == kNobody) return {};
  const int rank = static_cast<int>(failed >> 8);
  const std::string reason = broadcast_text(world, mine.message(), rank);
  const auto code = static_cast<StatusCode>(failed & 0xff);
  return Status(code, mine.ok() ? fmt::format("rank {} could not start: {}", rank, reason) : mine.message());
}

Result<RankContext> bootstrap(const MpiComm& world_comm, const RendezvousOptions& options) {
  const auto world =
      make_mpi_collectives(world_comm.duplicate(), Waiting::kYield, {.timeout = options.timeout});
  const Waiting waiting = choose_waiting(world_comm);
  const bool one_host = world_comm.split_by_host().size() == world_comm.size();

  // Every rank computes the same topology from the same text, so an error is the same everywhere.
  const std::string text = broadcast_text(*world, options.layout, 0);
  const int groups = std::atoi(broadcast_text(*world, std::to_string(options.groups), 0).c_str());
  const int width = std::atoi(broadcast_text(*world, std::to_string(options.draft_width), 0).c_str());
  const int prefill = std::atoi(broadcast_text(*world, std::to_string(options.prefill_groups), 0).c_str());
  ASSIGN_OR_RETURN(const Layout layout, text.empty()
                                            ? default_layout(world->size(), groups, width, prefill)
                                            : parse_layout(text, world->size(), groups, width, prefill));
  Topology topology(layout, gather_hosts(*world, options.gpus));
  const RankPlace self = topology.at(Rank(world->rank()));
  const int coordinator = topology.coordinator().value();
  RankContext context{.topology = std::move(topology), .self = self};

  constexpr int kRoles = 8;  // an upper bound; larger values give each group and draft worker its own
  const bool computes =
      self.role == Role::kTarget || (self.role == Role::kDraft && context.topology.draft_width() > 1);
  MpiComm role_comm =
      world_comm.split(static_cast<int>(self.role) + (computes ? kRoles * (1 + self.group) : 0));
  if (computes)
    context.collectives = make_mpi_collectives(std::move(role_comm), waiting, options.collectives);

  ZmqOptions zmq = options.zmq;
  // The name of a Unix socket is known to this user only; other connections need keys.
  if (!one_host || options.wire == RendezvousOptions::Wire::kTcp) hand_out_keys(*world, coordinator, zmq);
  context.curve = zmq.curve;
  const auto addresses = gather_addresses(*world);
  Status listening;
  if (self.role == Role::kCoordinator)
    listening = start_listening(context, options, zmq, one_host, addresses);
  RETURN_IF_ERROR(agree(*world, listening));
  context.endpoint = broadcast_text(*world, context.endpoint, coordinator);
  RETURN_IF_ERROR(agree(*world, connect_to_coordinator(context, zmq)));
  context.one_host = one_host;
  if (!one_host && self.role == Role::kTarget) {
    auto host = address_for_others(context.topology, self, addresses);
    if (host.ok()) context.host = std::move(host).value();
  }
  log_line(LogLevel::kDebug, "rank {} is {}/{} at {}", self.rank.value(), role_name(self.role), self.index,
           context.endpoint);
  return context;
}

}  // namespace outrider
