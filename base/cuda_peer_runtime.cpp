#include <cuda_runtime.h>

#include <cstring>

#include "base/cuda_peer.h"

namespace outrider::cuda {
namespace {

Status status_of(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // not reported twice
  return unavailable(
      fmt::format("CUDA: {} failed: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error)));
}

bool is_success(cudaError_t error) {
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  if (const Status status = status_of(error, "work on a stream"); !status.ok())
    throw CudaError(status.message());
  return true;
}

}  // namespace

bool is_done(StreamView stream) {
  return is_success(cudaStreamQuery(reinterpret_cast<cudaStream_t>(stream.handle())));
}
bool is_done(const Event& event) {
  return is_success(cudaEventQuery(reinterpret_cast<cudaEvent_t>(event.handle())));
}

int current_device() {
  int device = 0;
  if (const Status status = status_of(cudaGetDevice(&device), "asking for the device"); !status.ok())
    throw CudaError(status.message());
  return device;
}

std::string bus_id(int device) {
  char id[32] = {};
  if (const Status status =
          status_of(cudaDeviceGetPCIBusId(id, sizeof id, device), "asking for a device's bus");
      !status.ok())
    throw CudaError(status.message());
  return id;
}

int resident_blocks(int device) { return describe_device(device).multiprocessors; }

Status allow_peer(int peer) {
  const int self = current_device();
  if (peer == self) return {};
  int can = 0;
  RETURN_IF_ERROR(status_of(cudaDeviceCanAccessPeer(&can, self, peer), "asking for peer access"));
  if (!can) return unavailable(fmt::format("device {} cannot reach the memory of device {}", self, peer));
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return {};
  }
  return status_of(error, "peer access");
}

static_assert(sizeof(MemoryHandle) == sizeof(cudaIpcMemHandle_t));

Result<MemoryHandle> export_memory(void* memory) {
  cudaIpcMemHandle_t handle;
  RETURN_IF_ERROR(status_of(cudaIpcGetMemHandle(&handle, memory), "sharing device memory"));
  MemoryHandle result;
  std::memcpy(result.data(), &handle, sizeof handle);
  return result;
}

Result<ImportedMemory> ImportedMemory::open(const MemoryHandle& handle) {
  cudaIpcMemHandle_t raw;
  std::memcpy(&raw, handle.data(), sizeof raw);
  void* data = nullptr;
  RETURN_IF_ERROR(status_of(cudaIpcOpenMemHandle(&data, raw, cudaIpcMemLazyEnablePeerAccess),
                            "opening a peer's device memory"));
  return ImportedMemory(data);
}

ImportedMemory::~ImportedMemory() {
  if (data_) cudaIpcCloseMemHandle(data_);
}

}  // namespace outrider::cuda
