#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>

#include "base/cuda.h"
#include "base/shared_pass.h"

namespace outrider::cuda {
namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // not reported twice
  throw CudaError(
      fmt::format("CUDA: {} failed: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error)));
}

// Ranks that are threads share a device while their kernels wait for each other. So no stream may queue
// behind another's waiting kernel, and no kernel may be loaded at its first launch, which may wait for the
// device. The driver reads both variables when it starts. They are set before main, while there is only one
// thread, unless the user has set them.
[[maybe_unused]] const bool is_environment_set = [] {
  return setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0) == 0 &&
         setenv("CUDA_MODULE_LOADING", "EAGER", 0) == 0;
}();

cudaStream_t stream_of(StreamView view) { return reinterpret_cast<cudaStream_t>(view.handle()); }
cudaEvent_t event_of(EventHandle* handle) { return reinterpret_cast<cudaEvent_t>(handle); }
cudaGraphExec_t graph_of(GraphHandle* handle) { return reinterpret_cast<cudaGraphExec_t>(handle); }

}  // namespace

Result<int> count_devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    if (driver == 0) return unavailable("no NVIDIA driver (libcuda.so.1 is not found)");
    return unavailable(
        fmt::format("the NVIDIA driver is older than this program ({}): update it, or put the folder of a "
                    "newer libcuda.so.1 "
                    "(package cuda-compat-{}-{}) into LD_LIBRARY_PATH",
                    version_text(), CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10));
  }
  if (error != cudaSuccess) return unavailable(cudaGetErrorString(error));
  if (count == 0) return unavailable("the driver shows no device (CUDA_VISIBLE_DEVICES?)");
  return count;
}

DeviceInfo describe_device(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "reading device properties");
  use_device(device);
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  return {.name = properties.name,
          .major = properties.major,
          .minor = properties.minor,
          .multiprocessors = properties.multiProcessorCount,
          .total_bytes = static_cast<int64_t>(total),
          .free_bytes = static_cast<int64_t>(free),
          .l2_bytes = properties.l2CacheSize,
          .shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin)};
}

std::string version_text() {
  int runtime = 0, driver = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  cudaGetLastError();
  const auto text = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  return fmt::format("runtime {}, {}", text(runtime), driver == 0 ? "no driver" : "driver " + text(driver));
}

void use_device(int device) { check(cudaSetDevice(device), "choosing a device"); }

void StreamView::synchronize() const { check(cudaStreamSynchronize(stream_of(*this)), "work on a stream"); }

Stream::Stream(KernelOrder order) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking for the device");
  constexpr int kFirstThatOverlaps = 9;
  view_ = StreamView(reinterpret_cast<StreamHandle*>(stream),
                     order == KernelOrder::kOverlapping && major >= kFirstThatOverlaps);
}
Stream::~Stream() { cudaStreamDestroy(stream_of(view_)); }

Event::Event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "making an event");
  handle_ = reinterpret_cast<EventHandle*>(event);
}
Event::~Event() { cudaEventDestroy(event_of(handle_)); }
void Event::record(StreamView stream) {
  check(cudaEventRecord(event_of(handle_), stream_of(stream)), "recording an event");
}
void Event::synchronize() const { check(cudaEventSynchronize(event_of(handle_)), "waiting for an event"); }
double Event::seconds_since(const Event& earlier) const {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, event_of(earlier.handle_), event_of(handle_)), "timing");
  return static_cast<double>(ms) / 1000;
}

Graph::Graph(StreamView stream, const std::function<void()>& work) {
  check(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal), "capturing a graph");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream_of(stream), &graph);
    if (graph) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream_of(stream), &graph), "capturing a graph");
  const MemoryTurn turn;
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "instantiating a graph");
  handle_ = reinterpret_cast<GraphHandle*>(executable);
  // Uploads now, and not at the first launch, when a peer's kernel may already be waiting.
  check(cudaGraphUpload(executable, stream_of(stream)), "uploading a graph");
}
Graph::~Graph() {
  const MemoryTurn turn;
  cudaGraphExecDestroy(graph_of(handle_));
}
void Graph::launch(StreamView stream) const {
  check(cudaGraphLaunch(graph_of(handle_), stream_of(stream)), "launching a graph");
}

namespace detail {

void* allocate_device(size_t bytes) {
  const MemoryTurn turn;
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw CudaError(fmt::format("CUDA: {:.2f} GB of device memory wanted, {:.2f} of {:.2f} GB are free",
                                static_cast<double>(bytes) / 1e9, static_cast<double>(free) / 1e9,
                                static_cast<double>(total) / 1e9));
  }
  check(error, "allocating device memory");
  // The fill runs on the legacy default stream, which our streams do not wait for.
  check(cudaMemset(memory, 0, bytes), "clearing device memory");
  check(cudaStreamSynchronize(cudaStreamLegacy), "clearing device memory");
  return memory;
}
void free_device(void* memory) noexcept {
  const MemoryTurn turn;
  cudaFree(memory);
}

void* allocate_pinned(size_t bytes) {
  const MemoryTurn turn;
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "allocating pinned memory");
  std::memset(memory, 0, bytes);
  return memory;
}
void free_pinned(void* memory) noexcept {
  const MemoryTurn turn;
  cudaFreeHost(memory);
}

}  // namespace detail

void copy_bytes(void* to, const void* from, size_t bytes, StreamView stream) {
  if (bytes == 0) return;  // pointers may be null
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)), "copying");
}
void fill_bytes(void* to, int value, size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(to, value, bytes, stream_of(stream)), "filling memory");
}

}  // namespace outrider::cuda
