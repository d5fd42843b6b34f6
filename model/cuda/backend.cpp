#include "model/cuda_backend.h"

#include <dlfcn.h>

#include "model/cuda/memory_plan.h"
#include "model/cuda/model.h"

namespace outrider {
namespace {

// Libraries that are used where they are: which of their names loads.
std::string describe_library(const std::string& title, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (void* library = dlopen(name, RTLD_LAZY | RTLD_LOCAL)) {
      dlclose(library);
      return fmt::format("{}: {}", title, name);
    }
  return fmt::format("{}: not found; put its folder into LD_LIBRARY_PATH", title);
}

}  // namespace

Result<int> cuda_device_count() {
  auto count = cuda::count_devices();
  if (count.ok()) return count;
  return Status(count.status().code(),
                "no CUDA device: " + count.status().message() + "; run with --device cpu");
}

Result<std::unique_ptr<Model>> load_cuda_model(const std::filesystem::path& directory,
                                               const ModelOptions& options, Collectives& collectives) {
  ASSIGN_OR_RETURN(const int count, cuda_device_count());
  if (options.device.index < 0 || options.device.index >= count)
    return invalid_argument(
        fmt::format("--device cuda:{}: this machine has {} CUDA device{}, numbered from 0",
                    options.device.index, count, count == 1 ? "" : "s"));
  return cuda::CudaModel::load(directory, options, collectives);
}

Result<int64_t> cuda_weight_bytes(const WeightMap& map, const ModelConfig& config, Shard shard) {
  RETURN_IF_ERROR(cuda::check_heads(config));
  ASSIGN_OR_RETURN(const cuda::WeightPlan plan,
                   cuda::plan_weights(map, config, ShardPlan(config, shard), WeightFormat::kAuto));
  return plan.bytes;
}

int64_t cuda_state_bytes(const ModelConfig& config, Shard shard) {
  return cuda::state_floats(config, ShardPlan(config, shard)) * static_cast<int64_t>(sizeof(float));
}

std::vector<std::string> describe_cuda() {
  std::vector<std::string> lines{cuda::version_text()};
  const auto count = cuda::count_devices();
  if (!count.ok()) {
    lines.push_back("no device: " + count.status().message() + "; models run on the CPU");
    return lines;
  }
  for (int i = 0; i < *count; ++i) {
    const cuda::DeviceInfo d = cuda::describe_device(i);
    lines.push_back(fmt::format("cuda:{} {} ({}, {} multiprocessors), {:.1f} of {:.1f} GB free", i, d.name,
                                d.arch(), d.multiprocessors, static_cast<double>(d.free_bytes) / 1e9,
                                static_cast<double>(d.total_bytes) / 1e9));
  }
  lines.push_back(describe_library("cuBLAS", {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}));
  lines.push_back(describe_library("NCCL", {"libnccl.so.2", "libnccl.so"}));
  return lines;
}

}  // namespace outrider
