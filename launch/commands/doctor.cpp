#include "launch/commands/doctor.h"

#include <zmq.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <thread>
#include <vector>

#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "base/version.h"
#include "cluster/topology.h"
#include "comm/cores.h"
#include "kernels/cpu/cpu_ops.h"
#include "launch/commands/model_doctor.h"
#include "model/cuda_backend.h"
#include "requests/provenance.h"
#include "start/flags/options.h"
#include "start/mpi_cluster.h"

namespace outrider {
namespace {

void print(const std::string& key, const std::string& value) {
  std::printf("%-22s %s\n", key.c_str(), value.c_str());
}

void print_machine() {
  int major = 0, minor = 0, patch = 0;
  zmq_version(&major, &minor, &patch);
  std::string isas;
  for (const std::string& isa : available_isas()) isas += (isas.empty() ? "" : ", ") + isa;
  print("outrider", fmt::format("{}, commit {}", kVersion, build_commit()));
  print("cores", fmt::format("{} usable of {}", usable_cores(), std::thread::hardware_concurrency()));
  print("instruction sets", isas + " (the first is used; --isa pins one)");
  print("ZeroMQ", fmt::format("{}.{}.{}, CURVE {}", major, minor, patch, zmq_has("curve") ? "yes" : "no"));
  print("MPI", kHasMpi ? "yes: target ranks may be processes (mpirun)"
                       : "no: target ranks are threads of one process");
  for (const std::string& line : describe_cuda()) print("CUDA", line);
}

int fail(const Status& status) {
  tell_error(status.message());
  return kExitUsage;
}

}  // namespace

void add_doctor_options(CLI::App& app, DoctorOptions& o) {
  app.add_option("--ranks", o.ranks, "Number of ranks to lay out (as mpirun -n)");
  app.add_option("--layout", o.layout,
                 "Roles by rank, e.g. coordinator=1,draft=1,target=2; target=2x4 is two groups of four");
  app.add_option("--data-parallel-size,--dp", o.data_parallel_size, "Target groups, as of generate and serve")
      ->check(CLI::Range(1, kMaxTargetGroups));
  app.add_option("--prefill-groups", o.prefill_groups,
                 "Target groups that only prefill, beside those of --data-parallel-size")
      ->check(CLI::Range(0, kMaxTargetGroups - 1));
  finds_model(
      app.add_option("-m,--model,MODEL", o.model,
                     "Family, formats and memory of this model, by part and rank, without loading it"));
  app.footer(
      "Examples:\n"
      "  outrider doctor\n"
      "  outrider doctor MODEL\n"
      "  outrider doctor --ranks 4 --layout coordinator=1,draft=1,target=2 --model TARGET");
}

int run_doctor(const DoctorOptions& options) {
  const bool is_job = MpiCluster::launched();
  const std::vector<HostInfo> hosts = is_job ? MpiCluster::hosts() : std::vector<HostInfo>();
  if (!MpiCluster::is_first()) return kExitOk;
  if (is_job && options.ranks > 0 && options.ranks != static_cast<int>(hosts.size()))
    return fail(invalid_argument(
        fmt::format("--ranks {}: mpirun started {}; drop the flag", options.ranks, hosts.size())));
  const int ranks = is_job ? static_cast<int>(hosts.size()) : options.ranks;
  if (ranks < 0)
    return fail(invalid_argument(fmt::format("--ranks {}: must be positive, as in mpirun -n", ranks)));
  for (const auto& [flag, is_given] : {std::pair("--layout", !options.layout.empty()),
                                       std::pair("--data-parallel-size", options.data_parallel_size > 1),
                                       std::pair("--prefill-groups", options.prefill_groups > 0)})
    if (ranks == 0 && is_given)
      return fail(invalid_argument(fmt::format("{} needs --ranks N, as in mpirun -n N", flag)));
  std::optional<Topology> topology;
  std::string note;
  if (ranks > 0) {
    const int groups = options.data_parallel_size + options.prefill_groups;
    if (groups > kMaxTargetGroups)
      return fail(invalid_argument(
          fmt::format("--data-parallel-size {} and --prefill-groups {}: at most {} together",
                      options.data_parallel_size, options.prefill_groups, kMaxTargetGroups)));
    auto layout = options.layout.empty()
                      ? default_layout(ranks, groups, 1, options.prefill_groups)
                      : parse_layout(options.layout, ranks, groups, 1, options.prefill_groups);
    const bool is_chosen = !options.layout.empty() || groups > 1;
    if (!layout.ok() && !(is_job && !is_chosen)) return fail(layout.status());
    const HostInfo here{"this host", cuda_device_count().ok() ? *cuda_device_count() : 0};
    if (layout.ok())
      topology.emplace(*layout, is_job ? hosts : std::vector<HostInfo>(static_cast<size_t>(ranks), here));
    if (layout.ok() && !is_job && ranks > 1)
      note = "as if all ranks were on this host; mpirun outrider doctor shows where a job's ranks are\n";
    if (!layout.ok()) note = layout.status().message() + "\n";
  }
  std::string model;
  if (!options.model.empty()) {
    auto described = describe_model(options.model, topology ? topology->tp_size() : 1);
    if (!described.ok()) return fail(described.status().in("--model"));
    model = "\n" + std::move(described).value();
  }
  print_machine();
  if (topology) std::printf("\n%s", topology->describe().c_str());
  std::fputs(note.c_str(), stdout);
  std::fputs(model.c_str(), stdout);
  return kExitOk;
}

}  // namespace outrider
