#include "launch/commands/doctor.h"

#include <zmq.h>

#include <cstdio>
#include <thread>

#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "base/version.h"
#include "cluster/topology.h"
#include "comm/cores.h"
#include "requests/provenance.h"
#include "transformer/model/cuda_backend.h"
#include "transformer/model/weights.h"
#include "transformer/ops/cpu/cpu_ops.h"

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

// Bytes of the matrices one rank packs.
int64_t rank_bytes(const ModelConfig& c, Shard shard, int64_t element) {
  const ShardPlan plan(c, shard);
  const int64_t q = plan.query_heads.size() * c.head_dim, kv = plan.kv_heads.size() * c.head_dim;
  const int64_t layer = c.hidden_size * (2 * q + 2 * kv + 3 * plan.mlp_columns.size());
  return element *
         (c.num_layers * layer + (c.tie_word_embeddings ? 1 : 2) * plan.vocab.size() * c.hidden_size);
}

void print_shards(const ModelConfig& config, int tp_size) {
  const int64_t element = config.torch_dtype == Dtype::kBF16 ? 2 : 4;
  for (int r = 0; r < tp_size; ++r) {
    const ShardPlan plan(config, {r, tp_size});
    print(fmt::format("target rank {}", r),
          fmt::format(
              "query heads [{}, {}), KV heads [{}, {}), MLP columns [{}, {}), vocabulary [{}, {}), {:.1f} MB",
              plan.query_heads.begin, plan.query_heads.end, plan.kv_heads.begin, plan.kv_heads.end,
              plan.mlp_columns.begin, plan.mlp_columns.end, plan.vocab.begin, plan.vocab.end,
              static_cast<double>(rank_bytes(config, {r, tp_size}, element)) / 1e6));
  }
}

int fail(const Status& status) {
  tell_error(status.message());
  return kExitUsage;
}

}  // namespace

int run_doctor(const DoctorOptions& options) {
  const int ranks = options.ranks;
  if (ranks < 0)
    return fail(invalid_argument(fmt::format("--ranks {}: must be positive, as in mpirun -n", ranks)));
  if (ranks == 0 && !options.layout.empty())
    return fail(invalid_argument("--layout needs --ranks N, as in mpirun -n N"));
  std::optional<Topology> topology;
  if (ranks > 0) {
    auto layout = options.layout.empty() ? default_layout(ranks) : parse_layout(options.layout, ranks);
    if (!layout.ok()) return fail(layout.status());
    topology.emplace(
        *layout,
        std::vector<HostInfo>(static_cast<size_t>(ranks),
                              HostInfo{"this host", cuda_device_count().ok() ? *cuda_device_count() : 0}));
  }
  std::optional<ModelConfig> config;
  if (!options.model.empty()) {
    auto read = read_model_config(options.model);
    if (!read.ok()) return fail(read.status().in("--model"));
    config.emplace(std::move(read).value());
  }
  print_machine();
  if (topology) std::printf("\n%s", topology->describe().c_str());
  if (config) {
    std::printf("\n");
    print_shards(*config, topology ? topology->tp_size() : 1);
  }
  return kExitOk;
}

}  // namespace outrider
