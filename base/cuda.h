// Owners of CUDA objects, without CUDA's headers: devices, streams, events, graphs, device and pinned memory.
// The back-end is the CUDA runtime (cuda_runtime.cpp) or its emulation on the host (emulation/), so code on
// top of this header is also tested without a GPU. A CUDA error throws CudaError: the environment is broken.
// Destructors never throw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "base/cuda_stream.h"
#include "base/status.h"

namespace outrider::cuda {

// Handles of the back-end's events and graphs. Declared only, never defined.
struct EventHandle;
struct GraphHandle;

class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct DeviceInfo {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t total_bytes = 0, free_bytes = 0, l2_bytes = 0;
  int64_t shared_bytes = 0;  // that one block may have
  std::string arch() const { return fmt::format("sm_{}{}", major, minor); }
};

// The number of devices, at least one; else the reason why there is none ("no NVIDIA driver ...").
Result<int> count_devices();
DeviceInfo describe_device(int device);
// "runtime 13.0, driver 13.0", or "runtime 13.0, no driver".
std::string version_text();
// Makes `device` current for the calling thread.
void use_device(int device);

// The order of kernels in a stream. kInTurn: each kernel starts after the one before it. kOverlapping: a
// kernel with LaunchShape::early may start during the last steps of the one before it. Kernels of ranks that
// share a device and wait for each other stay in turn: a kernel that is resident but idle takes room that a
// peer's kernel needs.
enum class KernelOrder { kInTurn, kOverlapping };

// On the device that is current at construction; does not wait for the legacy default stream.
class Stream {
 public:
  explicit Stream(KernelOrder order = KernelOrder::kInTurn);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator StreamView() const { return view_; }
  void synchronize() const { view_.synchronize(); }

 private:
  StreamView view_;
};

class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(StreamView stream);
  void synchronize() const;                          // the host waits
  double seconds_since(const Event& earlier) const;  // both recorded and done
  EventHandle* handle() const { return handle_; }

 private:
  EventHandle* handle_ = nullptr;
};

// Work that is recorded once and then launched as a whole.
class Graph {
 public:
  // `work` queues on `stream` and has no other effects.
  Graph(StreamView stream, const std::function<void()>& work);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(StreamView stream) const;

 private:
  GraphHandle* handle_ = nullptr;
};

namespace detail {
void* allocate_device(size_t bytes);  // zero-filled
void free_device(void* memory) noexcept;
void* allocate_pinned(size_t bytes);  // zero-filled
void free_pinned(void* memory) noexcept;
}  // namespace detail

enum class Memory { kDevice, kPinned };

// Owning, zero-filled memory of the current device, or pinned host memory that the device can read and write.
template <class T, Memory kind>
class MemoryOwner {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  MemoryOwner() = default;
  explicit MemoryOwner(int64_t size) : size_(size) {
    if (size == 0) return;
    data_ = static_cast<T*>(kind == Memory::kDevice ? detail::allocate_device(bytes())
                                                    : detail::allocate_pinned(bytes()));
  }
  MemoryOwner(MemoryOwner&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MemoryOwner& operator=(MemoryOwner&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MemoryOwner() {
    if (!data_) return;
    if constexpr (kind == Memory::kDevice)
      detail::free_device(data_);
    else
      detail::free_pinned(data_);
  }

  T* data() const { return data_; }
  int64_t size() const { return size_; }
  size_t bytes() const { return static_cast<size_t>(size_) * sizeof(T); }
  std::span<T> span() const { return {data_, static_cast<size_t>(size_)}; }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

template <class T>
using DeviceBuffer = MemoryOwner<T, Memory::kDevice>;  // data() is no address of the host
template <class T>
using PinnedBuffer = MemoryOwner<T, Memory::kPinned>;

// Copies between any two memories, in stream order. Pageable host memory makes the call wait.
void copy_bytes(void* to, const void* from, size_t bytes, StreamView stream);
void fill_bytes(void* to, int value, size_t bytes, StreamView stream);

template <class T>
void copy(T* to, const T* from, int64_t count, StreamView stream) {
  copy_bytes(to, from, static_cast<size_t>(count) * sizeof(T), stream);
}

}  // namespace outrider::cuda
