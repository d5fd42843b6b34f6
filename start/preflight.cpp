#include "start/preflight.h"

#include <fmt/format.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json_text.h"
#include "base/version.h"
#include "kernels/cpu/cpu_ops.h"
#include "requests/provenance.h"
#include "start/rank_setup.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr double kClockApart = 1;  // seconds; logs of hosts further apart cannot be read together

double free_gib() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, rest;
  for (double kib; meminfo >> key >> kib && std::getline(meminfo, rest);)
    if (key == "MemAvailable:") return kib / (1 << 20);
  struct sysinfo info {};
  return sysinfo(&info) == 0 ? static_cast<double>(info.freeram) * info.mem_unit / (1 << 30) : 0;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool has_link(const RankPlace& place) {
  return place.role == Role::kDraft ? place.drafts() : place.role == Role::kTarget && place.is_leader();
}

// A Heartbeat there and back. The coordinator answers as many ranks as there are.
bool hear_each_other(const RankContext& rank, std::chrono::milliseconds patience) {
  const Clock::time_point deadline = Clock::now() + patience;
  if (!rank.transport) return !has_link(rank.self);
  if (rank.self.role != Role::kCoordinator) {
    // The first message may be lost while the connection is made.
    while (Clock::now() < deadline) {
      (void)rank.transport->send(kCoordinatorPeer, Heartbeat{Generation(1)});
      const auto answer =
          rank.transport->receive(std::min(deadline, Clock::now() + std::chrono::milliseconds(500)));
      if (answer && std::holds_alternative<Heartbeat>(answer->message)) return true;
    }
    return false;
  }
  const auto& places = rank.topology.ranks();
  const auto expected = static_cast<size_t>(std::count_if(places.begin(), places.end(), has_link));
  std::set<PeerId> met;
  while (met.size() < expected && Clock::now() < deadline) {
    const auto message = rank.transport->receive(deadline);
    if (!message || !std::holds_alternative<Heartbeat>(message->message)) continue;
    if (rank.transport->send(message->peer, Heartbeat{Generation(1)}).ok()) met.insert(message->peer);
  }
  return met.size() == expected;
}

json describe(const RankContext& rank, RoleThreads threads, double clock, bool heard,
              const std::string& version) {
  return {{"version", version}, {"isa", isa_name()}, {"threads", threads.count}, {"free_gib", free_gib()},
          {"clock", clock},     {"heard", heard},    {"host", rank.self.host}};
}

std::string role_of(const RankPlace& place, const Topology& topology) {
  switch (place.role) {
    case Role::kCoordinator:
      return "coordinator";
    case Role::kDraft:
      return topology.draft_width() > 1 ? fmt::format("draft {}, rank {}", place.group, place.draft_rank)
                                        : fmt::format("draft {}", place.index);
    case Role::kTarget:
      return topology.groups() > 1 ? fmt::format("target {}, rank {}", place.group, place.tp_rank)
                                   : fmt::format("target, rank {}", place.tp_rank);
  }
  return "";
}

constexpr const char* kLine = "{:<5} {:<18} {:<20} {:<9} {:>7}  {:>9}  {:<9} {:>8}  {}\n";

std::string heading() {
  return fmt::format(kLine, "rank", "role", "host", "device", "threads", "free GiB", "isa", "clock s",
                     "link");
}

}  // namespace

std::string version_and_commit() { return fmt::format("{}, commit {}", kVersion, build_commit()); }

Status check_ranks(Collectives& world, RankContext& rank, const ClusterSettings& settings,
                   RoleThreads threads, const PreflightOptions& options) {
  world.barrier();
  const double clock = wall_seconds();
  const bool heard = hear_each_other(rank, options.patience);
  std::vector<json> all;
  const json own = describe(rank, threads, clock, heard, options.version);
  for (const std::string& text : gather_texts(world, json_text(own))) all.push_back(json::parse(text));
  std::string table = heading(), silent, apart, others;
  for (const RankPlace& place : rank.topology.ranks()) {
    const json& of = all[static_cast<size_t>(place.rank.value())];
    const double ahead = of["clock"].get<double>() - all[0]["clock"].get<double>();
    const bool is_heard = of["heard"].get<bool>();
    const bool linked = has_link(place);
    table += fmt::format(kLine, place.rank.value(), role_of(place, rank.topology), place.host, place.device,
                         of["threads"].get<int>(), fmt::format("{:.1f}", of["free_gib"].get<double>()),
                         of["isa"].get<std::string>(), fmt::format("{:+.2f}", ahead),
                         !linked    ? "-"
                         : is_heard ? "ok"
                                    : "no answer");
    if (linked && !is_heard)
      silent +=
          fmt::format("{}rank {} on host {}", silent.empty() ? "" : ", ", place.rank.value(), place.host);
    if (of["version"] != all[0]["version"])
      others += fmt::format("{}rank {} on host {} has {}", others.empty() ? "" : ", ", place.rank.value(),
                            place.host, of["version"].get<std::string>());
    if (std::abs(ahead) > kClockApart)
      apart += fmt::format("{}rank {} on host {}", apart.empty() ? "" : ", ", place.rank.value(), place.host);
  }
  if (!silent.empty())
    return unavailable(fmt::format(
        "--preflight: no message from the coordinator within {} s at {}; it listens on {}: open that port "
        "between the hosts, or name another address with --bind-host",
        std::chrono::duration<double>(options.patience).count(), silent, rank.endpoint));
  if (!others.empty())
    return invalid_argument(
        fmt::format("--preflight: rank 0 has version {}, but {}; install one version on all hosts",
                    all[0]["version"].get<std::string>(), others));
  if (world.rank() != 0) return {};
  std::fputs(table.c_str(), stdout);
  if (!apart.empty())
    std::fprintf(stderr,
                 "outrider: warning: the clocks of %s are over a second from rank 0's; logs of the hosts "
                 "will not fit\n",
                 apart.c_str());
  std::printf("All %d ranks have the same version, flags and weights%s. Nothing was loaded.\n", world.size(),
              settings.models.uses_draft_model() ? " of each model that they share" : "");
  return {};
}

void print_preflight(const ClusterSettings& settings, RoleThreads threads) {
  std::fputs(heading().c_str(), stdout);
  std::fputs(fmt::format(kLine, 0, "all roles", this_host(),
                         settings.models.device == "auto" ? "cpu" : settings.models.device.text(),
                         threads.count, fmt::format("{:.1f}", free_gib()), isa_name(), "+0.00", "-")
                 .c_str(),
             stdout);
  std::puts("One process: its flags and the models' configurations can be read. Nothing was loaded.");
}

}  // namespace outrider
