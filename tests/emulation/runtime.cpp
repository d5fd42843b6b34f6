// base/cuda.h on the host: device memory is host memory, streams do their work at once, unless they are held
// up (emulation::hold_up).
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/cuda_peer.h"
#include "base/shared_pass.h"
#include "tests/emulation/block.h"
#include "tests/emulation/races.h"
#include "tests/emulation/stream.h"

namespace outrider::cuda {
namespace {

namespace races = emulation::races;
using Work = std::vector<std::function<void()>>;

struct EmulatedStream {
  Work* capture = nullptr;
  std::deque<std::function<bool()>> held;  // steps that are not done: each is tried until it returns true
  uint64_t done = 0;                       // of the steps that were ever held
  uint64_t queued = 0, waited = 0;         // pieces of work queued, and pieces that the host knows to be done
  uint32_t id = races::open_stream();
};

EmulatedStream& stream_of(StreamView view) {
  CHECK(view.handle(), "the default stream is not used");
  return *reinterpret_cast<EmulatedStream*>(view.handle());
}

// Runs every step of the stream that is ready.
void advance(EmulatedStream& stream) {
  for (; !stream.held.empty() && stream.held.front()(); ++stream.done) stream.held.pop_front();
}

using Time = std::chrono::steady_clock::time_point;

struct EmulatedEvent {
  std::optional<Time> time;  // when it was recorded
  EmulatedStream* stream = nullptr;
  uint64_t steps = 0;                  // of the stream that came before
  uint64_t queued = 0;                 // the same, of all its work
  std::optional<races::Clock> before;  // unless some were held up
};

EmulatedEvent& event_of(const Event& event) { return *reinterpret_cast<EmulatedEvent*>(event.handle()); }

bool has_happened(const EmulatedEvent& event) {
  if (event.stream) advance(*event.stream);
  return !event.stream || event.stream->done >= event.steps;
}

races::Clock clock_of(const EmulatedEvent& event) {
  if (!event.stream) return {};
  return event.before ? *event.before : races::clock_of(event.stream->id);
}

thread_local uint64_t waits = 0;

// The host has waited for the first `work` pieces of work, or had waited before.
void count_wait(EmulatedStream& stream, uint64_t work) {
  if (work <= stream.waited) return;
  stream.waited = work;
  ++waits;
}

// The worst that a driver does: memory is given and taken when no kernel runs, and none starts meanwhile. Not
// by a rank, whose peers' kernels may wait for it: ranks are asked to take theirs before the first pass, or
// have devices of their own.
class Device {
 public:
  void run(const std::function<void()>& work) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return wanting_ == 0; });
    ++running_;
    lock.unlock();
    work();
    lock.lock();
    --running_;
    changed_.notify_all();
  }
  template <class Work>
  auto while_idle(Work work) {
    const MemoryTurn turn;
    if (SharedPass::is_of_rank()) return work();
    std::unique_lock lock(mutex_);
    ++wanting_;
    changed_.wait(lock, [&] { return running_ == 0; });
    struct Done {
      Device& device;
      ~Done() {
        --device.wanting_;
        device.changed_.notify_all();
      }
    } const done{*this};
    return work();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int running_ = 0, wanting_ = 0;
};
Device& device() {
  static auto* const instance = new Device;  // memory is also freed by destructors that run after main
  return *instance;
}

// Where pinned memory lies.
class PinnedMemory {
 public:
  void add(const void* memory, size_t bytes) {
    const std::lock_guard lock(mutex_);
    ends_[address(memory)] = address(memory) + bytes;
  }
  void remove(const void* memory) {
    const std::lock_guard lock(mutex_);
    ends_.erase(address(memory));
  }
  bool has(const void* at) {
    const std::lock_guard lock(mutex_);
    const auto behind = ends_.upper_bound(address(at));
    return behind != ends_.begin() && address(at) < std::prev(behind)->second;
  }

