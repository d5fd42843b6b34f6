#include "comm/cuda/nccl_api.h"

#include <dlfcn.h>

namespace outrider::cuda {
namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Result<NcclApi> load(const char* name) {
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) return unavailable(dlerror());
  NcclApi api{.library = name};
  if (find(library, "ncclGetVersion", api.get_version) &&
      find(library, "ncclGetUniqueId", api.get_unique_id) &&
      find(library, "ncclCommInitRankConfig", api.init_rank) &&
      find(library, "ncclCommGetAsyncError", api.async_error) &&
      find(library, "ncclCommFinalize", api.finalize) && find(library, "ncclCommDestroy", api.destroy) &&
      find(library, "ncclCommAbort", api.abort) && find(library, "ncclGetErrorString", api.error_string) &&
      find(library, "ncclAllGather", api.all_gather) && find(library, "ncclGroupStart", api.group_start) &&
      find(library, "ncclGroupEnd", api.group_end) && find(library, "ncclSend", api.send) &&
      find(library, "ncclRecv", api.receive))
    return api;
  const std::string reason = dlerror();
  dlclose(library);
  return unavailable(fmt::format("{} is too old: {}", name, reason));
}

Result<NcclApi> load_first() {
  Result<NcclApi> first = load("libnccl.so.2");
  if (first.ok()) return first;
  Result<NcclApi> second = load("libnccl.so");
  if (second.ok()) return second;
  return unavailable("NCCL: " + first.status().message() + "; put its folder into LD_LIBRARY_PATH");
}

}  // namespace

Result<const NcclApi*> nccl_api() {
  static const Result<NcclApi> api = load_first();
  if (!api.ok()) return api.status();
  return &*api;
}

std::string describe_nccl() {
  const auto api = nccl_api();
  if (!api.ok()) return api.status().message();
  int version = 0;
  (*api)->get_version(&version);
  return fmt::format("NCCL {}.{}.{} ({})", version / 10000, version / 100 % 100, version % 100,
                     (*api)->library);
}

}  // namespace outrider::cuda
