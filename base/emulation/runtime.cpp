// base/cuda.h on the host: device memory is host memory, streams do their work at once.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/emulation/block.h"

namespace outrider::cuda {
namespace {

using Work = std::vector<std::function<void()>>;

struct EmulatedStream {
  Work* capture = nullptr;
};

EmulatedStream& stream_of(StreamView view) {
  CHECK(view.handle(), "the default stream is not used");
  return *static_cast<EmulatedStream*>(view.handle());
}

using Time = std::chrono::steady_clock::time_point;

void* allocate(size_t bytes) {
  void* memory = std::calloc(1, bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

Result<int> count_devices() { return 1; }
DeviceInfo describe_device(int) {
  return {.name = "emulation on the host",
          .major = 0,
          .minor = 0,
          .multiprocessors = 2,
          .total_bytes = int64_t{1} << 34,
          .free_bytes = int64_t{1} << 34,
          .l2_bytes = 0,
          .shared_bytes = int64_t{227} << 10};
}
std::string version_text() { return "emulation"; }
void use_device(int) {}

void StreamView::synchronize() const {
  CHECK(!stream_of(*this).capture, "a stream under capture is not waited for");
}
Stream::Stream(KernelOrder order) : view_(new EmulatedStream, order == KernelOrder::kOverlapping) {}
Stream::~Stream() { delete static_cast<EmulatedStream*>(view_.handle()); }

Event::Event() : handle_(new Time) {}
Event::~Event() { delete static_cast<Time*>(handle_); }
void Event::record(StreamView) { *static_cast<Time*>(handle_) = std::chrono::steady_clock::now(); }
void Event::synchronize() const {}
void Event::hold(StreamView) const {}
double Event::seconds_since(const Event& earlier) const {
  return std::chrono::duration<double>(*static_cast<Time*>(handle_) - *static_cast<Time*>(earlier.handle_))
      .count();
}

Graph::Graph(StreamView stream, const std::function<void()>& work) {
  auto captured = std::make_unique<Work>();
  stream_of(stream).capture = captured.get();
  work();
  stream_of(stream).capture = nullptr;
  handle_ = captured.release();
}
Graph::~Graph() { delete static_cast<Work*>(handle_); }
void Graph::launch(StreamView stream) const {
  for (const auto& step : *static_cast<Work*>(handle_)) emulation::enqueue(stream, step);
}

namespace detail {
void* allocate_device(size_t bytes) { return allocate(bytes); }
void free_device(void* memory) noexcept { std::free(memory); }
void* allocate_pinned(size_t bytes) { return allocate(bytes); }
void free_pinned(void* memory) noexcept { std::free(memory); }
}  // namespace detail

void copy_bytes(void* to, const void* from, size_t bytes, StreamView stream) {
  if (bytes == 0) return;  // nothing has no address
  emulation::enqueue(stream, [=] { std::memmove(to, from, bytes); });
}
void fill_bytes(void* to, int value, size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  emulation::enqueue(stream, [=] { std::memset(to, value, bytes); });
}

namespace emulation {
void enqueue(StreamView stream, std::function<void()> work) {
  if (Work* capture = stream_of(stream).capture)
    capture->push_back(std::move(work));
  else
    work();
}
}  // namespace emulation

}  // namespace outrider::cuda