 private:
  static uintptr_t address(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

  std::mutex mutex_;
  std::map<uintptr_t, uintptr_t> ends_;
};
PinnedMemory& pinned() {
  static auto* const instance = new PinnedMemory;  // as long as the device
  return *instance;
}

thread_local uint64_t brought = 0;

void run(const EmulatedStream& stream, const std::function<void()>& work) {
  device().run([&] {
    races::begin_operation(stream.id);
    work();
    races::end_operation();
  });
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
  while (!is_done(*this)) std::this_thread::yield();
}
Stream::Stream(KernelOrder order)
    : view_(reinterpret_cast<StreamHandle*>(new EmulatedStream), order == KernelOrder::kOverlapping) {}
Stream::~Stream() { delete &stream_of(view_); }

Event::Event() : handle_(reinterpret_cast<EventHandle*>(new EmulatedEvent)) {}
Event::~Event() { delete &event_of(*this); }
void Event::record(StreamView view) {
  EmulatedStream& stream = stream_of(view);
  EmulatedEvent& event = event_of(*this);
  event = {std::chrono::steady_clock::now(), &stream, stream.done + stream.held.size(), stream.queued, {}};
  if (stream.held.empty()) event.before = races::clock_of(stream.id);
}
void Event::synchronize() const {
  while (!is_done(*this)) std::this_thread::yield();
}
double Event::seconds_since(const Event& earlier) const {
  const EmulatedEvent &begin = event_of(earlier), &end = event_of(*this);
  if (!begin.time || !end.time) throw CudaError("CUDA: timing failed: an event was never recorded");
  if (!has_happened(begin) || !has_happened(end))
    throw CudaError("CUDA: timing failed: an event has not happened yet");
  return std::chrono::duration<double>(*end.time - *begin.time).count();
}

bool is_done(StreamView view) {
  EmulatedStream& stream = stream_of(view);
  advance(stream);
  if (!stream.held.empty()) return false;
  count_wait(stream, stream.queued);
  races::host_waited(races::clock_of(stream.id));
  return true;
}
bool is_done(const Event& event) {
  if (!has_happened(event_of(event))) return false;
  if (EmulatedStream* const stream = event_of(event).stream) count_wait(*stream, event_of(event).queued);
  races::host_waited(clock_of(event_of(event)));
  return true;
}

Graph::Graph(StreamView stream, const std::function<void()>& work) {
  auto captured = std::make_unique<Work>();
  stream_of(stream).capture = captured.get();
  work();
  stream_of(stream).capture = nullptr;
  handle_ = reinterpret_cast<GraphHandle*>(device().while_idle([&] { return captured.release(); }));
}
Graph::~Graph() {
  device().while_idle([&] { delete reinterpret_cast<Work*>(handle_); });
}
void Graph::launch(StreamView stream) const {
  for (const auto& step : *reinterpret_cast<Work*>(handle_)) emulation::enqueue(stream, step);
}

namespace detail {
void* allocate_device(size_t bytes) {
  return device().while_idle([&] { return races::allocate(Memory::kDevice, bytes); });
}
void free_device(void* memory) noexcept {
  device().while_idle([&] { races::free_memory(memory); });
}
void* allocate_pinned(size_t bytes) {
  void* const memory = device().while_idle([&] { return races::allocate(Memory::kPinned, bytes); });
  pinned().add(memory, bytes);
  return memory;
}
void free_pinned(void* memory) noexcept {
  pinned().remove(memory);
  device().while_idle([&] { races::free_memory(memory); });
}
}  // namespace detail

void copy_bytes(void* to, const void* from, size_t bytes, StreamView stream) {
  if (bytes == 0) return;  // nothing has no address
  if (pinned().has(to)) brought += bytes;
  emulation::enqueue(stream, [=] {
    std::memmove(to, from, bytes);
    races::read(from, bytes);
    races::written(to, bytes);
  });
}
void fill_bytes(void* to, int value, size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  emulation::enqueue(stream, [=] {
    std::memset(to, value, bytes);
    races::written(to, bytes);
  });
}

namespace emulation {
void enqueue(StreamView stream, std::function<void()> work) {
  EmulatedStream& s = stream_of(stream);
  advance(s);
  if (s.capture) {
    s.capture->push_back(std::move(work));
    return;
  }
  ++s.queued;
  if (s.held.empty())
    run(s, work);
  else
    s.held.push_back([&s, work = std::move(work)] { return run(s, work), true; });
}

uint64_t host_waits() { return waits; }
uint64_t bytes_to_host() { return brought; }

void hold_up(StreamView stream, std::function<bool()> done) {
  stream_of(stream).held.push_back(std::move(done));
}
}  // namespace emulation

}  // namespace outrider::cuda
